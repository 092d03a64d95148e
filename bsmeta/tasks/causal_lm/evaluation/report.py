"""The report of an evaluation: its page with tables and figures, and its output on a terminal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from bsmeta.core.printable import make_printable
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.metadata.metadata_type import MATCHED, SHUFFLED, WRONG
from bsmeta.report import figures, page
from bsmeta.report.byte_ranges import name_byte_ranges
from bsmeta.report.figures import SeriesStyle, choose_series_style
from bsmeta.report.inference import Estimate, read_value
from bsmeta.report.page import Page, Section, create_report_console, describe_command, print_table
from bsmeta.report.palette import BAD, GOOD, INK, MUTED, SERIES, list_type_colors
from bsmeta.tasks.causal_lm.evaluation import tables
from bsmeta.tasks.causal_lm.evaluation.arms import FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.tasks.causal_lm.evaluation.document_table import make_document_table
from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.results import (
    ModelReport,
    PairedMetrics,
    Report,
)
from bsmeta.tasks.causal_lm.evaluation.shown_documents import (
    describe_shown_documents,
    title_document,
)
from bsmeta.tasks.causal_lm.metrics import METRICS
from bsmeta.training.run_folder import read_steps_and_evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PER_DOCUMENT = "documents.jsonl"
"""Per-document sums, from which the tables are computed: a line per document, comparison, model."""

VARIANTS = {SHUFFLED: "v", WRONG: "X", MATCHED: "^", FORM: "D", SEPARATOR: "|", PROMPT: "s"}
"""Plot markers of the variants (controls, prompt style) of other comparisons."""

TEMPLATE = "tasks/causal_lm/evaluation/evaluation.html.j2"
"""The template of the page, which also shows documents."""

WORDS = tables.CONTROL_WORDS | {PROMPT: "plain English"}
OWN_VALUES = "own values"
CURVED = ("all", "each", "chosen")
"""Groups of comparisons that the position plot shows."""

SMOOTHING_WINDOWS = 50
"""A run has this number of windows over which its training loss is averaged."""


def write_report(report: Report, out_dir: Path, metrics: Path | None) -> list[Path]:
    """Writes the report's files and returns them.

    Args:
        out_dir: Folder to write to; created if it does not exist.
        metrics: The `metrics.jsonl` of the run, for its curves.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    with (out_dir / PER_DOCUMENT).open("wb") as file:
        for model in report.models:
            for line in model.iterate_document_lines():
                file.write(page.encode_json_line(line))

    first = report.models[0]
    keys = first.data.get("metadata_list", [])
    return page.write_report(
        make_page(report, metrics),
        report.as_dict(),
        out_dir,
        other_files=[PER_DOCUMENT],
        template=TEMPLATE,
        document_table=make_document_table(report),
        shown_documents=[
            (title_document(first, document), document) for document in first.shown_documents
        ],
        shown_note=describe_shown_documents(first),
        keys=keys,
        type_colors=list_type_colors(len(keys)),
    )


def print_report(report: Report, files: Sequence[Path]) -> None:
    """Prints the main tables, a one-sentence summary, and the paths of the files."""
    console = create_report_console()
    if len(report.models) > 1:
        # the next tables have the same note
        print_table(console, replace(tables.make_checkpoint_table(report), note=""))
    if report.pairs:
        print_table(console, tables.make_pair_table(report))

    for model in report.models:
        name = make_printable(model.checkpoint)
        description = make_printable(describe_data(model, report))
        heading = Text.assemble((name, "bold"), f": {description}")
        console.print(console.highlighter(heading), soft_wrap=True)

        print_table(console, tables.make_comparison_table(model, tables.TERMINAL_COLUMNS))
        if tables.list_controls(model):
            print_table(
                console, tables.make_control_table(model).drop_columns(tables.TOGETHER, tables.HOLM)
            )
        console.print(make_headline(model))

    page.print_report([], [], files)


def make_page(report: Report, metrics: Path | None) -> Page:
    """Makes the page of the report, with the curves of the (first) run."""
    has_several = len(report.models) > 1
    answers = [
        f"{model.checkpoint}: {make_headline(model)}" if has_several else make_headline(model)
        for model in report.models
    ]

    settings = report.settings
    if settings.get("cluster") == "host":
        intervals = "hosts (jackknife)"
    else:
        intervals = (
            f"{settings['bootstrap_resamples']:,} resamples of the documents, "
            f"seed {settings['seed']}"
        )
    count = max(map(tables.count_comparisons, report.models))
    facts = {model.checkpoint: describe_data(model, report) for model in report.models}
    facts["comparisons"] = f"{count:,}, controls included; intervals over {intervals}"

    plots: dict[str, Callable[[], Figure]] = {}
    for number, model in enumerate(report.models, start=1):
        ending = f"-{number}" if has_several else ""
        if any(row.compares for row in model.rows):
            plots[f"differences{ending}"] = partial(draw_differences, model)
            plots[f"positions{ending}"] = partial(draw_positions, model)

    curves = list_run_plots(metrics) if metrics else {}
    sections = [
        Section(tables=tables.make_main_tables(report), plots=plots),
        Section("Where in the text, and more metrics", tables=tables.make_further_tables(report)),
        Section("The training run", plots=curves),
    ]
    return Page(
        title=f"Evaluation of {', '.join(model.checkpoint for model in report.models)}",
        answers=answers,
        facts=facts,
        sections=[section for section in sections if section.tables or section.plots],
        commands=describe_command(),
        settings=settings,
    )


