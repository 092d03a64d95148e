"""The results of a sweep's runs: a table in the terminal, `sweep.md`, and `sweep.png`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from bsmeta.core.terminal import Console
from bsmeta.report import figures, markdown
from bsmeta.report.drawing import draw_figures
from bsmeta.tasks.causal_lm.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The loss of a single step is noisy, so it is averaged over the last steps.
LAST_STEPS = 20
MEASURES = {
    **{
        name: f"held-out bits per byte, {METRICS[name].label} metadata"
        for name in ("bits_per_byte_with", "bits_per_byte_without")
    },
    "loss": "training loss",
}
COLUMNS = [METRICS[name].label if name in METRICS else name for name in MEASURES]
COLORS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#e08214", "#6b6b6b")


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        state: The state in status.json; `not started` if there is none.
        step: The last step logged.
        metrics: `loss` (nats per token, mean of the last steps) and the last evaluation's bits per
            byte of held-out text, as far as they are available.
    """

    state: str
    step: int
    metrics: dict[str, float]


def read_result(folder: Path) -> Result:
    """Read the result from a run folder, which may be incomplete."""
    status, log = folder / "status.json", folder / "metrics.jsonl"
    state = json.loads(status.read_text())["state"] if status.exists() else "not started"
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be truncated
    steps = [one for one in events if one["event"] == "step"]
    losses = [one["loss"] for one in steps[-LAST_STEPS:]]
    metrics: dict[str, float] = {}
    for one in events:
        if one["event"] == "eval":
            metrics |= {name: one[name] for name in MEASURES if one.get(name) is not None}
    if losses:
        metrics["loss"] = sum(losses) / len(losses)
    return Result(state, steps[-1]["step"] if steps else 0, metrics)


def write_report(folder: Path, runs: Mapping[Path, Mapping[str, str]]) -> None:
    """Print the table, best run first, and write `sweep.md` and `sweep.png` to the folder.

    Args:
        folder: The folder of the sweep.
        runs: The swept keys and values of each run folder.
    """
    results = {run: read_result(run) for run in runs}
    measure = next(
        (name for name in MEASURES if any(name in one.metrics for one in results.values())), "loss"
    )
    ordered = sorted(runs, key=lambda run: _rank(results[run], measure))
    short = _short_names(list(next(iter(runs.values()))))
    header = [*short.values(), "state", "step", *COLUMNS]
    rows = [[*runs[run].values(), *_cells(results[run])] for run in ordered]
    _print(header, rows, f"{folder.name}: {MEASURES[measure]}, best first")
    page = folder / "sweep.md"
    text = _markdown(header, rows, measure)
    page.write_text(text, encoding="utf-8", errors="backslashreplace")
    points = [
        (dict(zip(short.values(), runs[run].values(), strict=True)), results[run].metrics[measure])
        for run in ordered
        if results[run].state == "done" and measure in results[run].metrics
    ]
    if points:
        draw = partial(plot, points, MEASURES[measure])
        drawings = draw_figures({"sweep": draw}, folder, ["png"])
        for name, problem in drawings.problems.items():
            text += f"\n{markdown.explain_undrawn(name, problem)}\n"
            page.write_text(text, encoding="utf-8", errors="backslashreplace")
        files = [page, *(folder / file for file in drawings.files)]
        print(f"written: {', '.join(map(str, files))}")


def _rank(result: Result, measure: str) -> tuple[bool, float]:
    """Sort key: finished runs first, then by the measure."""
    value = result.metrics.get(measure, math.inf)
    return result.state != "done", math.inf if math.isnan(value) else value


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the whole key if several keys share their last part."""
    last = [key.rsplit(".", 1)[-1] for key in keys]
    return {
        key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)
    }


def _cells(result: Result) -> list[str]:
    metrics = [result.metrics.get(name) for name in MEASURES]
    return [result.state, str(result.step), *("–" if x is None else f"{x:.4f}" for x in metrics)]


def _print(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], measure: str) -> str:
    about = (
        f"Best first by {MEASURES[measure]}; finished runs before others. `with` and `without`: "
        "bits per byte of held-out text with and without metadata, at the last evaluation; `loss`: "
        f"mean of the last {LAST_STEPS} steps, in nats per token."
    )
    heads, *cells = ([*map(markdown.escape_inline, row)] for row in (header, *rows))
    return f"{about}\n\n{markdown.format_table(heads, cells, [False] * len(heads))}\n"


@figures.style_figure
def plot(points: Sequence[tuple[dict[str, str], float]], words: str) -> Figure:
    """Plot the measure over the first numeric swept key, a line per choice of the other keys.

    Without a numeric key, there is a point per run.

    Args:
        points: The values of each finished run by short name, and its measure; the best first.
        words: The axis label of the measure.
    """
    from matplotlib.figure import Figure

    axis = next((name for name in points[0][0] if _numbers(points, name)), None)
    figure = Figure(figsize=(7.5, 4.2 if axis else 1.5 + 0.4 * len(points)), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color="#d9d9d9", axis="both" if axis else "x")
    if axis:
        _lines(axes, points, axis)
        axes.set_xlabel(figures.shorten_name(axis))
        axes.set_ylabel(words)
    else:
        labels = [", ".join(values.values()) for values, _ in points]
        axes.plot([value for _, value in points], range(len(points)), "o", color=COLORS[0])
        axes.set_yticks(range(len(points)), [*map(figures.shorten_name, labels)])
        axes.invert_yaxis()
        axes.set_xlabel(words)
    return figure


def _numbers(points: Sequence[tuple[dict[str, str], float]], name: str) -> list[float]:
    """The values of a key in ascending order if they are several numbers; otherwise []."""
    try:
        found = sorted({float(values[name]) for values, _ in points})
    except ValueError:
        return []
    return found if len(found) > 1 else []


def _lines(axes: Any, points: Sequence[tuple[dict[str, str], float]], axis: str) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for values, measured in points:
        others = [f"{name} {value}" for name, value in values.items() if name != axis]
        lines.setdefault(", ".join(others), []).append((float(values[axis]), measured))
    drawn = {}
    for (label, line), color in zip(sorted(lines.items()), itertools.cycle(COLORS)):
        (mark,) = axes.plot(*zip(*sorted(line), strict=True), "o-", color=color)
        drawn[figures.shorten_name(label)] = mark
    at = _numbers(points, axis)
    if at[0] > 0 and at[-1] / at[0] >= 4:
        axes.set_xscale("log")
    axes.set_xticks(at, [f"{value:g}" for value in at])
    axes.set_xticks([], minor=True)
    if len(lines) > 1:
        axes.legend([*drawn.values()], [*drawn], frameon=False, fontsize=9)
