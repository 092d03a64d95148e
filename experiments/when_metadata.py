"""Writes docs/when_metadata.md and its pictures from the committed measurements.

    python experiments/when_metadata.py

Every figure of the page is computed here from the files in experiments/studies/results, and a test
compares the page with them. Neither the models nor the pages of the data are needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# Of this folder:
from study_designs import (
    FIRST_BYTE,
    LENGTHS,
    PILOTS,
    Design,
    Factor,
    compare_designs,
    compare_later_bytes,
    estimate_bits_by_length,
    fit_effective_data_factors,
    make_design_table,
    regress_on_training_loss,
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
from bsmeta.studies.statistics import Estimate, StudyMeasurements, estimate_ratio
from bsmeta.studies.task_scores import Score, TaskScores, find_all_scores

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
    "Differences in bits per byte, paired by seed and by page, with 95% intervals over both; "
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


def make_page(study: StudyConfig, results: Results, measured: StudyMeasurements) -> str:
    """Makes the Markdown of the page."""
    answers = "\n".join(f"- {escape_sentence(line)}" for line in format_sentences(results))
    blocks = [
        "# When does metadata help a model that is used without it?",
        *describe_study(study, results, measured),
        "## The declared claims",
        "Each figure is the first model named minus the second (text alone, if there is none), "
        "over all bytes unless a part is named, without metadata unless the claim says otherwise. "
        "The third is the difference after 360 steps minus that after 1,440. Every claim says that "
        "the figure is below 0. Each interval is for one claim alone; verdicts are corrected for "
        f"{len(results.claims)} claims ([how](verdicts.md#what-is-computed)).",
        answers,
        "![the declared claims with their intervals](images/when_metadata_claims.png)",
        "Everything below is exploratory: it was not declared, and no interval or p-value is "
        "corrected for the number of comparisons.",
        *describe_lengths(measured),
        *make_cooldown_table(measured).iterate_markdown(),
        *make_control_table(measured).iterate_markdown(),
        *make_inference_table(measured).iterate_markdown(),
        *describe_tasks(study, results),
        *describe_designs(measured),
        *describe_conditions(study, results),
        *describe_limits(measured),
        *describe_recomputation(study, results),
    ]
    return "\n\n".join(blocks) + "\n"


def describe_study(
    study: StudyConfig, results: Results, measured: StudyMeasurements
) -> Iterator[str]:
    """Yields the question, the setting, and how many of the declared seeds are measured."""
    yield (
        "A model is trained with the host of each page before its text, and used without it. "
        "[MeCo](recipes.md#meco) reports higher scores on tasks, at a perplexity that is no lower. "
        "At a thousandth of its size, the bits per byte [are no lower](studies.md"
        "#what-meco_small-found) either. This study asks how that depends on the length of "
        "training, the length of the last phase without metadata, the content of the prefix, and "
        "the position in a page."
    )

    longest = LENGTHS[-1]
    tokens_per_step = compute_text_tokens(measured, longest) / longest
    shares = compute_host_shares(measured)
    yield (
        "The setting follows MeCo: a BOS token, `URL: host` and a blank line before each piece of "
        "a page, and a last phase without metadata (the cooldown), in which the learning rate "
        "falls to a tenth. Each seed trains four models of 1.3 million weights at a constant rate, "
        f"with the same text in the same steps of about {round(tokens_per_step, -1):,.0f} text "
        "tokens: text alone, the host, the host of another page (the same host in about "
        f"{(shares**2).sum():.0%} of the pages), and a constant prefix of as many tokens. From "
        "these runs, finished models of "
        f"{', '.join(f'{steps:,}' for steps in LENGTHS[:-1])} and {longest:,} steps branch off, "
        "whose last 10% of the steps are the cooldown, and models of "
        f"{longest:,} steps with a cooldown of 40%. In text alone, the learning rate falls in the "
        f"same way. {longest:,} steps are one pass over the training text."
    )

    hours = [sum_training_hours(measured, seed) for seed in measured.seeds]
    seeds = ", ".join(map(str, results.seeds))
    yield (
        f"The models are compared on {results.documents:,} held-out pages of {results.hosts} sites "
        f"({results.bytes:,} bytes; the first {study.measure.max_characters:,} characters of each "
        "page). `experiments/studies/when_metadata.yaml` was committed with its claims before the "
        "first run. It replaced a declaration with the seeds of the pilots, two runs of which had "
        f"been trained and none measured. Seeds measured: {seeds}. Training took {min(hours):.1f} "
        f"to {max(hours):.1f} hours of wall time a seed, in one thread, on "
        f"{describe_machines(measured)}."
    )

    if len(results.seeds) < len(study.seeds):
        yield (
            f"**{len(results.seeds)} of {len(study.seeds)} declared seeds are measured so far**, "
            "so every claim is open, and the figures below will change."
        )


def compute_text_tokens(measured: StudyMeasurements, steps: int) -> float:
    """Computes the text tokens that a finished model was trained on."""
    return float(measured.compute_amounts(f"none_{steps}")[TEXT][-1])


def compute_host_shares(measured: StudyMeasurements) -> np.ndarray:
    """Computes the share of each host among the held-out pages, float64 [hosts]."""
    _, counts = np.unique(measured.sites, return_counts=True)
    return counts / counts.sum()


def list_starts(measured: StudyMeasurements, seed: int) -> list[dict[str, Any]]:
    """Lists the records of all starts of a seed's runs."""
    return [
        start for arm in measured.arms for start in measured.find_run(arm, seed).facts["trained"]
    ]


