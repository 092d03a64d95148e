"""Figures of reports: the canvas, colors and marks that they share, and a figure as inline SVG.

Files of figures have the colors of a light page. In the SVG every color is a variable of the page
(`base.html.j2`), which has a value for light and one for dark mode; text is text, in the font of
the page, and none is smaller than 12 pixels at the size that the page shows it.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from scipy.optimize import isotonic_regression

from bsmeta.core.enclosed import remove_enclosed
from bsmeta.core.printable import printable
from bsmeta.report.inference import Bounded, value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Given = ParamSpec("Given")

# Variable of the page -> its color in light and in dark mode. The series follow Okabe and Ito
# (2008), whose colors stay distinct under every common kind of color blindness, darkened where they
# would be faint on white.
_COLORS = {
    "ink": ("#1f2328", "#e6e8eb"),
    "muted": ("#5f6873", "#a3acb6"),
    "grid": ("#dde1e6", "#353b43"),
    "good": ("#0b6bb0", "#62b0f0"),
    "bad": ("#c2500a", "#ff9a5c"),
    "on-good": ("#fefefe", "#0b1520"),
    "series-1": ("#24292e", "#f0f2f4"),
    "series-2": ("#0072b2", "#58b0f2"),
    "series-3": ("#d55e00", "#ff8f4d"),
    "series-4": ("#008a63", "#3ccfa0"),
    "series-5": ("#b3589a", "#e79ad0"),
    "series-6": ("#a87700", "#ecbb3c"),
    "series-7": ("#3d9ad6", "#a5dcff"),
    "series-8": ("#7b2d43", "#f2839f"),
    "series-9": ("#6b7300", "#cdd45c"),
    "series-10": ("#6d6a8f", "#b9b4e8"),
}
LIGHT = {name: light for name, (light, _) in _COLORS.items()}
DARK = {name: dark for name, (_, dark) in _COLORS.items()}
INK, MUTED, GRID, GOOD, BAD, ON_GOOD = (
    LIGHT[name] for name in ("ink", "muted", "grid", "good", "bad", "on-good")
)
SERIES = [color for name, color in LIGHT.items() if name.startswith("series-")]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "*"]
DASHES = ["-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)), (0, (4, 1.5))]
"""Line styles: together with markers and colors, lines can be distinguished without any color."""

TEXT, SMALL = 10.0, 9.0
"""Sizes of text in points: 13.3 and 12 pixels."""
LONGEST_NAME = 60
"""Characters of a line of a name."""
MOST_LINES = 5
"""Lines of a name."""
WIDE, NARROW = 8.4, 7.0
"""Widths of figures in inches: with two panels, and with one."""

_LONGEST_END = 40  # characters of a name beside the axes, which leave it that much less room
_METADATA_ENDS = re.compile(r"</metadata>\s*")
_COMMENT_ENDS = re.compile(r"-->\s*")
_PIXELS_PER_INCH = 130
_SHARE_OF_AXES = 0.78  # of the height of a row of panels, about
_SETTINGS: dict[str, Any] = {
    "font.size": TEXT, "axes.titlesize": TEXT, "figure.titlesize": TEXT,
    "axes.labelsize": TEXT, "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL, "legend.fontsize": SMALL, "legend.frameon": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": GRID,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "svg.fonttype": "none", "axes.formatter.useoffset": False,
    # Names are text, in which two dollar signs enclose no formula.
    "text.parse_math": False, "text.usetex": False,
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How the marks of a series look.

    Attributes:
        color: One of this module.
        line: The style of its line; empty for none.
    """

    color: str
    marker: str = "o"
    line: Any = "-"


def look(number: int) -> Look:
    """The look of the n-th series; no two of the first hundred are the same."""
    shifted = number + number // len(SERIES)
    return Look(
        SERIES[number % len(SERIES)], MARKERS[shifted % len(MARKERS)], DASHES[shifted % len(DASHES)]
    )


