"""The report of an evaluation: its page with tables and figures, and its output on a terminal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, PairedMetrics, Report, Row
from bsmeta.tasks.causal_lm.evaluation.shown_documents import (
    describe_shown_documents,
    title_document,
)
from bsmeta.tasks.causal_lm.metrics import METRICS
from bsmeta.training.run_folder.events import read_steps_and_evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PER_DOCUMENT = "documents.jsonl"
"""File of per-document sums: a line for each document, comparison and model."""

VARIANTS = {SHUFFLED: "v", WRONG: "X", MATCHED: "^", FORM: "D", SEPARATOR: "|", PROMPT: "s"}
"""Plot markers of the variants (controls, prompt style) of other comparisons."""

TEMPLATE = "tasks/causal_lm/evaluation/evaluation.html.j2"
"""The template of the page, which also shows documents."""

VARIANT_NAMES = tables.CONTROL_WORDS | {PROMPT: "plain English"}
"""Names of the variants in legends."""

OWN_VALUES = "own values"
CURVE_GROUPS = ("all", "each", "chosen")
"""Groups of comparisons that the position plot shows."""

RUN_METRICS = ("bits_per_byte_without", "bits_per_byte_with")
"""Metrics of evaluations during training that the plot of the run shows."""

SMOOTHING_WINDOWS = 50
"""The training loss is averaged over the steps of a run divided by this number."""


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
        # Without its note, which the next tables repeat.
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
    """Makes the page of the report.

    Args:
        metrics: The `metrics.jsonl` of the first model's run, for its curves; None: no curves.
    """
    answers = [make_headline(model) for model in report.models]
    if len(report.models) > 1:
        answers = [
            f"{model.checkpoint}: {answer}"
            for model, answer in zip(report.models, answers, strict=True)
        ]

    run_plots = list_run_plots(metrics) if metrics else {}
    sections = [
        Section(tables=tables.make_main_tables(report), plots=_list_comparison_plots(report)),
        Section("Where in the text, and more metrics", tables=tables.make_further_tables(report)),
        Section("The training run", plots=run_plots),
    ]
    return Page(
        title=f"Evaluation of {', '.join(model.checkpoint for model in report.models)}",
        answers=answers,
        facts=_list_facts(report),
        sections=[section for section in sections if section.tables or section.plots],
        commands=describe_command(),
        settings=report.settings,
    )


def _list_facts(report: Report) -> dict[str, str]:
    """Returns facts about the data of each model and about the comparisons, by name."""
    settings = report.settings
    if settings.get("cluster") == "host":
        intervals = "hosts (jackknife)"
    else:
        intervals = (
            f"{settings['bootstrap_resamples']:,} resamples of the documents, "
            f"seed {settings['seed']}"
        )

    num_comparisons = max(tables.count_comparisons(model) for model in report.models)
    facts = {model.checkpoint: describe_data(model, report) for model in report.models}
    facts["comparisons"] = f"{num_comparisons:,}, controls included; intervals over {intervals}"
    return facts


def _list_comparison_plots(report: Report) -> dict[str, Callable[[], Figure]]:
    """Returns the functions that draw the comparisons of each model, by file name."""
    plots: dict[str, Callable[[], Figure]] = {}
    for number, model in enumerate(report.models, start=1):
        ending = f"-{number}" if len(report.models) > 1 else ""
        if any(row.compares for row in model.rows):
            plots[f"differences{ending}"] = partial(draw_differences, model)
            plots[f"positions{ending}"] = partial(draw_positions, model)
    return plots


def describe_data(model: ModelReport, report: Report) -> str:
    """Describes the documents that were scored with a model."""
    data = model.data
    description = f"{data['documents']:,} documents of {data['file']}"

    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    if left_out:
        description += f" (left out: {left_out})"

    text = model.find_row(TEXT)
    if text and text.lost_bytes:
        description += f"; left out: {describe_lost_bytes(text.lost_bytes, text.text_bytes)}"

    windows = report.settings["windows"]
    description += f"; windows of {data['max_seq_len']:,} tokens: {windows}."
    if model.training_overlap is not None:
        description += f" {model.training_overlap.describe()}"
    return description


@figures.style_figure
def draw_differences(model: ModelReport) -> Figure:
    """Draws the difference of each comparison with its interval; its variants share its line.

    The color shows whether the interval that holds for all comparisons at once excludes 0.
    """
    rows = [row for row in tables.rank_rows(model) if row.comparison.group not in VARIANTS]
    variants = [row for row in model.rows if row.comparison.group in VARIANTS]
    lines = _group_by_line([*rows, *variants])

    max_points = max(len(points) for points in lines.values())
    figure, (axes,) = figures.create_figure(1.9 + (0.25 + 0.12 * max_points) * len(lines))
    for line, points in enumerate(lines.values()):
        for number, point in enumerate(points):
            height = line + 0.7 * (number - (len(points) - 1) / 2) / max_points
            name = OWN_VALUES if point.variant is None else VARIANT_NAMES[point.variant]
            with figures.draw_series(axes, name):
                _draw_difference(axes, height, point)
    figures.draw_zero(axes)
    figures.name_rows(axes, list(lines))
    axes.set_xlabel("difference in bits per byte (left of 0: metadata helps)")
    axes.set_title("95% intervals (thick), and those that hold for all at once (thin)", loc="left")

    groups = {row.comparison.group for row in variants if row.compares}
    legend = [(OWN_VALUES, SeriesStyle(MUTED, "o", ""))]
    for group, marker in VARIANTS.items():
        if group in groups:
            legend.append((VARIANT_NAMES[group], SeriesStyle(MUTED, marker, "")))
    figures.add_legend_below(figure, legend)
    return figure


class _Point(NamedTuple):
    """The metrics of a comparison, and its group in `VARIANTS`; None: it is not a variant."""

    metrics: PairedMetrics
    variant: str | None


def _group_by_line(rows: Sequence[Row]) -> dict[str, list[_Point]]:
    """Groups the points to draw by the name of their line, which variants share."""
    lines: dict[str, list[_Point]] = {}
    for row in rows:
        if row.metrics is None or not row.compares:
            continue
        if row.comparison.group in VARIANTS:
            point = _Point(row.metrics, row.comparison.group)
            lines.setdefault(tables.label_types(row), []).append(point)
        else:
            lines.setdefault(tables.label_row(row), []).append(_Point(row.metrics, None))
    return lines


def _draw_difference(axes: Axes, height: float, point: _Point) -> None:
    """Draws one difference with both its intervals; each variant has its marker."""
    simultaneous_interval = tables.find_simultaneous_interval(point.metrics)
    color = MUTED
    if simultaneous_interval is not None and simultaneous_interval.excludes_zero:
        color = GOOD if simultaneous_interval.high < 0 else BAD
    figures.draw_interval(
        axes,
        height,
        tables.estimate_difference(point.metrics),
        SeriesStyle(color, "o" if point.variant is None else VARIANTS[point.variant]),
        outer=simultaneous_interval,
        size=7.0 if point.variant is None else 5.0,
    )


@figures.style_figure
def draw_positions(model: ModelReport) -> Figure:
    """Draws the difference by position and by preceding text, with the first row's controls.

    Each panel has its own scale. Junk words are only in the tables: they cost so much more than
    other prefixes change that the other curves would look flat.
    """
    compared = [row for row in model.rows if row.compares]
    rows = [row for row in compared if row.comparison.group in CURVE_GROUPS] or compared
    main_row = rows[0]
    control_names = [
        f"{control}/{main_row.comparison.subject}"
        for control in tables.CONTROL_WORDS
        if control != FORM
    ]

    looks = [(row, choose_series_style(number)) for number, row in enumerate(rows)]
    for row in compared:
        if row.comparison.name in control_names:
            looks.append((row, SeriesStyle(MUTED, VARIANTS[row.comparison.group], "--")))

    figure, panels = figures.create_figure(4.6, panels=2, shares_y=False)
    for axes, attribute in zip(panels, ("positions", "contexts"), strict=True):
        bins = getattr(main_row, attribute)
        for row, style in looks:
            with figures.draw_series(axes, tables.label_row(row)):
                _draw_bins(
                    axes, list(bins), getattr(row, attribute), style, has_band=row is main_row
                )
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
        [read_value(point) for point in points],
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
    events = [event for event in evaluations if all(name in event for name in RUN_METRICS)]
    figure, panels = figures.create_figure(3.8, panels=2 if events else 1, shares_y=False)
    step_numbers = [step["step"] for step in steps]
    losses = [step["loss"] for step in steps]
    panels[0].plot(step_numbers, losses, color=SERIES[1], alpha=0.35, linewidth=1)
    panels[0].plot(step_numbers, _smooth_values(losses), color=SERIES[1], linewidth=1.8)
    panels[0].set_title("training loss, nats per token", loc="left")

    if events:
        _draw_evaluations(panels[1], events)

    for axes in panels:
        axes.set_xlabel("step")
        axes.grid()
    return figure


def _draw_evaluations(axes: Axes, events: Sequence[dict[str, Any]]) -> None:
    """Draws the bits per byte without and with metadata of evaluations during training."""
    labels = []
    looks = (SeriesStyle(SERIES[0], "o"), SeriesStyle(GOOD, "s", "--"))
    for name, style in zip(RUN_METRICS, looks, strict=True):
        label = f"{METRICS[name].label} metadata"
        labels.append(label)
        with figures.draw_series(axes, label):
            axes.plot(
                [event["step"] for event in events],
                [event[name] for event in events],
                linestyle=style.line,
                marker=style.marker,
                color=style.color,
                markersize=5,
                label=label,
            )
    figures.link_legend(axes.legend(labelcolor=INK), labels)
    axes.set_title("held-out text, bits per byte", loc="left")


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
    """Returns for each value the average of the window that ends with it."""
    width = max(len(values) // SMOOTHING_WINDOWS, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    averages = []
    for end in range(1, len(values) + 1):
        start = max(end - width, 0)
        averages.append((sums[end] - sums[start]) / (end - start))
    return averages


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
