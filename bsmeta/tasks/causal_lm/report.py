"""The report of an evaluation: its page with tables and figures, and what the terminal shows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from bsmeta.core.printable import printable
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.metadata.metadata_type import MATCHED, SHUFFLED, WRONG
from bsmeta.report import figures, page
from bsmeta.report.byte_ranges import byte_ranges
from bsmeta.report.figures import BAD, GOOD, INK, MUTED, SERIES, Look, look
from bsmeta.report.inference import Estimate, value_of
from bsmeta.report.page import Page, Section, own_command, print_table, report_console
from bsmeta.tasks.causal_lm import tables
from bsmeta.tasks.causal_lm.arms import FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.tasks.causal_lm.headline import headline
from bsmeta.tasks.causal_lm.results import ModelReport, PairedMetrics, Report
from bsmeta.training.run_folder import steps_and_evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PER_DOCUMENT = "documents.jsonl"
"""Per-document sums, from which the tables are computed: a line per document, comparison, model."""

VARIANTS = {SHUFFLED: "v", WRONG: "X", MATCHED: "^", FORM: "D", SEPARATOR: "|", PROMPT: "s"}
"""Plot markers of the variants (controls, prompt style) of other comparisons."""

WORDS = tables.CONTROL_WORDS | {PROMPT: "plain English"}
CURVED = ("all", "each", "chosen")
"""Groups of comparisons that the position plot shows."""


def write_report(report: Report, out_dir: Path, metrics: Path | None) -> list[Path]:
    """Writes the report's files and returns them.

    Args:
        out_dir: Folder to write to; created if it does not exist.
        metrics: The `metrics.jsonl` of the run, for its curves.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    with (out_dir / PER_DOCUMENT).open("wb") as file:
        for model in report.models:
            for line in model.document_lines():
                file.write(page.json_line(line))
    made = page_of(report, metrics)
    content = {"answers": made.answers, **report.as_dict()}
    return page.write_report(made, content, out_dir, further=[PER_DOCUMENT])


def print_report(report: Report, files: Sequence[Path]) -> None:
    """Prints the main tables, a one-sentence summary, and the paths of the files."""
    console = report_console()
    if len(report.models) > 1:
        # the note is that of the next tables
        print_table(console, replace(tables.checkpoint_table(report), note=""))
    if report.pairs:
        print_table(console, tables.pair_table(report))
    for model in report.models:
        name, about = printable(model.checkpoint), printable(described(model, report))
        heading = Text.assemble((name, "bold"), f": {about}")
        console.print(console.highlighter(heading), soft_wrap=True)
        print_table(console, tables.comparison_table(model, tables.TERMINAL))
        if tables.controls_of(model):
            print_table(console, tables.control_table(model).without(tables.TOGETHER, tables.HOLM))
        console.print(headline(model))
    page.print_report([], [], files)


def page_of(report: Report, metrics: Path | None) -> Page:
    """The report as a page, with the curves of the (first) run."""
    several = len(report.models) > 1
    answers = [
        f"{model.checkpoint}: {headline(model)}" if several else headline(model)
        for model in report.models
    ]
    settings = report.settings
    facts = {model.checkpoint: described(model, report) for model in report.models}
    facts["comparisons"] = (
        f"{max(map(tables.compared, report.models)):,}, controls included; intervals over "
        + (
            "hosts (jackknife)"
            if settings.get("cluster") == "host"
            else f"{settings['bootstrap_resamples']:,} resamples of the documents, "
            f"seed {settings['seed']}"
        )
    )
    plots: dict[str, Callable[[], Figure]] = {}
    curves = run_plots(metrics) if metrics else {}
    for number, model in enumerate(report.models, start=1):
        ending = f"-{number}" if several else ""
        if any(row.compares for row in model.rows):
            plots[f"differences{ending}"] = partial(difference_plot, model)
            plots[f"positions{ending}"] = partial(position_plot, model)
    sections = [
        Section(tables=tables.main_tables(report), plots=plots),
        Section("Where in the text, and more metrics", tables=tables.further_tables(report)),
        Section("The training run", plots=curves),
    ]
    return Page(
        title=f"Evaluation of {', '.join(model.checkpoint for model in report.models)}",
        answers=answers,
        facts=facts,
        sections=[section for section in sections if section.tables or section.plots],
        commands=own_command(),
        settings=settings,
    )