def sum_training_hours(measured: StudyMeasurements, seed: int) -> float:
    """Sums the wall time of a seed's runs; a start without an end was killed and is not counted."""
    seconds = 0.0
    for start in list_starts(measured, seed):
        if start.get("ended"):
            begin, end = (datetime.fromisoformat(start[name]) for name in ("started", "ended"))
            seconds += (end - begin).total_seconds()
    return seconds / 3600


def describe_machines(measured: StudyMeasurements) -> str:
    """Names the number of machines that trained the seeds, and their processors."""
    starts = [start for seed in measured.seeds for start in list_starts(measured, seed)]
    count = len({start["machine"] for start in starts})
    processors = " and ".join(sorted({start["processor"] for start in starts}))
    return f"{'one machine' if count == 1 else f'{count} machines'} ({processors})"


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
        f"metadata, with a cooldown of 10%. {INTERVALS}"
    )
    columns = [
        Column("steps", "{:,}".format),
        Column("million text tokens", "{:.2f}".format),
        Column("prefix"),
        *make_part_columns(),
    ]
    table = Table("The length of training", note, columns)
    for steps in LENGTHS:
        tokens = compute_text_tokens(measured, steps) / 1e6
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
    """Makes the table of the differences to text alone after cooldowns of two lengths."""
    note = (
        "The model trained with a prefix minus text alone with the same fall of the learning rate, "
        f"after {LENGTHS[-1]:,} steps, both used without metadata. The rows of a cooldown of 10% "
        "are repeated from the table above."
    )
    columns = [Column("cooldown"), Column("prefix"), *make_part_columns()]
    table = Table("The length of the cooldown", note, columns)
    for share, ending in (("10%", ""), ("40%", "_40")):
        for prefix in ("url", "constant"):
            arm, against = (f"{name}_{LENGTHS[-1]}{ending}" for name in (prefix, "none"))
            differences = list_differences(measured, arm, against)
            table.rows.append([share, PREFIXES[prefix], *differences])
    return table


