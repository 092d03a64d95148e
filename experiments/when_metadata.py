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
    compare_designs,
    compare_factors,
    compare_later_bytes,
    compute_token_overhead,
    estimate_bits_by_length,
    fit_effective_data_factors,
    make_design_table,
    make_factor_table,
    regress_on_training_loss,
)

from bsmeta.core.errors import DataError
from bsmeta.core.process import run_and_report
from bsmeta.report import figures
from bsmeta.report.figures import SeriesStyle
from bsmeta.report.inference import correct_p_values
from bsmeta.report.markdown import escape_sentence, format_code_block
from bsmeta.report.page import Column, Table
from bsmeta.report.palette import INK
from bsmeta.studies.claim_report import format_sentences
from bsmeta.studies.claims import SUPPORTED, UNDECIDED, Claim
from bsmeta.studies.config import TEXT, WITH, WITHOUT, StudyConfig, load_study
from bsmeta.studies.downstream import make_study_table
from bsmeta.studies.power import compute_power
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

SUMMARIZED_VERDICTS = {
    "later_bytes": UNDECIDED,
    "later_bytes_long_cooldown": UNDECIDED,
    "length": SUPPORTED,
    "content": UNDECIDED,
    "beginnings": SUPPORTED,
    "word": UNDECIDED,
    "control": SUPPORTED,
}
"""The verdicts for which `summarize` and the sentences beside the tables are written."""

WARMUP_STEPS = 36
FINAL_RATE = 0.1
"""The learning rate at the end of a cooldown, relative to the constant rate before it."""

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
    """Makes the Markdown of the page.

    Raises:
        DataError: If the verdicts are others than those that the text is written for.
    """
    verdicts = {claim.name: claim.verdict for claim in results.claims}
    if verdicts != SUMMARIZED_VERDICTS:
        raise DataError(f"the page is written for other verdicts than {verdicts}; rewrite its text")

    answers = [
        f"{number}. {escape_sentence(line)}"
        for number, line in enumerate(format_sentences(results), start=1)
    ]
    blocks = [
        "# When does metadata help a model that is used without it?",
        *describe_study(study, results, measured),
        "## The declared claims",
        "Each figure is a difference: the first model named minus the second (text alone, if there "
        "is none), without metadata and over all bytes unless the claim says otherwise. The third "
        "is the difference after 360 steps minus the difference after 1,440. Below 0 is as "
        "claimed. Each interval is for one claim alone; verdicts are corrected for "
        f"{len(results.claims)} claims ([how](verdicts.md#what-is-computed)).",
        "\n".join(answers),
        "![the declared claims with their intervals](images/when_metadata_claims.png)",
        *make_precision_table(results).iterate_markdown(),
        "Apart from the figures of the claims, which recur in them, the sections below are "
        "exploratory: they were not declared, and no interval or p-value is corrected for the "
        "number of comparisons unless the text says so.",
        *describe_lengths(measured),
        *describe_cooldowns(measured),
        *describe_content(measured),
        *describe_inference(measured),
        *describe_tasks(study, results),
        *describe_designs(measured),
        *describe_factors(measured),
        *describe_conditions(study, results),
        *describe_limits(measured),
        *describe_recomputation(results),
    ]
    return "\n\n".join(blocks) + "\n"


