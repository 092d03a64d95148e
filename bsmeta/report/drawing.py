"""Draws the figures of a report; if one fails, the report is written without it.

Figures are drawn and saved in this module alone, after all numbers are on disk.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bsmeta.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plots = Mapping[str, "Callable[[], Figure]"]
"""The function that draws each figure, by the name of its file."""

_NO_GLYPH = "Glyph "  # begins matplotlib's warnings about characters that no font has

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawings:
    """The figures of a report.

    Attributes:
        svg: The SVG elements of the figures that could be drawn, by name.
        problems: The error messages of the figures that could not be drawn, by name.
        files: The names of the written files.
    """

    svg: Mapping[str, str]
    problems: Mapping[str, str]
    files: Sequence[str]


def draw_figures(plots: Plots, folder: Path, endings: Sequence[str] = ()) -> Drawings:
    """Draws figures and writes their files.

    A figure that fails is logged, and its files from an earlier report are deleted.

    Args:
        plots: The function that draws each figure, by the name of its file.
        folder: The folder of the files.
        endings: The formats of the files, such as `png`.
    """
    svg: dict[str, str] = {}
    problems: dict[str, str] = {}
    written: list[str] = []
    with _join_glyph_warnings():
        for name, draw in plots.items():
            files = [folder / f"{name}.{ending}" for ending in endings]
            try:
                svg[name] = _draw_figure(draw, name, files)
            except Exception as error:  # libraries raise anything for an unusual name or value
                problems[name] = "".join(traceback.format_exception_only(error)).strip()
                logger.warning("the figure %s could not be drawn: %s", name, problems[name])
                logger.debug("its traceback:", exc_info=True)
                for file in files:
                    file.unlink(missing_ok=True)
            else:
                written += [file.name for file in files]
    return Drawings(svg, problems, written)


def _draw_figure(draw: Callable[[], Figure], name: str, files: Sequence[Path]) -> str:
    """Draws a figure, writes its files, and returns it as an SVG element."""
    figure = draw()
    svg = figures.render_svg(figure, name)

    # The files keep the layout of the page. Each would compute its own, and draw twice.
    figure.set_layout_engine(None)
    for file in files:
        figures.save_figure(figure, file)
    return svg


@contextmanager
def _join_glyph_warnings() -> Iterator[None]:
    """Replaces matplotlib's warnings, one per character that no font has, by one log line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield

    glyph_messages: set[str] = set()
    for warning in caught:
        if str(warning.message).startswith(_NO_GLYPH):
            glyph_messages.add(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )

    if glyph_messages:
        logger.warning(
            "%d characters of names are in no installed font: files of figures show boxes in their "
            "place; in report.html, the browser's fonts apply",
            len(glyph_messages),
        )