def make_control_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences between the host and the other prefixes."""
    note = (
        "The model trained with the host minus the one trained with another prefix of the same "
        "form, both used without metadata, with a cooldown of 10%."
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
        "Models after 1,296 steps at the constant rate, before any cooldown, used with the prefix "
        "of their training; minus the same model used without a prefix, which it has never seen, "
        "and minus text alone after as many steps."
    )
    columns = [Column("prefix"), Column("minus"), *make_part_columns()]
    table = Table("The prefix at inference", note, columns)
    for against, label in (("", "same model, no prefix"), ("none", "text alone")):
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
    scores = {arm: [all_scores[arm, seed] for seed in results.seeds] for arm in labels}
    yield from make_task_table(scores, labels, study.baseline).iterate_markdown()

    baseline_scores = scores[study.baseline]
    counts = {score.task: len(score.correct) for score in baseline_scores[0].scores}
    questions = ", ".join(f"`{task}`: {count}" for task, count in counts.items())
    accuracies = compute_accuracies_by_host(
        baseline_scores, "bsmeta_site", max(study.downstream.shots)
    )
    best_host, *_, worst_host = sorted(accuracies, key=accuracies.__getitem__, reverse=True)
    yield (
        f"Models of {LENGTHS[-1]:,} steps on the [tasks of held-out pages]"
        f"(downstream.md#tasks-of-held-out-pages), with four choices ({questions} questions). "
        "Accuracy is the mean over seeds. Differences to text alone are paired by seed and by "
        "question; bits are those of the right answers, and fewer are better. 95% intervals over "
        "seeds and questions. Guessing is right in a quarter of the questions. The answers of "
        "`bsmeta_site` are hosts, which only the model trained with them was given. Its accuracy "
        "depends on which host a model prefers: with five examples, text alone is right for "
        f"{accuracies[best_host]:.0%} of the pages of {best_host} and {accuracies[worst_host]:.0%} "
        f"of {worst_host}."
    )


def make_task_table(
    scores_by_arm: Mapping[str, Sequence[TaskScores]], labels: Mapping[str, str], baseline: str
) -> Table:
    """Makes the table of accuracies, and of the bits of the right answers minus the baseline's.

    Args:
        scores_by_arm: The scores of each seed of an arm.
        labels: The names of the arms in the table.
    """
    scores = {arm: [seed.scores for seed in runs] for arm, runs in scores_by_arm.items()}
    table = make_study_table(scores, labels, baseline).drop_columns("prompt", "of the prompt")
    arms = {label: arm for arm, label in labels.items()}

    columns = [*table.columns, Column(f"bits per byte, to {labels[baseline]}", SIGNED)]
    rows = []
    for row in table.rows:
        task, shots, label = row[:3]
        estimates = [
            estimate_answer_bits(scores_by_arm[arm], str(task), int(str(shots)))
            for arm in (arms[str(label)], baseline)
        ]
        rows.append([*row, None if label == labels[baseline] else estimates[0] - estimates[1]])
    return Table("Tasks", "", columns, rows)


def estimate_answer_bits(runs: Sequence[TaskScores], task: str, shots: int) -> Estimate:
    """Estimates the bits per byte of the right answers to a task."""
    scores = [get_score(run, task, shots) for run in runs]
    return estimate_ratio(
        np.array([score.bits for score in scores]), np.array(scores[0].sizes, np.float64)
    )


def compute_accuracies_by_host(
    runs: Sequence[TaskScores], task: str, shots: int
) -> dict[str, float]:
    """Computes the accuracy over seeds on the questions about each host's pages."""
    scores = [get_score(run, task, shots) for run in runs]
    correct = np.mean([score.correct for score in scores], axis=0)
    hosts = np.array(scores[0].hosts)
    return {str(host): float(correct[hosts == host].mean()) for host in np.unique(hosts)}


def get_score(run: TaskScores, task: str, shots: int) -> Score:
    """Returns a run's score on a task, without a prompt."""
    score = run.get(task, shots, "")
    assert score is not None, f"{task}, {shots} examples"
    return score