def described(model: ModelReport, report: Report) -> str:
    """Describes in a sentence what was scored with a model."""
    data = model.data
    text = model.row(TEXT)
    lost = describe_lost_bytes(text.lost_bytes, text.text_bytes) if text and text.lost_bytes else ""
    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    return (
        f"{data['documents']:,} documents of {data['file']}"
        + (f" (left out: {left_out})" if left_out else "")
        + (f"; left out: {lost}" if lost else "")
        + f"; windows of {data['max_seq_len']:,} tokens: {report.settings['windows']}."
    )


@figures.styled
def difference_plot(model: ModelReport) -> Figure:
    """The difference of each comparison with its interval; its variants share its line.

    The color shows whether the interval that holds for all comparisons at once excludes 0.
    """
    own = [row for row in tables.ranked(model) if row.comparison.group not in VARIANTS]
    variants = [row for row in model.rows if row.comparison.group in VARIANTS]
    lines: dict[str, list[tuple[PairedMetrics, str | None]]] = {}
    for row in (*own, *variants):
        if row.metrics is not None and row.compares:
            marker = VARIANTS.get(row.comparison.group)
            lines.setdefault(tables.subject(row) if marker else tables.label(row), []).append(
                (row.metrics, marker)
            )
    most = max(map(len, lines.values()))
    figure, (axes,) = figures.canvas(1.9 + (0.25 + 0.12 * most) * len(lines))
    for place, found in enumerate(lines.values()):
        for number, (metrics, marker) in enumerate(found):
            outer, color = tables.all_at_once(metrics), MUTED
            if outer is not None and outer.excludes_zero:
                color = GOOD if outer.high < 0 else BAD
            height = place + 0.7 * (number - (len(found) - 1) / 2) / most
            figures.draw_interval(
                axes, height, tables.difference(metrics), Look(color, marker or "o"), outer=outer,
                size=5.0 if marker else 7.0,
            )  # fmt: skip
    figures.draw_zero(axes)
    figures.name_rows(axes, list(lines))
    axes.set_xlabel("difference in bits per byte (left of 0: metadata helps)")
    axes.set_title("95% intervals (thick), and those that hold for all at once (thin)", loc="left")
    used = {row.comparison.group for row in variants if row.compares}
    entries = [("own values", Look(MUTED, "o", ""))]
    entries += [(WORDS[name], Look(MUTED, VARIANTS[name], "")) for name in VARIANTS if name in used]
    figures.legend_below(figure, entries)
    return figure


@figures.styled
def position_plot(model: ModelReport) -> Figure:
    """The difference by position and by preceding text, with controls of the first comparison."""
    rows = [row for row in model.rows if row.compares and row.comparison.group in CURVED]
    rows = rows or [row for row in model.rows if row.compares]
    named = [f"{control}/{rows[0].comparison.subject}" for control in tables.CONTROL_WORDS]
    controls = [row for row in model.rows if row.compares and row.comparison.name in named]
    looks = [(row, look(number)) for number, row in enumerate(rows)]
    looks += [(row, Look(MUTED, VARIANTS[row.comparison.group], "--")) for row in controls]
    figure, panels = figures.canvas(4.6, panels=2)
    for axes, kind in zip(panels, ("positions", "contexts"), strict=True):
        bins = getattr(rows[0], kind)
        for row, style in looks:
            _draw_bins(axes, list(bins), getattr(row, kind), style, has_band=row is rows[0])
        axes.axhline(0, color=INK, linewidth=1)
        axes.grid(axis="y")
        names = [
            f"{part}\n({metrics.documents:,})"
            for part, metrics in zip(byte_ranges(list(bins)), bins.values(), strict=True)
        ]
        axes.set_xticks(range(len(bins)), names)
    panels[0].set_title("by position in the document", loc="left")
    panels[0].set_xlabel("bytes of the document (documents)")
    panels[0].set_ylabel("bits per byte, with minus without")
    panels[1].set_title("by text seen before", loc="left")
    panels[1].set_xlabel("bytes of text before it in the window (documents)")
    figures.legend_below(figure, [(tables.label(row), style) for row, style in looks], columns=3)
    return figure


