"""Draws the figures of a report: what one of them fails with costs the report that figure alone.

The only place where figures are drawn and saved. It is reached when all numbers are on disk.
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
"""What draws each figure, by the name of its file."""

_NO_GLYPH = "Glyph "  # begins matplotlib's warnings about characters that no font has

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawings:
    """The figures of a report.

    Attributes:
        svg: The SVG elements of those that could be drawn, by name.
        problems: Why the others could not, by name.
        files: The names of the files that were written.
    """

    svg: Mapping[str, str]
    problems: Mapping[str, str]
    files: Sequence[str]


def draw_figures(plots: Plots, folder: Path, endings: Sequence[str] = ()) -> Drawings:
    """Draws figures, and writes their files.

    A figure that fails is logged, and its files of an earlier report are deleted.

    Args:
        plots: What draws each.
        folder: For the files.
        endings: The formats of the files.
    """
    svg: dict[str, str] = {}
    problems: dict[str, str] = {}
    files: list[str] = []
    with _glyph_warnings_in_one():
        for name, draw in plots.items():
            own = [f"{name}.{ending}" for ending in endings]
            try:
                figure = draw()
                drawing = figures.svg(figure, name)
                for file in own:
                    figures.save(figure, folder / file)
            except Exception as error:  # whatever a library raises for a name or a value
                problems[name] = "".join(traceback.format_exception_only(error)).strip()
                logger.warning("the figure %s could not be drawn: %s", name, problems[name])
                logger.debug("its traceback:", exc_info=True)
                for file in own:
                    (folder / file).unlink(missing_ok=True)
            else:
                svg[name] = drawing
                files += own
    return Drawings(svg, problems, files)


@contextmanager
def _glyph_warnings_in_one() -> Iterator[None]:
    """Logs in one line that characters are in no font, of which matplotlib warns for each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    others = [warning for warning in caught if not str(warning.message).startswith(_NO_GLYPH)]
    missing = {str(warning.message) for warning in caught} - {str(one.message) for one in others}
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        logger.warning(
            "%d characters of names are in no installed font: they are boxes in files of figures, "
            "and as the browser shows them in %s", len(missing), "report.html",
        )  # fmt: skip