def describe_data(model: ModelReport, report: Report) -> str:
    """Describes in a sentence the documents that were scored with a model."""
    data = model.data
    description = f"{data['documents']:,} documents of {data['file']}"

    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    if left_out:
        description += f" (left out: {left_out})"

    text = model.row(TEXT)
    if text and text.lost_bytes:
        description += f"; left out: {describe_lost_bytes(text.lost_bytes, text.text_bytes)}"

    windows = report.settings["windows"]
    return f"{description}; windows of {data['max_seq_len']:,} tokens: {windows}."


@figures.style_figure
def draw_differences(model: ModelReport) -> Figure:
    """Draws the difference of each comparison with its interval; its variants share its line.

    The color shows whether the interval that holds for all comparisons at once excludes 0.
    """
    rows = [row for row in tables.rank_rows(model) if row.comparison.group not in VARIANTS]
    variants = [row for row in model.rows if row.comparison.group in VARIANTS]

    # By the name of the line: the metrics to draw on it, with the marker of a variant.
    lines: dict[str, list[tuple[PairedMetrics, str | None]]] = {}
    for row in (*rows, *variants):
        if row.metrics is None or not row.compares:
            continue
        marker = VARIANTS.get(row.comparison.group)
        name = tables.label_types(row) if marker else tables.label_row(row)
        lines.setdefault(name, []).append((row.metrics, marker))

    names: dict[str | None, str] = {None: OWN_VALUES}
    names |= {marker: WORDS[group] for group, marker in VARIANTS.items()}
    max_entries = max(map(len, lines.values()))
    figure, (axes,) = figures.create_figure(1.9 + (0.25 + 0.12 * max_entries) * len(lines))
    for line, entries in enumerate(lines.values()):
        for number, (metrics, marker) in enumerate(entries):
            height = line + 0.7 * (number - (len(entries) - 1) / 2) / max_entries
            with figures.draw_series(axes, names[marker]):
                _draw_difference(axes, height, metrics, marker)
    figures.draw_zero(axes)
    figures.name_rows(axes, list(lines))
    axes.set_xlabel("difference in bits per byte (left of 0: metadata helps)")
    axes.set_title("95% intervals (thick), and those that hold for all at once (thin)", loc="left")

    groups = {row.comparison.group for row in variants if row.compares}
    legend = [(OWN_VALUES, SeriesStyle(MUTED, "o", ""))]
    for name, marker in VARIANTS.items():
        if name in groups:
            legend.append((WORDS[name], SeriesStyle(MUTED, marker, "")))
    figures.add_legend_below(figure, legend)
    return figure


def _draw_difference(axes: Axes, height: float, metrics: PairedMetrics, marker: str | None) -> None:
    """Draws one difference with both its intervals; only variants have a marker of their own."""
    outer = tables.find_simultaneous_interval(metrics)
    color = MUTED
    if outer is not None and outer.excludes_zero:
        color = GOOD if outer.high < 0 else BAD
    figures.draw_interval(
        axes,
        height,
        tables.estimate_difference(metrics),
        SeriesStyle(color, marker or "o"),
        outer=outer,
        size=5.0 if marker else 7.0,
    )


@figures.style_figure
def draw_positions(model: ModelReport) -> Figure:
    """Draws the difference by position and by preceding text, with the first row's controls.

    Each panel has a scale of its own. Junk words are in the tables alone: they cost several times
    more than other prefixes change, so the other curves would be flat beside theirs.
    """
    compared = [row for row in model.rows if row.compares]
    rows = [row for row in compared if row.comparison.group in CURVED] or compared
    main = rows[0]
    control_names = [
        f"{control}/{main.comparison.subject}"
        for control in tables.CONTROL_WORDS
        if control != FORM
    ]

    looks = [(row, choose_series_style(number)) for number, row in enumerate(rows)]
    for row in compared:
        if row.comparison.name in control_names:
            looks.append((row, SeriesStyle(MUTED, VARIANTS[row.comparison.group], "--")))

    figure, panels = figures.create_figure(4.6, panels=2, shares_y=False)
    for axes, attribute in zip(panels, ("positions", "contexts"), strict=True):
        bins = getattr(main, attribute)
        for row, style in looks:
            with figures.draw_series(axes, tables.label_row(row)):
                _draw_bins(axes, list(bins), getattr(row, attribute), style, has_band=row is main)
        axes.axhline(0, color=INK, linewidth=1)
        axes.grid(axis="y")
        names = [
            f"{byte_range}\n({metrics.documents:,})"
            for byte_range, metrics in zip(name_byte_ranges(list(bins)), bins.values(), strict=True)
        ]
        axes.set_xticks(range(len(bins)), names)

    panels[0].set_title("by position in the document", loc="left")
    panels[0].set_xlabel("bytes of the document (documents)")
    panels[0].set_ylabel("bits per byte, with minus without")
    panels[1].set_title("by text seen before", loc="left")
    panels[1].set_xlabel("bytes of text before it in the window (documents)")
    figures.add_legend_below(
        figure, [(tables.label_row(row), style) for row, style in looks], columns=3
    )
    return figure