def describe_designs(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the seeds by design, the control variate, and the data factor."""
    designs = [*compare_designs(measured)]
    for name, words in PILOTS.items():
        pilot, _ = load_measurements(load_study(STUDIES / f"{name}.yaml"))
        designs.append(Design(words, compare_later_bytes(pilot, "url", "none")))
    yield from make_design_table(designs).iterate_markdown()

    control = regress_on_training_loss(measured)
    yield (
        "**The training loss as a control variate.** Over seeds, the difference in the first row "
        f"correlates at {control.correlation:.2f} with that of the training losses in the "
        f"cooldown; the regression leaves a deviation of {control.deviation:.4f} "
        f"({control.interval.low:.4f} to {control.interval.high:.4f}). This saves no seeds, "
        "because the mean of the control is not known either: estimated from the same seeds, it "
        "leaves the error as it is."
    )

    tokens, bits = estimate_bits_by_length(measured)
    (factor,) = fit_effective_data_factors(tokens, bits)
    factors_by_length = fit_effective_data_factors(tokens, bits, by_length=True)
    factors = ", ".join(map(format_factor, factors_by_length))
    lengths = ", ".join(f"{steps:,}" for steps in LENGTHS)
    yield (
        f"**The effective-data factor.** From byte {FIRST_BYTE} on, without metadata, one power "
        "law of the text tokens is fitted to all lengths of text alone and of training with the "
        "host, whose tokens count by a factor; each seed has its own level, to which the curves "
        f"fall. The factor is {format_factor(factor)}, with a 95% interval over seeds (jackknife). "
        "A factor of 1 means that metadata is worth nothing, 1.1 that the same bits per byte need "
        f"one text token in eleven less. With a factor for each length ({lengths} steps), which "
        f"leaves no residuals, they are {factors}."
    )


def format_factor(factor: Factor) -> str:
    """Formats a factor with its interval."""
    return f"{factor.value:.2f} ({factor.low:.2f} to {factor.high:.2f})"


def describe_conditions(study: StudyConfig, results: Results) -> Iterator[str]:
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
    significant = [test for test in tests if test.p_value is not None and test.p_value <= 0.05]
    factors = " and ".join(dict.fromkeys(test.factor for test in tests))
    yield (
        f"The {len(results.claims)} claims and the differences of the other {len(study.arms) - 1} "
        f"arms to text alone of {LENGTHS[-1]:,} steps are tested against the {factors} of the "
        f"seeds (permutations of {len(results.seeds)} seeds): of {len(tests)} tests, "
        f"{len(significant)} have p ≤ 0.05, and one in twenty would by chance."
    )
    if significant:
        yield "\n".join(
            f"- {escape_sentence(test.name)}, by {test.factor}: p = {test.p_value:.2g}"
            for test in significant
        )


def describe_limits(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the conditions under which other results are to be expected."""
    tokens = compute_text_tokens(measured, LENGTHS[-1])
    shares = compute_host_shares(measured)
    host_bits = -(shares * np.log2(shares)).sum()
    yield "## What this does not show"
    yield (
        "Anything about models of a billion weights, about training on more than "
        f"{tokens / 1e6:.1f} million text tokens, or about text of other sites: all pages are "
        f"documentation, and their host tells {host_bits:.1f} bits, which of {len(shares)} sites. "
        "Unlike in MeCo, pages are split and not truncated, which would need three passes over the "
        "text, and the learning rate falls linearly from a constant and not along a cosine, so "
        "that one run yields several lengths."
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

    yield "It prints the differences with their intervals and p-values, uncorrected:"
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
    results = compute_results(study)
    measured, _ = load_measurements(study)

    PAGE.write_text(make_page(study, results, measured), encoding="utf-8")
    figures.save_figure(draw_claim_plot(results), IMAGES / "when_metadata_claims.png")
    figures.save_figure(draw_length_plot(measured), IMAGES / "when_metadata_lengths.png")
    print(f"written: {PAGE.relative_to(REPOSITORY)} and its pictures")
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
