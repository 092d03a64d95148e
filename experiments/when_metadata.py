"""Writes docs/when_metadata.md and its pictures from the committed measurements.

    python experiments/when_metadata.py

Every figure of the page is computed here from the files in experiments/studies/results, and a test
compares the page with them. Neither the models nor the pages of the data are needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

# Of this folder:
from study_designs import (
    FIRST_BYTE,
    LENGTHS,
    PILOTS,
    Design,
    compare_designs,
    estimate_bits_by_length,
    fit_effective_data_factor,
    make_design_table,
)

from bsmeta.core.process import run_and_report
from bsmeta.report import figures
from bsmeta.report.figures import SeriesStyle
from bsmeta.report.markdown import escape_sentence, format_code_block
from bsmeta.report.page import Column, Table
from bsmeta.report.palette import INK
from bsmeta.studies.claim_report import format_sentences
from bsmeta.studies.config import TEXT, WITH, WITHOUT, StudyConfig, load_study
from bsmeta.studies.downstream import make_study_table
from bsmeta.studies.report import draw_claim_plot
from bsmeta.studies.results import Results, compute_results, load_measurements
from bsmeta.studies.statistics import Estimate, StudyMeasurements
from bsmeta.studies.task_scores import find_all_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPOSITORY = Path(__file__).resolve().parents[1]
STUDIES = REPOSITORY / "experiments" / "studies"
PAGE = REPOSITORY / "docs" / "when_metadata.md"
IMAGES = PAGE.parent / "images"

PREFIXES = {"url": "host", "constant": "constant prefix", "shuffled": "hosts of other pages"}
"""The arms with a prefix, and what it contains."""

PARTS = {
    f"bytes 0 to {FIRST_BYTE - 1}": [0, FIRST_BYTE],
    f"from byte {FIRST_BYTE} on": [FIRST_BYTE],
}
"""The parts of a document, as `ClaimConfig.bytes`."""

INTERVALS = (
    "Differences in bits per byte, paired by seed and by document, with 95% intervals over both; "
    "below 0, the first model needs fewer bits."
)
SIGNED = "{:+.4f}".format

RECOMPUTATION = """\
def compare(arm, against, first_bytes=EDGES):
    return subtract(*(estimate(name, "without", first_bytes) for name in (arm, against)))


def estimate_answers(arm, task, shots):
    bits = []
    for seed in DECLARED["seeds"]:
        scores = json.loads((FOLDER / f"{arm}-seed{seed}.tasks.json").read_text())["scores"]
        (score,) = (s for s in scores if (s["task"], s["shots"]) == (task, shots))
        bits.append(score["bits"])
    return summarize(np.array(bits), np.array(score["sizes"]))