def describe_study(
    study: StudyConfig, results: Results, measured: StudyMeasurements
) -> Iterator[str]:
    """Yields the question, the answer in short, and the setting."""
    yield (
        "A model is trained with the host of each page before its text, and used without it. "
        "[MeCo](recipes.md#meco) reports higher scores on tasks, at a perplexity that is no lower. "
        "At a thousandth of its size, with the full URL and no BOS token, the bits per byte "
        "[were higher](studies.md#what-meco_small-found) after one pass over the text. This study "
        "asks how that depends on the length of training, the length of the last phase without "
        "metadata, the content of the prefix, and the position in a page."
    )
    yield summarize(measured)

    longest = LENGTHS[-1]
    tokens_per_step = compute_text_tokens(measured, longest) / longest
    shares = compute_host_shares(measured)
    yield (
        "The setting is close to MeCo's: a BOS token, `URL: host` and a blank line before each "
        "piece of a page, and a last phase without metadata (the cooldown), in which the learning "
        "rate falls to a tenth. Each seed trains four models of 1.3 million weights at a constant "
        f"rate, with the same text in the same steps of about {round(tokens_per_step, -1):,.0f} "
        "text tokens: text alone; the host; the host of another page in the same form, which is "
        f"the right one in {(shares**2).sum():.0%} of the pages if hosts have the shares of the "
        "held-out pages; and a constant prefix, frequent words without `URL:` and without a blank "
        "line, in as many tokens as the line of the page's host (so its length still depends on "
        "the host). The prefixes are read in addition to the text, and are "
        f"{compute_token_overhead(measured, 'url', longest) - 1:.1%} more tokens."
    )
    yield (
        "From these runs, finished models of "
        f"{', '.join(f'{steps:,}' for steps in LENGTHS[:-1])} and {longest:,} steps branch off, "
        "whose last 10% of the steps are the cooldown, and, except with the hosts of other pages, "
        f"models of {longest:,} steps with a cooldown of 40%. In text alone, the learning rate "
        f"falls in the same way. {longest:,} steps are one pass over the training text."
    )

    hours = [sum_training_hours(measured, seed) for seed in measured.seeds]
    seeds = ", ".join(map(str, results.seeds))
    yield (
        f"The models are compared on {results.documents:,} held-out pages of {results.hosts} sites "
        f"({results.bytes:,} bytes; the first {study.measure.max_characters:,} characters of each "
        "page). `experiments/studies/when_metadata.yaml` was committed with its claims before the "
        "first run. It replaced a declaration with the seeds of the pilots, two runs of which had "
        f"been trained and none measured. Seeds: {seeds}. A seed took {min(hours):.1f} to "
        f"{max(hours):.1f} hours of wall time, in one thread beside other work, on "
        f"{describe_machines(measured)}."
    )


def summarize(measured: StudyMeasurements) -> str:
    """Writes the answer of the study in a paragraph."""
    short, middle, longest = LENGTHS
    early, between, late = (
        compare_later_bytes(measured, f"url_{steps}", f"none_{steps}") for steps in LENGTHS
    )
    share = -early.value / estimate_level(measured, f"none_{short}", [FIRST_BYTE])
    beginnings, _ = list_differences(measured, f"url_{longest}", f"none_{longest}")
    overhead = compute_token_overhead(measured, "url", short)
    factor, *_ = fit_effective_data_factors(
        *estimate_bits_by_length(measured, "url"), by_length=True
    )
    return (
        "**In short**, at this size and for the same text: a model that is used without metadata "
        f"gains from having been trained with the host after {short} and {middle} steps, and not "
        f"after {longest:,}. From byte {FIRST_BYTE} on, it needs {-early.value:.3f} bits per byte "
        f"less than text alone after {short} steps ({share:.1%}) and {-between.value:.3f} less "
        f"after {middle}; after {longest:,}, a gain of more than {-late.low:.4f} is excluded. That "
        f"the gain shrinks from {short} to {longest:,} steps was declared, and is supported. The "
        f"prefixes are {overhead - 1:.1%} more tokens; per token read, the host's effective-data "
        f"factor after {short} steps is {factor.scale(1 / overhead)}, so text alone may be as good "
        "for the same number of all tokens. After "
        f"{longest:,} steps, the model trained with the host is worse in the first {FIRST_BYTE} "
        f"bytes of a page, by {beginnings.value:.3f}, as declared, and not measurably so if the "
        "cooldown has 40% of the steps in place of 10%; but then, all models are worse. "
        f"From byte {FIRST_BYTE} on, the hosts of other pages and frequent words in place of the "
        "host gain as much: there is no sign that what the host says contributes. The study does "
        "not say why a prefix helps early."
    )


def estimate_level(measured: StudyMeasurements, arm: str, byte_range: Sequence[int]) -> float:
    """Estimates the mean bits per byte of an arm in a part of the pages, without metadata."""
    return measured.estimate(arm, WITHOUT, bins=measured.select_bins(byte_range)).value


def make_precision_table(results: Results) -> Table:
    """Makes the table of each claim's power, as declared and with the measured precision."""
    note = (
        "Power: the probability that a claim is supported if its difference is the smallest of "
        "interest, at the first step of Holm's correction: as predicted from the pilots when the "
        "study was declared, and with the deviation over seeds that was then measured. An "
        "undecided claim of low power says little."
    )
    columns = [
        Column("claim", str),
        Column("smallest difference of interest", str),
        Column("declared power", "{:.0%}".format),
        Column("power as measured", "{:.0%}".format),
    ]
    table = Table("How precise are they?", note, columns)
    for number, claim in enumerate(results.claims, start=1):
        smallest = claim.config.smallest_difference
        table.rows.append([number, smallest, claim.power, compute_measured_power(claim)])
    return table