def _draw_bins(
    axes: Axes,
    edges: Sequence[int],
    bins: Mapping[int, PairedMetrics],
    style: SeriesStyle,
    *,
    has_band: bool,
) -> None:
    """Draws a curve over the bins that have metrics, with a band if all points have intervals."""
    numbers = [number for number, edge in enumerate(edges) if edge in bins]
    points = [tables.estimate_difference(bins[edges[number]]) for number in numbers]
    estimates = [point for point in points if isinstance(point, Estimate)]
    if has_band and len(estimates) == len(points):
        figures.draw_band(axes, numbers, estimates, style, width=2.2)
        return

    (line,) = axes.plot(
        numbers,
        list(map(read_value, points)),
        linestyle=style.line,
        marker=style.marker,
        color=style.color,
        linewidth=1.3,
        markersize=4.5,
    )
    figures.describe_points(line, points)


def list_run_plots(metrics: Path) -> dict[str, Callable[[], Figure]]:
    """Returns the functions that draw the figures of a training run, by file name."""
    steps, evaluations = read_steps_and_evaluations(metrics)
    plots: dict[str, Callable[[], Figure]] = {}
    if steps:
        plots["loss"] = partial(draw_loss, steps, evaluations)
    exposure = compute_exposure(steps)
    if any(exposure.values()):
        plots["exposure"] = partial(draw_exposure, exposure)
    return plots


@figures.style_figure
def draw_loss(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> Figure:
    """Draws the training loss by step, and the evaluations of the run."""
    names = {
        name: f"{METRICS[name].label} metadata"
        for name in ("bits_per_byte_without", "bits_per_byte_with")
    }
    events = []
    for event in evaluations:
        if all(name in event for name in names):
            events.append(event)

    figure, panels = figures.create_figure(3.8, panels=2 if events else 1, shares_y=False)
    step_numbers = [step["step"] for step in steps]
    losses = [step["loss"] for step in steps]
    panels[0].plot(step_numbers, losses, color=SERIES[1], alpha=0.35, linewidth=1)
    panels[0].plot(step_numbers, _smooth_values(losses), color=SERIES[1], linewidth=1.8)
    panels[0].set_title("training loss, nats per token", loc="left")

    if events:
        looks = (SeriesStyle(SERIES[0], "o"), SeriesStyle(GOOD, "s", "--"))
        for (name, words), style in zip(names.items(), looks, strict=True):
            with figures.draw_series(panels[1], words):
                panels[1].plot(
                    [event["step"] for event in events],
                    [event[name] for event in events],
                    linestyle=style.line,
                    marker=style.marker,
                    color=style.color,
                    markersize=5,
                    label=words,
                )
        figures.link_legend(panels[1].legend(labelcolor=INK), [*names.values()])
        panels[1].set_title("held-out text, bits per byte", loc="left")

    for axes in panels:
        axes.set_xlabel("step")
        axes.grid()
    return figure


@figures.style_figure
def draw_exposure(shares: Mapping[str, float]) -> Figure:
    """Draws the share of the training documents that had each type."""
    figure, (axes,) = figures.create_figure(1.0 + 0.34 * len(shares))
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    axes.barh(range(len(ordered)), [100 * share for _, share in ordered], color=GOOD, height=0.6)
    figures.name_rows(axes, [name for name, _ in ordered])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the documents trained on that had this type")
    return figure


def _smooth_values(values: Sequence[float]) -> list[float]:
    """Returns the average of each value with the values before it in its window."""
    width = max(len(values) // SMOOTHING_WINDOWS, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    starts = [max(end - width, 0) for end in range(1, len(values) + 1)]
    return [(sums[i + 1] - sums[start]) / (i + 1 - start) for i, start in enumerate(starts)]


def compute_exposure(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Computes the share of documents that had each type, from the counts that the trainer logs."""
    totals: Counter[str] = Counter()
    for step in steps:
        totals.update(step.get("counts", {}))

    documents = totals["documents"]
    return {
        name.partition("/")[2]: count / documents
        for name, count in totals.items()
        if name.startswith("documents/") and documents
    }