later = [128, 512, 2048]
differences = [
    compare("url_1440", "none_1440", later),
    compare("url_1440_40", "none_1440_40", later),
    subtract(compare("url_360", "none_360", later), compare("url_1440", "none_1440", later)),
    compare("url_1440", "constant_1440"),
    compare("none_1440", "url_1440", [0]),
    subtract(
        estimate_answers("url_1440", "bsmeta_word", 5),
        estimate_answers("none_1440", "bsmeta_word", 5),
    ),
    subtract(estimate("url", "shown", [0]), estimate("url", "without", [0])),
]
"""
"""The differences of the claims, for the script of docs/verdicts.md."""


def make_page(study: StudyConfig) -> str:
    """Makes the Markdown of the page."""
    results = compute_results(study)
    measured, _ = load_measurements(study)
    answers = "\n".join(f"- {escape_sentence(line)}" for line in format_sentences(results))
    blocks = [
        "# When does metadata help a model that is used without it?",
        *describe_study(study, results),
        "## The declared claims",
        answers,
        "![the declared claims with their intervals](images/when_metadata_claims.png)",
        "Everything below is exploratory: nothing was claimed about it, and each interval is for "
        "itself.",
        *describe_lengths(measured),
        *make_cooldown_table(measured).iterate_markdown(),
        *make_control_table(measured).iterate_markdown(),
        *make_inference_table(measured).iterate_markdown(),
        *describe_tasks(study, results),
        *describe_designs(measured),
        *describe_conditions(results),
        *describe_limits(measured),
        *describe_recomputation(study, results),
    ]
    return "\n\n".join(blocks) + "\n"


def describe_study(study: StudyConfig, results: Results) -> Iterator[str]:
    """Yields the question, the setting, and how many of the declared seeds are measured."""
    yield (
        "A model is trained with the host of each page before its text, and used without it. "
        "[MeCo](recipes.md#meco) reports that scores of tasks rise with that. At a thousandth of "
        "its size, the bits per byte [do not fall](studies.md#what-meco_small-found). This study "
        "asks what that depends on: the length of training, the length of the last phase without "
        "metadata, the content of the prefix, and the place in a page."
    )
    yield (
        "The setting is MeCo's: a BOS token, `URL: host` and a blank line before each piece of a "
        "page, and a last phase without metadata in which the learning rate falls to a tenth. "
        "Each seed trains four models of 1.3 million weights at a constant rate, on the same text "
        "in the same steps of 4,096 text tokens: text alone, the host, the host of another page, "
        "and a constant prefix. Finished models of "
        f"{', '.join(f'{steps:,}' for steps in LENGTHS[:-1])} and {LENGTHS[-1]:,} steps branch "
        "off: their last 10% (or 40%) of the steps are the phase without metadata. They are "
        f"compared on {results.documents:,} pages of {results.hosts} sites that were held out "
        f"({results.bytes:,} bytes; the first {study.measure.max_characters:,} characters of each "
        "page). `experiments/studies/when_metadata.yaml` was committed with its claims before the "
        "first run. Training a seed takes about two hours of one core, all on one machine."
    )
    declared = len(study.seeds)
    if len(results.seeds) < declared:
        yield (
            f"**{len(results.seeds)} of {declared} declared seeds are measured so far**, so every "
            "claim is open, and the figures below will change."
        )


def list_differences(
    measured: StudyMeasurements, arm: str, against: str, mode: str = WITHOUT
) -> list[Estimate]:
    """Lists the differences between two arms in each of `PARTS`.

    Args:
        mode: The use of the first arm's metadata; the second is used without.
    """
    differences = []
    for byte_range in PARTS.values():
        bins = measured.select_bins(byte_range)
        base = measured.estimate(against, WITHOUT, bins=bins)
        differences.append(measured.estimate(arm, mode, bins=bins) - base)
    return differences


def make_part_columns() -> list[Column]:
    """Makes the columns of the differences in each of `PARTS`."""
    return [Column(part, SIGNED) for part in PARTS]


def make_length_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences to text alone after each length of training."""
    note = (
        "The model trained with a prefix minus text alone of the same length, both used without "
        f"metadata; the last 10% of the steps are without metadata. {INTERVALS}"
    )
    columns = [
        Column("steps", "{:,}".format),
        Column("text tokens", "{:,.0f}".format),
        Column("prefix"),
        *make_part_columns(),
    ]
    table = Table("The length of training", note, columns)
    for steps in LENGTHS:
        tokens = float(measured.compute_amounts(f"none_{steps}")[TEXT][-1])
        for prefix, label in PREFIXES.items():
            differences = list_differences(measured, f"{prefix}_{steps}", f"none_{steps}")
            table.rows.append([steps, tokens, label, *differences])
    return table