def styled(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
    """Gives a function that draws a figure the settings of all figures."""

    @functools.wraps(draw)
    def drawn(*arguments: Given.args, **keywords: Given.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            return draw(*arguments, **keywords)

    return drawn


def canvas(
    height: float, *, panels: int = 1, columns: int | None = None, width: float | None = None,
    shares_x: bool = False, shares_y: bool = True, row_heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure and the axes of its panels, row by row.

    Args:
        height: In inches.
        columns: How many panels stand beside each other; None: all.
        width: In inches; None: that of all figures with one panel, or with several.
        row_heights: Relative heights of the rows; None: all the same.
    """
    from matplotlib.figure import Figure

    columns = min(columns or panels, panels)
    size = (width or (NARROW if panels == 1 else WIDE), height)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(
        math.ceil(panels / columns),
        columns,
        sharex=shares_x,
        sharey=shares_y,
        squeeze=False,
        height_ratios=row_heights,
    ).ravel()
    for axis in grid:
        axis.tick_params(length=0)
    for axis in grid[panels:]:
        axis.remove()
    return figure, list(grid[:panels])


def short_name(text: str, longest: int = LONGEST_NAME) -> str:
    """A name from the data as figures show it: printable, in one line, and not too long."""
    shown = printable(text[: longest + 1], one_line=True)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def name_lines(text: str) -> str:
    """A name that may have several lines, each a `short_name`; no more than `MOST_LINES`."""
    return "\n".join(map(short_name, text.split("\n")[:MOST_LINES]))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the places 0, 1, … of the y-axis, from top to bottom."""
    axes.set_yticks(range(len(names)), [*map(name_lines, names)])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")


def name_columns(axes: Axes, names: Sequence[str], **style: Any) -> None:
    """Names the places 0, 1, … of the x-axis.

    Args:
        style: Properties of the texts.
    """
    axes.set_xticks(range(len(names)), [*map(name_lines, names)], **style)


def draw_interval(
    axes: Axes, place: float, estimate: Bounded | float, style: Look, *,
    outer: Bounded | None = None, size: float = 6,
) -> None:  # fmt: skip
    """Draws a value with its interval in a row, and a wider interval as a thin line."""
    for ends, width in ((outer, 1.0), (estimate, size / 2.2)):
        if isinstance(ends, Bounded) and math.isfinite(ends.high - ends.low):
            axes.plot([ends.low, ends.high], [place, place], color=style.color, linewidth=width)
    axes.plot([value_of(estimate)], [place], style.marker, color=style.color, markersize=size)


def draw_zero(axes: Axes) -> None:
    """Draws the line of no difference."""
    axes.axvline(0, color=INK, linewidth=1)


def draw_band(
    axes: Axes, at: Sequence[float], points: Sequence[Bounded], style: Look, *, width: float = 1.6
) -> None:
    """Draws a line of values with the band of their intervals."""
    values = [value_of(point) for point in points]
    axes.plot(
        at, values, linestyle=style.line, marker=style.marker, color=style.color, linewidth=width,
        markersize=4.5,
    )  # fmt: skip
    low, high = [point.low for point in points], [point.high for point in points]
    axes.fill_between(at, low, high, color=style.color, alpha=0.1, linewidth=0)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Look]]) -> None:
    """Names lines at their right ends, moved apart where they would cover each other.

    Args:
        axes: With their final limits.
        ends: The last point of each line, its name and look.
    """
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None
    assert grid is not None
    low, high = axes.get_ylim()
    points = 72 * _SHARE_OF_AXES * figure.get_size_inches()[1] / grid.nrows
    step = 1.3 * SMALL * (high - low) / points
    ordered = sorted(ends, key=lambda end: end[1])
    places = spread([min(max(end[1], low), high) for end in ordered], step, low, high)
    for (x, y, name, style), place in zip(ordered, places, strict=True):
        axes.annotate(
            "", (x, min(max(y, low), high)), (1.06, place), xycoords="data",
            textcoords=axes.get_yaxis_transform(), annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": style.color, "linewidth": 0.8, "shrinkA": 0,
                        "shrinkB": 3},
        )  # fmt: skip
        axes.plot(
            [1.06], [place], style.marker, color=style.color, markersize=4.5, clip_on=False,
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        axes.text(
            1.09, place, short_name(name, _LONGEST_END), va="center", fontsize=SMALL,
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip


def spread(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Places as near to rising values as possible, at least `step` apart.

    They stay between both limits if there is room for all of them.
    """
    offsets = step * np.arange(len(values))
    places = isotonic_regression(values - offsets).x
    return list(places.clip(low, max(high - step * (len(values) - 1), low)) + offsets)


def legend_below(figure: Figure, entries: Iterable[tuple[str, Look]], columns: int = 4) -> None:
    """A legend below the axes."""
    from matplotlib.lines import Line2D

    handles, names = [], []
    for name, style in entries:
        names.append(name_lines(name))
        handles.append(
            Line2D(
                [], [], color=style.color, marker=style.marker, linestyle=style.line, markersize=5
            )
        )
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False,
        labelcolor=INK, handlelength=2.6,
    )  # fmt: skip


def short_number(value: float) -> str:
    """A number as an axis names it: 12,500 as 12.5k, 3.2e15 as it is."""
    value = float(f"{value:.3g}")
    if value >= 1e12:
        return f"{value:.2g}".replace("e+", "e")
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def save(figure: Figure, file: Path) -> None:
    """Writes a figure in the format that the name of the file ends with."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        figure.savefig(file, dpi=_PIXELS_PER_INCH)


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element for a page.

    Args:
        name: Begins the ids of its elements, so that they are unique on the page; its description.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    source = buffer.getvalue()
    source = source[source.index("<svg") :]
    source = remove_enclosed(source, "<metadata>", _METADATA_ENDS)
    source = remove_enclosed(source, "<!--", _COMMENT_ENDS)
    source = re.sub("<[^<>]*+>", lambda tag: _adapt_tag(tag[0], name), source)
    width, height = (72 * inches for inches in figure.get_size_inches())
    words = name.replace("-", " ")
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{words}" '
        f'style="min-width: {width / 0.75:.0f}px; max-width: {1.2 * width / 0.75:.0f}px"'
    )
    return re.sub(r"^<svg[^>]*>", f'{head} xmlns:xlink="http://www.w3.org/1999/xlink">', source)


def _adapt_tag(tag: str, name: str) -> str:
    """A tag of an SVG with the ids, the font and the colors of the page; text is none of them."""
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font: (?:[a-z]+ )*([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    for variable, color in LIGHT.items():
        tag = tag.replace(color, f"var(--{variable})")
    return tag
