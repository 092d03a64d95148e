"""The report of an analysis of result files: tables, plots and sentences."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.report import figures
from bsmeta.report.cells import Cell
from bsmeta.report.figures import SeriesStyle
from bsmeta.report.inference import Estimate, warn_of_rough_intervals
from bsmeta.report.page import (
    COUNT,
    Column,
    Page,
    Section,
    Table,
    describe_command,
    print_report,
    write_report,
)
from bsmeta.report.palette import MUTED
from bsmeta.tasks.classification.analysis import Analysis, AnalyzedRun, list_run_values
from bsmeta.tasks.classification.report import (
    MAX_SHOWN_LABELS,
    describe_selection,
    describe_unpredicted_labels,
    draw_confusion_plot,
    draw_curves_plot,
    draw_systems_plot,
    list_scores,
    make_confusion_table,
    make_difference_columns,
    make_epochs_table,
    make_score_columns,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TEXT_CHARS = 100
"""Maximum characters of a text in the table of mistakes."""

_SHARE = "{:.3f}".format
_SIGNED_SHARE = "{:+.3f}".format


def report_analysis(analysis: Analysis, folder: Path) -> None:
    """Writes the report, and prints it with the paths of its files."""
    sections = [
        _make_scores_section(analysis),
        _make_labels_section(analysis),
        _make_mistakes_section(analysis),
        _make_calibration_section(analysis),
        *_make_training_sections(analysis),
    ]

    sentences = summarize_analysis(analysis)
    results = analysis.results
    unit_count, unit = results.units
    page = Page(
        title=f"Analysis of {', '.join(run.name for run in analysis.runs)}",
        answers=sentences,
        facts={
            **{f"predictions of {run.name}": str(run.predictions.file) for run in analysis.runs},
            "texts": f"{results.texts:,}",
            "labels": f"{len(results.test.labels):,}",
            "intervals": f"bootstrap over {unit_count:,} {unit}",
        },
        sections=sections,
        commands=describe_command(),
    )
    content = {
        "texts": results.texts,
        "labels": list(results.test.labels),
        "resampled": {"units": unit_count, "of": unit},
        "runs": {run.name: list_run_values(run) for run in analysis.runs},
    }

    files = write_report(
        page, content, folder, json_name="analysis.json", markdown_name="analysis.md"
    )
    tables = [table for section in sections for table in section.tables]
    print_report(tables, sentences, files)


def summarize_analysis(analysis: Analysis) -> list[str]:
    """Describes the analysis in sentences: the first run, the comparisons, and notes."""
    results = analysis.results
    unit_count, unit = results.units
    first = analysis.first

    if results.test.has_several:
        name = "subset_accuracy"
        description = "predicts exactly the labels of {} of {:,} texts"
    else:
        name = "accuracy"
        description = "predicts the label of {} of {:,} texts right"

    score = first.compared.scores[name]
    result = description.format(f"{score.value:.1%}", results.texts)
    sentences = [
        f"{first.name} {result} (95% interval {score.low:.1%} to {score.high:.1%}, over "
        f"{unit_count:,} resampled {unit})."
    ]
    sentences += [_summarize_pairing(run, first, name) for run in analysis.runs[1:]]
    sentences += [sentence for run in analysis.runs for sentence in _summarize_calibration(run)]

    for run in analysis.runs:
        unpredicted = describe_unpredicted_labels(run.results)
        sentences += [f"{run.name}: {sentence}" for sentence in unpredicted]
    sentences += warn_of_rough_intervals(unit_count, unit)
    return [*sentences, *(f"{note[0].upper()}{note[1:]}." for note in analysis.notes)]


def _summarize_pairing(run: AnalyzedRun, first: AnalyzedRun, score: str) -> str:
    """Compares a run with the first one in a sentence."""
    assert run.pairing is not None
    difference = run.compared.differences[score]
    caveat = "" if difference.interval.excludes_zero else ": not distinguishable on these texts"
    return (
        f"{run.name}: {100 * difference.value:+.1f} points compared with {first.name} (95% "
        f"interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}{caveat}); "
        f"{run.pairing.only_this_right:,} texts are right only here, and "
        f"{run.pairing.only_first_right:,} only there."
    )


def _summarize_calibration(run: AnalyzedRun) -> list[str]:
    """Describes the calibration of a run in a sentence."""
    if run.calibration is None:
        return [f"{run.name}: no calibration, because the file lacks the probabilities."]
    excess = run.calibration.overconfidence
    if not excess.interval.excludes_zero:
        return []
    direction = "too high" if excess.value > 0 else "too low"
    return [
        f"{run.name}: the probabilities are {direction} by {abs(excess.value):.3f} on average "
        f"(95% interval {excess.low:+.3f} to {excess.high:+.3f})."
    ]


def _make_scores_section(analysis: Analysis) -> Section:
    """Makes the tables and the plot of scores and of paired comparisons."""
    results = analysis.results
    scores = list_scores(results)
    score_rows: list[list[Cell]] = []
    difference_rows: list[list[Cell]] = []
    pair_rows: list[list[Cell]] = []
    for run in analysis.runs:
        score_rows.append([run.name, *(run.compared.scores[name] for name in scores)])
        if run.pairing is not None:
            difference_rows.append([run.name, *(run.compared.differences[name] for name in scores)])
            pairing = run.pairing
            pair_rows.append(
                [
                    run.name,
                    float(pairing.only_first_right),
                    float(pairing.only_this_right),
                    pairing.same_predictions / results.texts,
                    pairing.p_value,
                ]
            )

    unit_count, unit = results.units
    first = analysis.first.name
    tables = [
        Table(
            "Scores",
            f"Over {results.texts:,} texts. In brackets: 95% intervals, bootstrap over "
            f"{unit_count:,} {unit}.",
            _name_runs_column(make_score_columns(scores)),
            score_rows,
        ),
        Table(
            f"Difference from {first}",
            "Paired: all runs on the same resamples.",
            _name_runs_column(make_difference_columns(scores)),
            difference_rows,
        ),
        Table(
            f"Predictions compared with {first}",
            "p: McNemar's exact test that both are right equally often, corrected for the number "
            "of runs (Holm). It takes texts as independent.",
            [
                Column("run"),
                Column(f"only {first} right", COUNT),
                Column("only this right", COUNT),
                Column("same prediction", "{:.1%}".format),
                Column("p", "{:.3g}".format),
            ],
            pair_rows,
        ),
    ]
    return Section(tables=tables, plots={"scores": partial(draw_systems_plot, results)})


def _name_runs_column(columns: list[Column]) -> list[Column]:
    return [Column("run"), *columns[1:]]


def _make_labels_section(analysis: Analysis) -> Section:
    """Makes the tables and plots of scores by label, and the confusion matrix of each run."""
    results = analysis.first.results
    tables = [_make_label_table(analysis)]
    plots: dict[str, Any] = {}
    if not results.test.has_several:
        for number, run in enumerate(analysis.runs, 1):
            if len(results.test.labels) <= MAX_SHOWN_LABELS:
                tables.append(make_confusion_table(run.results, f"Confusion matrix of {run.name}"))
            suffix = f"-{number}" if len(analysis.runs) > 1 else ""
            plots[f"confusion{suffix}"] = partial(draw_confusion_plot, run.results)
    return Section("By label", tables=tables, plots=plots)


def _make_label_table(analysis: Analysis) -> Table:
    """Makes the table of precision, recall and F1 of each label, with a row for each run."""
    first = analysis.first
    rows: list[list[Cell]] = []
    for label in first.label_intervals:
        name = first.results.test.labels[label]
        for run in analysis.runs:
            values = run.results.per_label[name]
            # With many labels, the worst ones of another run may be other labels.
            intervals = run.label_intervals.get(label)
            scores: list[Cell] = []
            for score in ("precision", "recall", "f1"):
                value = values[score]
                interval = None if intervals is None else getattr(intervals, score)
                scores.append(value if interval is None else Estimate(value, interval))
            is_first = run is first
            rows.append([name if is_first else "", run.name, *scores, values["texts"]])

    columns = [
        Column("label"),
        Column("run"),
        Column("precision", _SHARE),
        Column("recall", _SHARE),
        Column("F1", _SHARE),
        Column("texts", COUNT),
    ]
    note = (
        "Texts: those with this true label. In brackets: 95% intervals; resampling cannot find "
        "one for a score of 0 or 1, which has the width 0."
        f"{describe_selection(first.results, 'analysis.json')}"
    )
    table = Table("Scores by label", note, columns, rows, is_grouped=len(analysis.runs) > 1)
    return table if len(analysis.runs) > 1 else table.drop_columns("run")


def _make_mistakes_section(analysis: Analysis) -> Section:
    """Makes the table of the most confident mistakes of each run."""
    tables: list[Table] = []
    for run in analysis.runs:
        rows: list[list[Cell]] = []
        for mistake in run.mistakes:
            text = (
                "" if mistake.text is None else figures.shorten_name(mistake.text, MAX_TEXT_CHARS)
            )
            rows.append(
                [
                    f"{mistake.row:,}",
                    mistake.true,
                    mistake.predicted,
                    mistake.probability,
                    float(mistake.other_mistakes),
                    text,
                ]
            )

        columns = [
            Column("row"),
            Column("label"),
            Column("prediction"),
            Column("probability", _SHARE),
            Column("other runs wrong", COUNT),
            Column("text"),
        ]
        note = "Rows of the table, counted from 1 without the header."
        table = Table(f"Most confident mistakes of {run.name}", note, columns, rows)

        if run.calibration is None:
            table = table.drop_columns("probability")
        if len(analysis.runs) == 1:
            table = table.drop_columns("other runs wrong")
        if analysis.units.texts is None:
            table = table.drop_columns("text")
        tables.append(table)
    return Section("Mistakes", tables=tables)


def _make_calibration_section(analysis: Analysis) -> Section:
    """Makes the tables and the plot of calibration; of runs with probabilities."""
    calibrated = [run for run in analysis.runs if run.calibration is not None]
    summary_rows: list[list[Cell]] = []
    bin_rows: list[list[Cell]] = []
    for run in calibrated:
        calibration = run.calibration
        assert calibration is not None
        summary_rows.append([run.name, calibration.expected_error, calibration.overconfidence])
        for number, entry in enumerate(calibration.bins):
            bin_rows.append(
                [
                    "" if number else run.name,
                    f"{entry.low:.2f} to {entry.high:.2f}",
                    float(entry.count),
                    entry.mean_probability,
                    entry.share_right,
                ]
            )

    subject = "the predicted label of a text"
    if analysis.results.test.has_several:
        subject = "each pair of a text and a label"
    tables = [
        Table(
            "Calibration",
            f"Over the probability of {subject}. Expected calibration error: mean distance of "
            "probability and share right in a bin; resampling raises it, so its interval is too "
            "high. Overconfidence: mean probability minus share right.",
            [
                Column("run"),
                Column("expected error", _SHARE),
                Column("overconfidence", _SIGNED_SHARE),
            ],
            summary_rows,
        ),
        Table(
            "Probability and share right",
            "",
            [
                Column("run"),
                Column("probability"),
                Column("predictions", COUNT),
                Column("mean probability", _SHARE),
                Column("share right", _SHARE),
            ],
            bin_rows,
            is_grouped=True,
        ),
    ]
    plots = {"calibration": partial(draw_calibration_plot, calibrated)} if calibrated else {}
    return Section("Calibration", tables=tables, plots=plots)


def _make_training_sections(analysis: Analysis) -> list[Section]:
    """Makes the table and the plot of the training curves of each run that has some."""
    sections: list[Section] = []
    accuracy = "subset_accuracy" if analysis.results.test.has_several else "accuracy"
    for number, run in enumerate(analysis.runs, 1):
        epochs = [] if run.stats is None else run.stats.epochs
        if epochs:
            suffix = f"-{number}" if len(analysis.runs) > 1 else ""
            sections.append(
                Section(
                    f"Training of {run.name}",
                    tables=[make_epochs_table(run.results, epochs)],
                    plots={f"curves{suffix}": partial(draw_curves_plot, epochs, accuracy)},
                )
            )
    return sections


@figures.style_figure
def draw_calibration_plot(runs: list[AnalyzedRun]) -> Figure:
    """Draws the share of right predictions by mean probability, with 95% intervals."""
    figure, (axes,) = figures.create_figure(3.6)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=":")
    looks: list[tuple[str, SeriesStyle]] = []
    for number, run in enumerate(runs):
        assert run.calibration is not None
        look = figures.choose_series_style(number)
        looks.append((run.name, look))
        bins = run.calibration.bins
        shares = [entry.share_right for entry in bins]
        with figures.draw_series(axes, run.name):
            axes.errorbar(
                [entry.mean_probability for entry in bins],
                [share.value for share in shares],
                yerr=[
                    [max(share.value - share.low, 0) for share in shares],
                    [max(share.high - share.value, 0) for share in shares],
                ],
                color=look.color,
                marker=look.marker,
                linestyle=look.line,
                markersize=4.5,
                elinewidth=0.8,
            )

    axes.set_xlabel("mean probability (dotted: equal to the share)")
    axes.set_ylabel("share right")
    axes.grid()
    figures.add_legend_below(figure, looks)
    return figure
