"""Draws the common elements of report figures, and renders figures as inline SVG.

Files of figures have the colors of a light page. In the SVG every color is a variable of the page
(`palette.py`), which has a value for light and one for dark mode. Text stays text, in the font of
the page, and is at least 12 pixels high at the size that the page shows.
"""

from __future__ import annotations

import functools
import hashlib
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec
from weakref import WeakKeyDictionary

import numpy as np
from scipy.optimize import isotonic_regression

from bsmeta.core.enclosed import remove_enclosed
from bsmeta.core.printable import make_printable
from bsmeta.report.cells import format_exact_numbers
from bsmeta.report.inference import Bounded, read_value
from bsmeta.report.palette import GRID, INK, LIGHT, MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

Parameters = ParamSpec("Parameters")

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "*"]
DASHES = ["-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)), (0, (4, 1.5))]
"""Line styles; together with the markers, they distinguish lines without any color."""

TEXT_SIZE = 10.0
"""Size of text in points: 13.3 pixels."""

SMALL_TEXT_SIZE = 9.0
"""Size of small text in points: 12 pixels."""

MAX_NAME_CHARS = 60
"""Maximum number of characters in a line of a name."""

MAX_NAME_LINES = 5
"""Maximum number of lines of a name."""

FULL_WIDTH = 8.4
"""Width in inches of a figure with several panels."""

PANEL_WIDTH = 7.0
"""Width in inches of a figure with one panel."""

_POINT_TEXTS: WeakKeyDictionary[Line2D, list[str]] = WeakKeyDictionary()
"""The exact number at each point of a line, kept from drawing it until `render_svg`."""

_MAX_END_CHARS = 40  # characters of a name at the end of a line, where there is less room
_METADATA_ENDS = re.compile(r"</metadata>\s*")
_COMMENT_ENDS = re.compile(r"-->\s*")
_POINTS = re.compile(r'<g id="[^"<>]*\.(?P<number>[0-9]+)">.*?(?=<g id="|</svg>)', re.DOTALL)
_POINT_MARK = re.compile(
    r'(?P<start><use [^<>]*\bx="(?P<x>[-0-9.e]+)" y="(?P<y>[-0-9.e]+)"[^<>]*?)/>'
)
_MAX_MARK_DISTANCE = 0.05  # points
_LINKED_ID = re.compile(r'\bid="(series|legend)-([0-9a-f]+)(?:\.[0-9]+)?"')
_PIXELS_PER_INCH = 130
_SHARE_OF_AXES = 0.78  # approximate share of the axes in the height of a row of panels
_END_MARK_X = 1.06  # position of the mark at the end of a line, in widths of the axes
_END_NAME_X = 1.09  # position of its name
_SETTINGS: dict[str, Any] = {
    "font.size": TEXT_SIZE,
    "axes.titlesize": TEXT_SIZE,
    "figure.titlesize": TEXT_SIZE,
    "axes.labelsize": TEXT_SIZE,
    "xtick.labelsize": SMALL_TEXT_SIZE,
    "ytick.labelsize": SMALL_TEXT_SIZE,
    "legend.fontsize": SMALL_TEXT_SIZE,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "axes.formatter.useoffset": False,
    # Names are plain text: two dollar signs in one do not enclose a formula.
    "text.parse_math": False,
    "text.usetex": False,
}


@dataclass(frozen=True)
class SeriesStyle:
    """The color, marker and line style of a series.

    Attributes:
        color: One of the light colors of `palette.py`.
        marker: Matplotlib's marker.
        line: Matplotlib's line style; empty for no line.
    """

    color: str
    marker: str = "o"
    line: Any = "-"


def choose_series_style(number: int) -> SeriesStyle:
    """Chooses the style of a series by its number, from 0; the first hundred all look different."""
    shifted = number + number // len(SERIES)
    return SeriesStyle(
        color=SERIES[number % len(SERIES)],
        marker=MARKERS[shifted % len(MARKERS)],
        line=DASHES[shifted % len(DASHES)],
    )


def style_figure(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Decorates a function that draws a figure with the common settings of figures."""

    @functools.wraps(draw)
    def draw_styled(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            return draw(*arguments, **keywords)

    return draw_styled


def create_figure(
    height: float,
    *,
    panels: int = 1,
    columns: int | None = None,
    width: float | None = None,
    shares_x: bool = False,
    shares_y: bool = True,
    row_heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Creates a figure; also returns the axes of its panels, row by row.

    Args:
        height: In inches.
        panels: Number of panels.
        columns: Number of panels in a row; None: all panels.
        width: In inches; None: `PANEL_WIDTH` for one panel, `FULL_WIDTH` for several.
        shares_x: Whether the panels have the same limits on the x-axis.
        shares_y: Whether the panels have the same limits on the y-axis.
        row_heights: Relative heights of the rows; None: all equal.
    """
    from matplotlib.figure import Figure

    columns = min(columns or panels, panels)
    if width is None:
        width = PANEL_WIDTH if panels == 1 else FULL_WIDTH
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        math.ceil(panels / columns),
        columns,
        sharex=shares_x,
        sharey=shares_y,
        squeeze=False,
        height_ratios=row_heights,
    ).ravel()

    for axes in grid:
        axes.tick_params(length=0)
    for axes in grid[panels:]:
        axes.remove()
    return figure, list(grid[:panels])


def shorten_name(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Makes a name from the data printable in one line, and truncates it to `max_chars`."""
    name = make_printable(text[: max_chars + 1], one_line=True)
    return name if len(name) <= max_chars else f"{name[: max_chars - 1]}…"


def shorten_lines(text: str) -> str:
    """Applies `shorten_name` to each line of a name, and drops lines after `MAX_NAME_LINES`."""
    lines = text.split("\n")[:MAX_NAME_LINES]
    return "\n".join(shorten_name(line) for line in lines)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the positions 0, 1, … of the y-axis, from top to bottom."""
    axes.set_yticks(range(len(names)), [shorten_lines(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")


def name_columns(axes: Axes, names: Sequence[str], **style: Any) -> None:
    """Names the positions 0, 1, … of the x-axis.

    Args:
        style: Matplotlib properties of the texts.
    """
    axes.set_xticks(range(len(names)), [shorten_lines(name) for name in names], **style)


@contextmanager
def draw_series(axes: Axes, name: str) -> Iterator[None]:
    """Assigns the artists drawn within the context to a series, which readers of a page can hide.

    The entry of that name in the legend of the figure hides and shows the series.
    """
    earlier = set(axes.get_children())
    yield

    for artist in axes.get_children():
        if artist not in earlier:
            _assign_series(artist, name)


def _assign_series(artist: Artist, name: str) -> None:
    """Assigns an artist to a series, and names the series in the texts of its points."""
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

    element_id = f"series-{_hash_name(name)}"
    artist.set_gid(element_id)
    if isinstance(artist, Annotation) and artist.arrow_patch is not None:
        artist.arrow_patch.set_gid(element_id)

    if isinstance(artist, Line2D) and artist.get_marker() not in ("", "None", None):
        if artist not in _POINT_TEXTS:
            describe_points(artist, [float(y) for y in np.asarray(artist.get_ydata(), float)])
        shown_name = shorten_name(name)
        _POINT_TEXTS[artist] = [f"{shown_name}: {text}" for text in _POINT_TEXTS[artist]]


def describe_points(line: Line2D, numbers: Sequence[Bounded | float]) -> None:
    """Attaches the exact number to each point of a line, as a tooltip on a page."""
    _POINT_TEXTS[line] = [format_exact_numbers(number) for number in numbers]


def _hash_name(name: str) -> str:
    """Hashes the name of a series for an element id, in which not every character is allowed."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def draw_interval(
    axes: Axes,
    row: float,
    estimate: Bounded | float,
    style: SeriesStyle,
    *,
    outer: Bounded | None = None,
    size: float = 6,
) -> None:
    """Draws a value with its interval in a row, and optionally a wider interval as a thin line.

    Args:
        row: Position on the y-axis.
        estimate: The value; without an interval, only the marker is drawn.
        outer: The wider interval, if any.
        size: Size of the marker in points.
    """
    for interval, width in ((outer, 1.0), (estimate, size / 2.2)):
        if isinstance(interval, Bounded) and math.isfinite(interval.high - interval.low):
            axes.plot([interval.low, interval.high], [row, row], color=style.color, linewidth=width)
    (mark,) = axes.plot(
        [read_value(estimate)], [row], style.marker, color=style.color, markersize=size
    )
    describe_points(mark, [estimate])


def draw_zero(axes: Axes) -> None:
    """Draws the line of no difference."""
    axes.axvline(0, color=INK, linewidth=1)


def draw_band(
    axes: Axes,
    positions: Sequence[float],
    points: Sequence[Bounded],
    style: SeriesStyle,
    *,
    width: float = 1.6,
) -> None:
    """Draws a line of values with the band of their intervals.

    Args:
        positions: Positions of the points on the x-axis.
        width: Width of the line in points.
    """
    (line,) = axes.plot(
        positions,
        [read_value(point) for point in points],
        linestyle=style.line,
        marker=style.marker,
        color=style.color,
        linewidth=width,
        markersize=4.5,
    )
    describe_points(line, points)
    axes.fill_between(
        positions,
        [point.low for point in points],
        [point.high for point in points],
        color=style.color,
        alpha=0.1,
        linewidth=0,
    )


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, SeriesStyle]]) -> None:
    """Names lines at their right ends, moved apart where the names would overlap.

    The names are the entries of the legend (`draw_series`).

    Args:
        axes: Axes with their final limits.
        ends: The last point (x, y) of each line, its name and style.
    """
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    end_heights = [min(max(y, low), high) for _, y, _, _ in ordered]
    label_heights = spread_values(end_heights, _compute_line_height(axes), low, high)

    for (x, _, name, style), end_y, label_y in zip(
        ordered, end_heights, label_heights, strict=True
    ):
        with draw_series(axes, name):
            _draw_connection(axes, (x, end_y), (_END_MARK_X, label_y), style)
        _draw_end_label(axes, label_y, name, style)


def _compute_line_height(axes: Axes) -> float:
    """Computes the height of a line of small text, in units of the y-axis."""
    figure = axes.get_figure(root=True)
    grid = axes.get_gridspec()
    assert figure is not None
    assert grid is not None

    low, high = axes.get_ylim()
    height = 72 * _SHARE_OF_AXES * figure.get_size_inches()[1] / grid.nrows  # points
    return 1.3 * SMALL_TEXT_SIZE * (high - low) / height


def _draw_end_label(axes: Axes, y: float, name: str, style: SeriesStyle) -> None:
    """Draws the mark and the name of a line beside the axes."""
    (mark,) = axes.plot(
        [_END_MARK_X],
        [y],
        style.marker,
        color=style.color,
        markersize=4.5,
        clip_on=False,
        transform=axes.get_yaxis_transform(),
    )
    label = axes.text(
        _END_NAME_X,
        y,
        shorten_name(name, _MAX_END_CHARS),
        va="center",
        fontsize=SMALL_TEXT_SIZE,
        transform=axes.get_yaxis_transform(),
    )
    for entry in (mark, label):
        entry.set_gid(f"legend-{_hash_name(name)}")


def _draw_connection(
    axes: Axes, end: tuple[float, float], mark: tuple[float, float], style: SeriesStyle
) -> None:
    """Draws a thin line from the end of a line to its mark beside the axes."""
    axes.annotate(
        "",
        end,
        mark,
        xycoords="data",
        textcoords=axes.get_yaxis_transform(),
        annotation_clip=False,
        arrowprops={
            "arrowstyle": "-",
            "color": style.color,
            "linewidth": 0.8,
            "shrinkA": 0,
            "shrinkB": 3,
        },
    )


def spread_values(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Moves ascending values as little as possible, so that they are at least `step` apart.

    They stay between both limits if there is room for all of them.
    """
    # Subtracting the offsets turns "at least `step` apart" into "not descending".
    offsets = step * np.arange(len(values))
    positions = isotonic_regression(values - offsets).x
    highest = max(high - step * (len(values) - 1), low)
    return list(positions.clip(low, highest) + offsets)


def add_legend_below(
    figure: Figure, entries: Iterable[tuple[str, SeriesStyle]], columns: int = 4
) -> None:
    """Adds a legend below the axes; its entries hide and show the series of the same names."""
    from matplotlib.lines import Line2D

    handles = []
    names = []
    for name, style in entries:
        names.append(name)
        handles.append(
            Line2D(
                [], [], color=style.color, marker=style.marker, linestyle=style.line, markersize=5
            )
        )

    legend = figure.legend(
        handles,
        [shorten_lines(name) for name in names],
        loc="outside lower center",
        ncols=columns,
        fontsize=SMALL_TEXT_SIZE,
        frameon=False,
        labelcolor=INK,
        handlelength=2.6,
    )
    link_legend(legend, names)


def link_legend(legend: Legend, names: Sequence[str]) -> None:
    """Makes the entries of a legend hide and show the series of these names (`draw_series`)."""
    for handle, text, name in zip(legend.legend_handles, legend.get_texts(), names, strict=True):
        for entry in (handle, text):
            if entry is not None:
                entry.set_gid(f"legend-{_hash_name(name)}")


def shorten_number(value: float) -> str:
    """Formats a nonnegative number for an axis, in three digits: 12,500 as 12.5k.

    Numbers of a trillion or more stay in scientific notation.
    """
    value = float(f"{value:.3g}")
    if value >= 1e12:
        return f"{value:.2g}".replace("e+", "e")

    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def save_figure(figure: Figure, file: Path) -> None:
    """Writes a figure in the format of the file name's suffix."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        figure.savefig(file, dpi=_PIXELS_PER_INCH)


def render_svg(figure: Figure, name: str) -> str:
    """Returns a figure as an SVG element for a page.

    Args:
        name: Description of the figure, and prefix of its element ids, which must be unique on the
            page.
    """
    import matplotlib as mpl

    lines = _number_described_lines(figure)
    buffer = io.StringIO()
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})

    source = buffer.getvalue()
    source = source[source.index("<svg") :]
    source = remove_enclosed(source, "<metadata>", _METADATA_ENDS)
    source = remove_enclosed(source, "<!--", _COMMENT_ENDS)
    source = _POINTS.sub(
        lambda group: _add_point_titles(group[0], lines[int(group["number"])], figure), source
    )
    source = re.sub("<[^<>]*+>", lambda tag: _adapt_tag(tag[0], name), source)

    # Browsers show 96 pixels to an inch, or one for each 0.75 points.
    width, height = (72 * inches for inches in figure.get_size_inches())
    description = name.replace("-", " ")
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{description}" '
        f'style="min-width: {width / 0.75:.0f}px; max-width: {1.2 * width / 0.75:.0f}px"'
    )
    return re.sub(r"^<svg[^>]*>", f'{head} xmlns:xlink="http://www.w3.org/1999/xlink">', source)


def _number_described_lines(figure: Figure) -> list[Line2D]:
    """Numbers the lines whose points have texts, in their ids; returns them in that order."""
    from matplotlib.lines import Line2D

    lines: list[Line2D] = []
    for line in figure.findobj(Line2D):
        assert isinstance(line, Line2D)
        if line in _POINT_TEXTS:
            line.set_gid(f"{line.get_gid() or 'points'}.{len(lines)}")
            lines.append(line)
    return lines


def _locate_points(line: Line2D, figure: Figure) -> np.ndarray:
    """Returns the positions (x, y) of a line's points in the SVG: float64 [points, 2]."""
    inches = line.get_transform().transform(line.get_xydata()) / figure.dpi
    _, height = figure.get_size_inches()
    return np.stack((72 * inches[:, 0], 72 * (height - inches[:, 1])), axis=1)


def _add_point_titles(group: str, line: Line2D, figure: Figure) -> str:
    """Adds the exact numbers of a line's points to its marks, as titles.

    Where a line leaves the figure, the SVG has marks at the edge in place of some points; only
    marks at the position of a point get a title.

    Args:
        group: The SVG of the line.
    """
    points = _locate_points(line, figure)
    texts = _POINT_TEXTS[line]

    def add_title(mark: re.Match[str]) -> str:
        position = np.array([float(mark["x"]), float(mark["y"])])
        distances = np.abs(points - position).max(axis=1)
        nearest = int(np.argmin(np.nan_to_num(distances, nan=math.inf)))
        if not distances[nearest] < _MAX_MARK_DISTANCE:
            return mark[0]
        return f"{mark['start']}><title>{html.escape(texts[nearest])}</title></use>"

    return _POINT_MARK.sub(add_title, group)


def _adapt_tag(tag: str, name: str) -> str:
    """Adapts the ids, the font and the colors in an SVG tag to the page."""
    tag = _LINKED_ID.sub(r'data-\1="\2"', tag)
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font: (?:[a-z]+ )*([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    for variable, color in LIGHT.items():
        tag = tag.replace(color, f"var(--{variable})")
    return tag
