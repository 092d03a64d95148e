"""Prints what became of the validation errors of a trained corrector, as Markdown.

    python experiments/benchmarks/spelling_errors.py runs/sec

Run it where the corrector was trained, because it reads the data sets of the run. Each validation
sample gets realistic and, in another copy, artificial errors; the other settings of the noise are
those of the run, but no sample stays clean. The thresholds are chosen on the same samples, as in
training. The first table has the outcomes of the errors and the F1 of two oracles, the second
compares scoring in one, two and three passes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bsmeta.config.saved_runs import read_saved_config
from bsmeta.core.process import run_and_report
from bsmeta.report.inference import Estimate
from bsmeta.report.markdown import format_table
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import locate_model
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.correction import (
    FIRST_CORRECTION,
    CandidateCorrection,
    Choice,
    choose_likeliest,
    correct_likely_words,
    find_best_threshold,
    find_right_words,
    raise_thresholds,
)
from bsmeta.tasks.spelling.corrections import Counts, compare_f1
from bsmeta.tasks.spelling.inputs import Words
from bsmeta.tasks.spelling.metrics import format_share
from bsmeta.tasks.spelling.samples import VALIDATION_EPOCH, Pair, is_small
from bsmeta.tasks.spelling.word_kinds import find_word_kind

ERRORS = ("realistic", "artificial")
PASSES = 3
RESAMPLES = 2000
BATCH_TEXTS = 25
SHORT_WORD = 3
"""Largest number of letters of a short word, which only its context tells from others."""

Scoring = Callable[[np.ndarray], np.ndarray]

SCORINGS: dict[str, Scoring] = {
    "two passes (used)": lambda logs: logs[1],
    "one pass": lambda logs: logs[0],
    "three passes": lambda logs: logs[2],
    "mean probability of the first two": lambda logs: np.logaddexp(*logs[:2]) - np.log(2),
}
"""Computes the log-probabilities of the corrections of a word from those of each pass; the others
are compared with the first."""


class WordScores(NamedTuple):
    """The corrections of a word.

    Attributes:
        texts: The corrections.
        logs: Their log-probabilities: float32 [passes, corrections].
    """

    texts: Sequence[str]
    logs: np.ndarray

    def choose(self, scoring: Scoring) -> Choice:
        """Returns the likeliest correction."""
        if not self.texts:
            return Choice("", 0.0)
        logs = scoring(self.logs)
        best = int(logs.argmax())
        return Choice(self.texts[best], float(np.exp(logs[best])))


class ScoredTexts(NamedTuple):
    """Texts, and the corrections of their words."""

    pairs: Sequence[Pair]
    scores: Sequence[Sequence[WordScores]]


@dataclass
class Outcomes:
    """The numbers of errors by what became of them, and of changed words.

    Attributes:
        corrected: Corrected errors.
        other_chosen: Errors of which another correction is likelier than the right one.
        short: Errors among `other_chosen` in words of at most `SHORT_WORD` letters.
        other_case: Errors among `other_chosen` whose likeliest correction is right but for case.
        below_threshold: Errors whose likeliest correction is right, but not made.
        unlisted: Errors whose right word is not among the corrections.
        changed: Changed words, right or wrong.
        changed_listed: Changed errors whose right word is among the corrections.
    """

    corrected: int = 0
    other_chosen: int = 0
    short: int = 0
    other_case: int = 0
    below_threshold: int = 0
    unlisted: int = 0
    changed: int = 0
    changed_listed: int = 0

    @property
    def errors(self) -> int:
        """Number of errors."""
        return self.corrected + self.other_chosen + self.below_threshold + self.unlisted

    @property
    def f1(self) -> float:
        """F1 of the corrections."""
        return _compute_f1(self.corrected, self.changed, self.errors)

    @property
    def best_choice_f1(self) -> float:
        """F1 if each changed error became its right word, where that is among the corrections."""
        return _compute_f1(self.changed_listed, self.changed, self.errors)

    @property
    def best_f1(self) -> float:
        """F1 if each error with its right word among the corrections were corrected, and no more.

        This is the limit that the candidates set.
        """
        listed = self.errors - self.unlisted
        return _compute_f1(listed, listed, self.errors)


def _compute_f1(hits: int, changed: int, errors: int) -> float:
    return 2 * hits / max(changed + errors, 1)


def is_made(word: str, choice: Choice, thresholds: Mapping[str, float]) -> bool:
    """Returns whether the correction of a word reaches the threshold of its kind."""
    return choice.probability > thresholds.get(find_word_kind(word), 1.0)


def choose_all(scores: Sequence[Sequence[WordScores]], scoring: Scoring) -> list[list[Choice]]:
    """Returns the likeliest correction of each word of each text."""
    return [[word_scores.choose(scoring) for word_scores in text] for text in scores]


def iterate_words(
    scored_texts: ScoredTexts, scoring: Scoring
) -> Iterator[list[tuple[str, str, WordScores, Choice]]]:
    """Yields the words of each text, each with its replacement, its corrections and the likeliest.

    Words that are merged with others have no replacement, and are left out.
    """
    for pair, text_scores in zip(scored_texts.pairs, scored_texts.scores, strict=True):
        words: list[tuple[str, str, WordScores, Choice]] = []
        right_words = find_right_words(pair)
        for word, right, scores in zip(pair.source, right_words, text_scores, strict=True):
            if right is not None:
                words.append((word, right, scores, scores.choose(scoring)))
        yield words


def count_outcomes(
    scored_texts: ScoredTexts, scoring: Scoring, thresholds: Mapping[str, float]
) -> Outcomes:
    """Counts what became of the errors of texts.

    Args:
        thresholds: The probability above which a correction is made, by kind of word.
    """
    outcomes = Outcomes()
    for text in iterate_words(scored_texts, scoring):
        for word, right, scores, choice in text:
            made = is_made(word, choice, thresholds)
            outcomes.changed += made
            if word == right:
                continue

            if right not in scores.texts:
                outcomes.unlisted += 1
                continue
            outcomes.changed_listed += made
            if choice.text != right:
                outcomes.other_chosen += 1
                outcomes.short += sum(map(str.isalpha, word)) <= SHORT_WORD
                outcomes.other_case += choice.text.lower() == right.lower()
            elif made:
                outcomes.corrected += 1
            else:
                outcomes.below_threshold += 1
    return outcomes


def count_corrections(
    scored_texts: ScoredTexts, scoring: Scoring, thresholds: Mapping[str, float]
) -> Counts:
    """Counts right and wrong corrections in each text, for intervals over the texts."""
    rows: list[tuple[int, int, int, int, int, int]] = []
    for text in iterate_words(scored_texts, scoring):
        error_count = hits = changed = 0
        for word, right, _, choice in text:
            made = is_made(word, choice, thresholds)
            error_count += word != right
            changed += made
            hits += made and choice.text == right
        rows.append((hits, changed - hits, error_count - hits, changed, len(text), 0))
    return Counts.from_rows(rows)


def score_texts(
    task: CandidateCorrection, model: nn.Module, texts: Sequence[Words]
) -> list[list[WordScores]]:
    """Scores the corrections of each word in `PASSES` passes; texts are not cut into windows."""
    device = torch.device("cpu")
    scores: list[list[WordScores]] = []
    for start in range(0, len(texts), BATCH_TEXTS):
        batch = texts[start : start + BATCH_TEXTS]
        neighbors: Sequence[Words] = batch
        pass_logs: list[np.ndarray] = []
        for _ in range(PASSES):
            rows, logs = task.score_beside(model, batch, neighbors, device)
            neighbors = correct_likely_words(batch, choose_likeliest(rows, logs))
            pass_logs.append(logs)

        logs = np.stack(pass_logs)
        words: list[WordScores] = []
        for candidates, first, end in zip(rows.texts, rows.starts, rows.starts[1:], strict=False):
            corrections = candidates[FIRST_CORRECTION:]
            words.append(WordScores(corrections, logs[:, first + FIRST_CORRECTION : end]))
        remaining_words = iter(words)
        scores += [[*islice(remaining_words, len(text))] for text in batch]
    return scores


class Variant(NamedTuple):
    """A scoring with its thresholds, and its share of changed words of clean text."""

    scoring: Scoring
    thresholds: Mapping[str, float]
    false_alarms: float


def make_variant(
    scoring: Scoring, errors: Sequence[ScoredTexts], clean: ScoredTexts, config: SecConfig
) -> Variant:
    """Chooses the thresholds of a scoring on all errors together, within the false alarms."""
    pairs: list[Pair] = []
    choices: list[list[Choice]] = []
    for errors_of_kind in errors:
        pairs += errors_of_kind.pairs
        choices += choose_all(errors_of_kind.scores, scoring)

    texts = [pair.correct for pair in clean.pairs]
    clean_choices = choose_all(clean.scores, scoring)
    threshold = find_best_threshold(pairs, choices, clean_choices, config.most_false_alarms)
    thresholds = raise_thresholds(threshold, texts, clean_choices, config.most_kind_false_alarms)
    counts = count_corrections(clean, scoring, thresholds)
    return Variant(scoring, thresholds, counts.flagged_rate)


def make_outcome_table(outcomes: Mapping[str, Outcomes]) -> str:
    """Makes the table of what became of the errors, by their kind."""
    heads = (
        "errors",
        "number",
        "F1",
        "corrected",
        "another candidate chosen (of these, up to three letters; only case wrong)",
        "the right one chosen, but below the threshold",
        "right word not among the candidates",
        "F1 if every changed error became the listed right candidate",
        "F1 if every listed error were corrected, without false alarms",
    )
    rows: list[list[str]] = []
    for name, counts in outcomes.items():
        errors, other_chosen = max(counts.errors, 1), max(counts.other_chosen, 1)
        details = f"{counts.short / other_chosen:.0%}; {counts.other_case / other_chosen:.0%}"
        rows.append(
            [
                name,
                f"{counts.errors:,}",
                format_share(counts.f1),
                f"{counts.corrected / errors:.1%}",
                f"{counts.other_chosen / errors:.1%} ({details})",
                f"{counts.below_threshold / errors:.1%}",
                f"{counts.unlisted / errors:.1%}",
                format_share(counts.best_choice_f1),
                format_share(counts.best_f1),
            ]
        )
    return format_table(heads, rows, [False] * len(heads))


def make_scoring_table(
    variants: Mapping[str, Variant], errors: Mapping[str, ScoredTexts], seed: int
) -> str:
    """Makes the table of the scorings; the first is compared with each of the others."""
    rows = [[name] for name in variants]
    heads = ["scoring"]
    for kind, errors_of_kind in errors.items():
        heads += [f"F1 {kind}", "two passes minus it"]
        counts = [
            count_corrections(errors_of_kind, variant.scoring, variant.thresholds)
            for variant in variants.values()
        ]
        scores, differences = compare_f1(counts, resamples=RESAMPLES, seed=seed)
        for row, score, difference in zip(rows, scores, differences, strict=True):
            is_first = row is rows[0]
            row += [format_estimate(score), "" if is_first else format_estimate(difference, "+")]

    heads.append("false alarms")
    for row, variant in zip(rows, variants.values(), strict=True):
        row.append(f"{variant.false_alarms:.2%}")
    return format_table(heads, rows, [False] * len(heads))


def format_estimate(estimate: Estimate, sign: str = "") -> str:
    """Formats an F1, or a difference of two, with its interval."""
    value, low, high = (
        format_share(number, sign) for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def read_config(checkpoint: str) -> tuple[SecConfig, Path]:
    """Reads the configuration of a corrector; returns it with the folder of its model."""
    location = locate_model(checkpoint)
    if location.config is None or not location.has_run_config:
        raise SystemExit(f"{checkpoint}: no config.yaml beside the model; expected a run of sec")

    config = read_saved_config(location.config, TASKS, {})
    if not isinstance(config, SecConfig) or not is_small(config):
        raise SystemExit(
            f"{checkpoint}: a run of {config.task}; expected task=sec with the small model"
        )
    return config, Path(location.model)


def main() -> None:
    """Scores the validation samples, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="a run of task=sec, or a checkpoint in one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    config, folder = read_config(arguments.checkpoint)
    scorer = CandidateCorrection(config)
    model = scorer.load(folder).eval()

    def score(pairs: Sequence[Pair]) -> ScoredTexts:
        return ScoredTexts(pairs, score_texts(scorer, model, [pair.source for pair in pairs]))

    errors: dict[str, ScoredTexts] = {}
    for method in ERRORS:
        noise = replace(config.noise, method=method, clean_share=0.0)
        task = CandidateCorrection(replace(config, noise=noise))
        numbers = task.table.list_numbers("validation")
        pairs = task.make_pairs(numbers, VALIDATION_EPOCH)
        errors[method] = score(pairs)
    clean = score([replace(pair, source=pair.correct) for pair in pairs])

    variants = {
        name: make_variant(scoring, [*errors.values()], clean, config)
        for name, scoring in SCORINGS.items()
    }
    used, *_ = variants.values()
    outcomes = {
        kind: count_outcomes(errors_of_kind, used.scoring, used.thresholds)
        for kind, errors_of_kind in errors.items()
    }
    characters = sum(len(" ".join(pair.correct)) for pair in pairs)
    print(f"{len(pairs):,} validation samples ({characters:,} characters).\n")
    print(make_outcome_table(outcomes), end="\n\n")
    print(make_scoring_table(variants, errors, config.seed), end="\n\n")
    print(f"CPU time: {time.process_time():.0f} s.")


if __name__ == "__main__":
    sys.exit(run_and_report(main))