def describe_lengths(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the differences after each length of training, and its picture."""
    heading, *blocks = make_length_table(measured).iterate_markdown()
    yield heading
    yield (
        "![what training with a prefix changes, by length of training]"
        "(images/when_metadata_lengths.png)"
    )
    yield from blocks


def make_cooldown_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences to text alone after two phases without metadata."""
    note = (
        f"As above, after {LENGTHS[-1]:,} steps; text alone has the same fall of the learning rate."
    )
    columns = [Column("without metadata"), Column("prefix"), *make_part_columns()]
    table = Table("The phase without metadata", note, columns)
    for share, ending in (("last 10%", ""), ("last 40%", "_40")):
        for prefix in ("url", "constant"):
            arm, against = (f"{name}_{LENGTHS[-1]}{ending}" for name in (prefix, "none"))
            differences = list_differences(measured, arm, against)
            table.rows.append([share, PREFIXES[prefix], *differences])
    return table


def make_control_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences between the host and the other prefixes."""
    note = (
        "The model trained with the host minus one trained with another prefix of the same form, "
        "both used without metadata: the effect of the content alone."
    )
    columns = [Column("steps", "{:,}".format), Column("host, minus"), *make_part_columns()]
    table = Table("The content of the prefix", note, columns)
    for steps in LENGTHS:
        for prefix in ("constant", "shuffled"):
            differences = list_differences(measured, f"url_{steps}", f"{prefix}_{steps}")
            table.rows.append([steps, PREFIXES[prefix], *differences])
    return table


def make_inference_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences that a prefix at inference makes."""
    note = (
        "Models at the constant rate, which have seen no page without a prefix. First their own "
        "prefix at inference minus none, then with it minus text alone, as trained."
    )
    columns = [Column("prefix"), Column("minus"), *make_part_columns()]
    table = Table("The prefix at inference", note, columns)
    for against, label in (("", "the same model without"), ("none", "text alone")):
        for prefix, name in PREFIXES.items():
            differences = list_differences(measured, prefix, against or prefix, WITH)
            table.rows.append([name, label, *differences])
    return table


def describe_tasks(study: StudyConfig, results: Results) -> Iterator[str]:
    """Yields the table of the tasks on held-out pages."""
    labels = {f"none_{LENGTHS[-1]}": "text alone"}
    labels |= {f"{prefix}_{LENGTHS[-1]}": label for prefix, label in PREFIXES.items()}
    labels = {arm: label for arm, label in labels.items() if arm in study.downstream.arms}
    all_scores = find_all_scores(study)
    scores = {arm: [all_scores[arm, seed].scores for seed in results.seeds] for arm in labels}
    table = make_study_table(scores, labels, study.baseline)
    note = (
        f"Models of {LENGTHS[-1]:,} steps on the [tasks of held-out pages]"
        "(downstream.md#tasks-of-held-out-pages), four choices each: mean over seeds, and the "
        "difference to text alone, paired by seed and by question, with 95% intervals over both. "
        "Guessing is right in a quarter of the questions. The answers of `bsmeta_site` are hosts, "
        "which only the model trained with them was given."
    )
    heading, rows, _ = table.drop_columns("prompt", "of the prompt").iterate_markdown()
    yield heading.replace(table.title, "Tasks")
    yield rows
    yield note


def describe_designs(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the seeds by design, and the effective-data factor."""
    designs = [*compare_designs(measured)]
    for name, words in PILOTS.items():
        pilot, _ = load_measurements(load_study(STUDIES / f"{name}.yaml"))
        bins = pilot.select_bins([FIRST_BYTE])
        url, none = (pilot.estimate(arm, WITHOUT, bins=bins) for arm in ("url", "none"))
        designs.append(Design(words, url - none))
    yield from make_design_table(designs).iterate_markdown()

    factor = fit_effective_data_factor(*estimate_bits_by_length(measured))
    yield (
        "**The effective-data factor.** One power law of the text tokens is fitted to all lengths "
        "of text alone and of training with the host, whose tokens count by a factor; the level "
        f"of each seed is a random effect. The factor is {factor.value:.2f}, with a 95% interval "
        f"over seeds of {factor.low:.2f} to {factor.high:.2f} (jackknife): 1 means that metadata "
        "is worth nothing, 1.1 that it saves one token in eleven."
    )


def describe_conditions(results: Results) -> Iterator[str]:
    """Yields the claims with hosts as the unit, and the tests of machine and order."""
    yield "## Hosts, machines and order"
    lines = [
        f"{claim.config.label}: {claim.effect.value:+.4f} ({claim.effect.low:+.4f} to "
        f"{claim.effect.high:+.4f})"
        for claim in results.by_host
        if claim.effect is not None
    ]
    yield (
        f"The {results.documents:,} pages are of {results.hosts} sites. With sites as the unit of "
        "the error ([how](verdicts.md#documents-or-hosts)), which the study did not declare, the "
        "differences of the claims have these intervals:"
    )
    yield "\n".join(f"- {escape_sentence(line)}" for line in lines)
    tests = [test for test in results.conditions if test.p_value is not None]
    found = [test for test in tests if test.p_value is not None and test.p_value <= 0.05]
    yield (
        f"Each difference is tested against machine, processor and order of training: of "
        f"{len(tests)} tests, {len(found)} have p ≤ 0.05, and one in twenty would by chance."
    )
    if found:
        yield "\n".join(
            f"- {escape_sentence(test.name)}, by {test.factor}: p = {test.p_value:.2g}"
            for test in found
        )


def describe_limits(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the conditions under which other results are to be expected."""
    tokens = measured.compute_amounts(f"none_{LENGTHS[-1]}")[TEXT][-1]
    _, counts = np.unique(measured.sites, return_counts=True)
    shares = counts / counts.sum()
    host_bits = -(shares * np.log2(shares)).sum()
    yield "## What this does not show"
    yield (
        "Anything about models of a billion weights, about training on more than "
        f"{tokens / 1e6:.1f} million text tokens, or about text of other sites: all pages are "
        f"documentation, and their host tells {host_bits:.1f} bits. Other than in MeCo, pages are "
        "split and not truncated, and the learning rate falls linearly from a constant, because "
        "only then several lengths are one run."
    )


def describe_recomputation(study: StudyConfig, results: Results) -> Iterator[str]:
    """Yields how to compute the claims without this package."""
    yield "## Recompute the claims"
    yield (
        "`python experiments/when_metadata.py` writes this page and its pictures from the "
        "committed measurements. To decide the claims with numpy and scipy alone, set `FOLDER` in "
        "[the script for `meco_small`](verdicts.md#recompute-a-verdict) to "
        "`experiments/studies/results/when_metadata`, and replace its differences by these, which "
        "are in the order of the claims:"
    )
    measured_seeds = ""
    if len(results.seeds) < len(study.seeds):
        measured_seeds = f'DECLARED["seeds"] = {results.seeds}  # those measured so far\n\n\n'
    yield format_code_block(measured_seeds + RECOMPUTATION, "python")
    yield "It prints:"
    effects = [claim.effect for claim in results.claims if claim.effect is not None]
    yield format_code_block("\n".join(map(format_effect, effects)), "text")


def format_effect(effect: Estimate) -> str:
    """Formats a difference as the script of docs/verdicts.md prints it."""
    p_value = f"{effect.p_value:.2g}"
    return f"{effect.value:+.4f}, {effect.low:+.4f} to {effect.high:+.4f}, p = {p_value}"


@figures.style_figure
def draw_length_plot(measured: StudyMeasurements) -> Figure:
    """Draws what each prefix changes over the length of training, in a panel for each part."""
    from matplotlib.ticker import NullLocator

    figure, panels = figures.create_figure(3.2, panels=len(PARTS), shares_y=False)
    styles = {prefix: figures.choose_series_style(n) for n, prefix in enumerate(PREFIXES)}
    differences = {
        prefix: [
            list_differences(measured, f"{prefix}_{steps}", f"none_{steps}") for steps in LENGTHS
        ]
        for prefix in PREFIXES
    }
    for number, (axes, part) in enumerate(zip(panels, PARTS, strict=True)):
        for shift, (prefix, style) in enumerate(styles.items(), start=-1):
            positions = [steps * 1.06**shift for steps in LENGTHS]  # apart, so that all are seen
            points = [by_part[number] for by_part in differences[prefix]]
            draw_errors(axes, positions, points, style)
        axes.axhline(0, color=INK, linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(LENGTHS, [f"{steps:,}" for steps in LENGTHS])
        axes.set_xlabel("steps of training")
        axes.set_title(part, loc="left")
    panels[0].set_ylabel("bits per byte minus text alone")
    figures.add_legend_below(
        figure, [(label, styles[prefix]) for prefix, label in PREFIXES.items()]
    )
    return figure


def draw_errors(
    axes: Axes, positions: Sequence[float], points: Sequence[Estimate], style: SeriesStyle
) -> None:
    """Draws a line of differences, each with its 95% interval."""
    values = [point.value for point in points]
    (line,) = axes.plot(
        positions, values, style.marker, linestyle=style.line, color=style.color, markersize=4.5
    )
    figures.describe_points(line, points)
    for position, point in zip(positions, points, strict=True):
        axes.plot([position] * 2, [point.low, point.high], color=style.color, linewidth=1)


def main() -> int:
    """Write the page and its pictures; returns the exit code."""
    os.chdir(REPOSITORY)  # the folder of the measurements is relative to it
    study = load_study(STUDIES / "when_metadata.yaml")
    PAGE.write_text(make_page(study), encoding="utf-8")
    figures.save_figure(
        draw_claim_plot(compute_results(study)), IMAGES / "when_metadata_claims.png"
    )
    measured, _ = load_measurements(study)
    figures.save_figure(draw_length_plot(measured), IMAGES / "when_metadata_lengths.png")
    print(f"written: {PAGE.relative_to(REPOSITORY)} and its pictures")
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