def compute_measured_power(claim: Claim) -> float:
    """Computes the power of a claim from its measured deviation and its error over documents."""
    assert claim.effect is not None
    assert claim.config.smallest_difference is not None
    return compute_power(
        claim.config.smallest_difference,
        claim.effect.deviation,
        claim.effect.document_error,
        len(claim.seeds),
        claim.count,
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
    """Names the number of machines that trained the seeds, by host name, and their processors."""
    starts = [start for seed in measured.seeds for start in list_starts(measured, seed)]
    count = len({start["machine"] for start in starts})
    processors = " and ".join(sorted({start["processor"] for start in starts}))
    machines = "machines of one host name" if count == 1 else f"{count} machines"
    return f"{machines} ({processors})"


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
        Column("steps", str),
        Column("million text tokens", "{:.2f}".format),
        Column("prefix"),
        *make_part_columns(),
    ]
    table = Table("The length of training", note, columns)
    for steps in LENGTHS:
        tokens = compute_text_tokens(measured, steps) / 1e6
        for prefix, label in PREFIXES.items():
            differences = list_differences(measured, f"{prefix}_{steps}", f"none_{steps}")
            table.rows.append([f"{steps:,}", tokens, label, *differences])

    first, last = LENGTHS[0], LENGTHS[-1]
    for prefix, label in PREFIXES.items():
        changes = subtract_differences(
            list_differences(measured, f"{prefix}_{first}", f"none_{first}"),
            list_differences(measured, f"{prefix}_{last}", f"none_{last}"),
        )
        table.rows.append([f"{first} minus {last:,}", None, label, *changes])
    return table


def subtract_differences(
    differences: Sequence[Estimate], others: Sequence[Estimate]
) -> list[Estimate]:
    """Subtracts the differences of `list_differences` from each other, part by part."""
    return [first - second for first, second in zip(differences, others, strict=True)]