def _draw_bins(
    axes: Axes, edges: Sequence[int], bins: Mapping[int, PairedMetrics], style: Look, *,
    has_band: bool,
) -> None:  # fmt: skip
    at = [place for place, edge in enumerate(edges) if edge in bins]
    points = [tables.difference(bins[edges[place]]) for place in at]
    known = [point for point in points if isinstance(point, Estimate)]
    if has_band and len(known) == len(points):
        figures.draw_band(axes, at, known, style, width=2.2)
        return
    axes.plot(
        at, list(map(value_of, points)), linestyle=style.line, marker=style.marker,
        color=style.color, linewidth=1.3, markersize=4.5,
    )  # fmt: skip


def run_plots(metrics: Path) -> dict[str, Callable[[], Figure]]:
    """What draws the figures of a training run, by the names of their files."""
    steps, evaluations = steps_and_evaluations(metrics)
    plots: dict[str, Callable[[], Figure]] = {}
    if steps:
        plots["loss"] = partial(loss_plot, steps, evaluations)
    exposure = exposure_of(steps)
    if any(exposure.values()):
        plots["exposure"] = partial(exposure_plot, exposure)
    return plots


@figures.styled
def loss_plot(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> Figure:
    """The training loss by step, and the evaluations of the run."""
    names = {"bits_per_byte_without": "without metadata", "bits_per_byte_with": "with metadata"}
    known = [event for event in evaluations if all(name in event for name in names)]
    figure, panels = figures.canvas(3.8, panels=2 if known else 1, shares_y=False)
    at, losses = [step["step"] for step in steps], [step["loss"] for step in steps]
    panels[0].plot(at, losses, color=SERIES[1], alpha=0.35, linewidth=1)
    panels[0].plot(at, _smooth(losses), color=SERIES[1], linewidth=1.8)
    panels[0].set_title("training loss, nats per token", loc="left")
    if known:
        looks = (Look(SERIES[0], "o"), Look(GOOD, "s", "--"))
        for (name, words), style in zip(names.items(), looks, strict=True):
            panels[1].plot(
                [event["step"] for event in known], [event[name] for event in known],
                linestyle=style.line, marker=style.marker, color=style.color, markersize=5,
                label=words,
            )  # fmt: skip
        panels[1].legend(labelcolor=INK)
        panels[1].set_title("held-out text, bits per byte", loc="left")
    for axes in panels:
        axes.set_xlabel("step")
        axes.grid()
    return figure


@figures.styled
def exposure_plot(shares: Mapping[str, float]) -> Figure:
    """The share of the training documents that had each type."""
    figure, (axes,) = figures.canvas(1.0 + 0.34 * len(shares))
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    axes.barh(range(len(ordered)), [100 * share for _, share in ordered], color=GOOD, height=0.6)
    figures.name_rows(axes, [name for name, _ in ordered])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the documents trained on that had this type")
    return figure


def _smooth(values: Sequence[float]) -> list[float]:
    """Moving average over the preceding values; the window is a fiftieth of their number."""
    width = max(len(values) // 50, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    starts = [max(end - width, 0) for end in range(1, len(values) + 1)]
    return [(sums[i + 1] - sums[start]) / (i + 1 - start) for i, start in enumerate(starts)]


def exposure_of(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of the documents that had each type, from the counts that the trainer logs."""
    totals: Counter[str] = Counter()
    for step in steps:
        totals.update(step.get("counts", {}))
    documents = totals["documents"]
    return {
        name.partition("/")[2]: count / documents
        for name, count in totals.items()
        if name.startswith("documents/") and documents
    }