def describe_lengths(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the differences after each length of training, and its picture."""
    heading, *blocks = make_length_table(measured).iterate_markdown()
    yield heading
    yield (
        "![what training with a prefix changes, by length of training]"
        "(images/when_metadata_lengths.png)"
    )
    yield from blocks

    levels = [
        ", ".join(f"{estimate_level(measured, f'none_{steps}', part):.3f}" for steps in LENGTHS)
        for part in PARTS.values()
    ]
    lengths = ", ".join(f"{steps:,}" for steps in LENGTHS)
    cooldowns = ", ".join(str(steps // 10) for steps in LENGTHS)
    yield (
        f"Text alone needs {levels[1]} bits per byte from byte {FIRST_BYTE} on after {lengths} "
        f"steps, and {levels[0]} before. The gain shrinks with every prefix, so the third claim is "
        "not about the host alone. The lengths also differ in the text that was seen, in the steps "
        f"of the cooldown ({cooldowns}), and in the share of the {WARMUP_STEPS} steps of warmup."
    )


def describe_cooldowns(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the cooldowns, and how a longer cooldown changes each model."""
    yield from make_cooldown_table(measured).iterate_markdown()

    longest = LENGTHS[-1]
    alone, with_host = (
        " and ".join(
            f"{difference.value:.4f}"
            for difference in list_differences(measured, f"{arm}_{longest}_40", f"{arm}_{longest}")
        )
        for arm in ("none", "url")
    )
    yield (
        "A longer cooldown takes away the loss at the beginnings relative to text alone, but the "
        "longer fall of the learning rate makes every model worse: with 40%, text alone needs "
        f"{alone} bits per byte more in the two parts than with 10%, and the model trained with "
        f"the host {with_host}."
    )


def format_with_interval(estimate: Estimate) -> str:
    """Formats a difference with its interval, as in the tables."""
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def make_cooldown_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences to text alone after cooldowns of two lengths."""
    note = (
        "The model trained with a prefix minus text alone with the same fall of the learning rate, "
        f"after {LENGTHS[-1]:,} steps, both used without metadata. The rows of a cooldown of 10% "
        "are repeated from the table above."
    )
    columns = [Column("cooldown"), Column("prefix"), *make_part_columns()]
    table = Table("The length of the cooldown", note, columns)
    differences = {
        (prefix, ending): list_differences(
            measured, f"{prefix}_{LENGTHS[-1]}{ending}", f"none_{LENGTHS[-1]}{ending}"
        )
        for ending in ("", "_40")
        for prefix in ("url", "constant")
    }
    for (prefix, ending), by_part in differences.items():
        table.rows.append(["40%" if ending else "10%", PREFIXES[prefix], *by_part])
    for prefix in ("url", "constant"):
        changes = subtract_differences(differences[prefix, "_40"], differences[prefix, ""])
        table.rows.append(["40% minus 10%", PREFIXES[prefix], *changes])
    return table


def describe_content(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the prefixes' contents, and how much the host can add."""
    yield from make_control_table(measured).iterate_markdown()

    steps = LENGTHS[0]
    to_constant, to_shuffled = (
        compare_later_bytes(measured, f"url_{steps}", f"{prefix}_{steps}")
        for prefix in ("constant", "shuffled")
    )
    yield (
        f"After {steps} steps, where there is a gain from byte {FIRST_BYTE} on, what the host says "
        f"adds at most {-to_shuffled.low:.4f} bits per byte to what the hosts of other pages gain, "
        f"and at most {-to_constant.low:.4f} to what the constant prefix gains."
    )


def make_control_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences between the host and the other prefixes."""
    note = (
        "The model trained with the host minus the one trained with another prefix, both used "
        "without metadata, with a cooldown of 10%. The hosts of other pages have the same form, "
        "the constant prefix does not."
    )
    columns = [Column("steps", "{:,}".format), Column("host, minus"), *make_part_columns()]
    table = Table("The content of the prefix", note, columns)
    for steps in LENGTHS:
        for prefix in ("constant", "shuffled"):
            differences = list_differences(measured, f"url_{steps}", f"{prefix}_{steps}")
            table.rows.append([steps, PREFIXES[prefix], *differences])
    return table


def describe_inference(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the prefix at inference, and what the content of the host adds to it."""
    yield from make_inference_table(measured).iterate_markdown()

    gains = [list_differences(measured, prefix, prefix, WITH) for prefix in ("url", "constant")]
    _, later = subtract_differences(*gains)
    yield (
        f"Most of what the prefix gains in the first {FIRST_BYTE} bytes repairs what the model has "
        f"lost by never having begun a page without it. From byte {FIRST_BYTE} on, the content of "
        "the host helps a model to which it is shown: minus the gain of the constant prefix, the "
        f"host's is {format_with_interval(later)}."
    )


def make_inference_table(measured: StudyMeasurements) -> Table:
    """Makes the table of the differences that a prefix at inference makes."""
    note = (
        "Models after 1,296 steps at the constant rate, before any cooldown, used with the prefix "
        "of their training (the hosts of other pages, too, are those of other held-out pages) or "
        "without one, which they have never seen; minus the same model or text alone after as many "
        "steps."
    )
    columns = [Column("prefix"), Column("difference"), *make_part_columns()]
    table = Table("The prefix at inference", note, columns)
    comparisons = {
        "used with it, minus without": (WITH, None),
        "used with it, minus text alone": (WITH, "none"),
        "used without, minus text alone": (WITHOUT, "none"),
    }
    for label, (mode, against) in comparisons.items():
        for prefix, name in PREFIXES.items():
            differences = list_differences(measured, prefix, against or prefix, mode)
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

    counts = {score.task: len(score.correct) for score in scores[study.baseline][0].scores}
    questions = ", ".join(f"`{task}`: {count}" for task, count in counts.items())
    alone, with_host = (
        describe_accuracies_by_host(scores[arm], "bsmeta_site", max(study.downstream.shots))
        for arm in (study.baseline, f"url_{LENGTHS[-1]}")
    )
    yield (
        f"Models of {LENGTHS[-1]:,} steps on the [tasks of held-out pages]"
        f"(downstream.md#tasks-of-held-out-pages), with four choices ({questions} questions). "
        "Accuracy is the mean over seeds. Differences from text alone are paired by seed and by "
        "question; bits are those of the right answers, and fewer are better. 95% intervals over "
        "seeds and questions. Guessing is right in a quarter of the questions, and so are all "
        "models in `bsmeta_title`, whose accuracy can therefore show nothing. The answers of "
        "`bsmeta_site` are hosts, which only the model trained with them was given. Its accuracy "
        "depends on which host a model prefers: with five examples, text alone is right for "
        f"{alone}, and the model trained with the host for {with_host}. So nothing shows that a "
        "model knows the hosts of these pages."
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


def describe_accuracies_by_host(runs: Sequence[TaskScores], task: str, shots: int) -> str:
    """Names the hosts on whose pages an arm is right most often and least often."""
    accuracies = compute_accuracies_by_host(runs, task, shots)
    best_host, *_, worst_host = sorted(accuracies, key=accuracies.__getitem__, reverse=True)
    return (
        f"{accuracies[best_host]:.0%} of the pages of {best_host} and {accuracies[worst_host]:.0%} "
        f"of {worst_host}"
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
    """Yields the table of the seeds by design, and the control variate."""
    designs = [*compare_designs(measured)]
    for name, words in PILOTS.items():
        pilot, _ = load_measurements(load_study(STUDIES / f"{name}.yaml"))
        designs.append(Design(words, compare_later_bytes(pilot, "url", "none")))
    yield from make_design_table(designs).iterate_markdown()

    control = regress_on_training_loss(measured)
    yield (
        "**The training loss as a control variate.** Over seeds, the difference in the first row "
        f"correlates at {control.correlation:.2f} ({control.correlation_interval.low:.2f} to "
        f"{control.correlation_interval.high:.2f}) with the difference of the mean training "
        "losses of every twelfth step of the cooldown; the regression leaves a deviation of "
        f"{control.deviation:.4f} ({control.interval.low:.4f} to {control.interval.high:.4f}). "
        "This saves no seeds, because the mean of the control is not known either: estimated from "
        "the same seeds, it leaves the error as it is."
    )


def describe_factors(measured: StudyMeasurements) -> Iterator[str]:
    """Yields the table of the effective-data factors, and why one factor does not fit."""
    yield from make_factor_table(measured, PREFIXES).iterate_markdown()

    tokens, bits = estimate_bits_by_length(measured, "url")
    (factor,) = fit_effective_data_factors(tokens, bits)
    yield (
        f"One factor for all lengths would be {factor} per text token for the host. But the "
        f"factors differ: the factor after {LENGTHS[0]} steps, divided by that after "
        f"{LENGTHS[-1]:,}, is {compare_factors(tokens, bits)}."
    )


def describe_conditions(study: StudyConfig, results: Results) -> Iterator[str]:
    """Yields the claims with hosts as the unit, and the tests of machine and order."""
    yield "## Sites and order"
    differences = "; ".join(
        f"({number}) {format_with_interval(claim.effect)}"
        for number, claim in enumerate(results.by_host, start=1)
        if claim.effect is not None
    )
    yield (
        f"The {results.documents:,} pages are of {results.hosts} sites. With sites as the unit of "
        "the error ([how](verdicts.md#documents-or-hosts)), which the study did not declare, the "
        f"differences of the claims have these intervals: {differences}. So few sites make "
        "them rough."
    )

    tests = [test for test in results.conditions if test.p_value is not None]
    significant = [test for test in tests if test.p_value is not None and test.p_value <= 0.05]
    assert {test.factor for test in tests} == {"order"}, "seeds of several machines"
    yield (
        "All runs have the same host name, so only the order can be tested: the "
        f"{len(results.claims)} claims and the differences of the other {len(study.arms) - 1} arms "
        f"from text alone of {LENGTHS[-1]:,} steps are compared between the seeds that were "
        "started first and last (permutation test). By chance, "
        f"{len(tests) * 0.05:.2f} of {len(tests)} tests would have p ≤ 0.05; found: "
        f"{len(significant)}."
    )
    corrected_p_values = correct_p_values([test.p_value or 0.0 for test in tests])
    lines = [
        f"{test.name}: {' and '.join(f'{mean:+.4f}' for mean in test.means.values())} "
        f"({' and '.join(test.means)}), p = {test.p_value:.2g}; {corrected:.2g} after Holm's "
        f"correction for the {len(tests)} tests"
        for test, corrected in zip(tests, corrected_p_values, strict=True)
        if test in significant
    ]
    if lines:
        yield "\n".join(f"- {escape_sentence(line)}" for line in lines)


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
        "that one run yields several lengths. The whole fall of the rate is therefore in the phase "
        f"without metadata, which has {compute_cooldown_share(0.1):.1%} of the area under the "
        f"learning rate ({compute_cooldown_share(0.4):.0%} if it has 40% of the steps), beside "
        "2.0% in MeCo."
    )


def compute_cooldown_share(steps_share: float) -> float:
    """Computes the share of the area under the learning rate that the cooldown has.

    Args:
        steps_share: Its share of the longest model's steps.
    """
    cooldown = steps_share * LENGTHS[-1] * (1 + FINAL_RATE) / 2
    before = (1 - steps_share) * LENGTHS[-1] - WARMUP_STEPS / 2
    return cooldown / (before + cooldown)


def describe_recomputation(results: Results) -> Iterator[str]:
    """Yields how to compute the claims without this package."""
    yield "## Recompute the claims"
    yield (
        "`python experiments/when_metadata.py` writes this page and its pictures from the "
        "committed measurements. To decide the claims with numpy and scipy alone, set `FOLDER` in "
        "[the script for `meco_small`](verdicts.md#recompute-a-verdict) to "
        "`experiments/studies/results/when_metadata`, and replace everything from `none, url, "
        "later =` to the end of the list by these differences, which are in the order of the "
        "claims:"
    )
    yield format_code_block(RECOMPUTATION, "python")

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
