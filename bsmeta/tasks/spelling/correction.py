"""The task `sec`: corrects texts. By default, each word is kept, or replaced by one of its
candidates (`Ranker`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
import xxhash
from torch import nn

from bsmeta.config.metric_table import compute_values, select_training_rows
from bsmeta.core.errors import DataError
from bsmeta.core.parsing import decode_json
from bsmeta.data.batch import MicroBatch
from bsmeta.data.text.sentences import find_words
from bsmeta.models.exporting import write_model
from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import CORRECTION, SecConfig
from bsmeta.tasks.spelling.corrections import (
    Correction,
    Counts,
    align_words,
    count_correction_outcomes,
)
from bsmeta.tasks.spelling.corrector import Corrector, TextLoss
from bsmeta.tasks.spelling.inputs import CandidateInputs, Rows, Words, make_row_tensors
from bsmeta.tasks.spelling.metrics import CORRECTION_METRICS, Judged
from bsmeta.tasks.spelling.samples import Pair, Sample, is_small
from bsmeta.tasks.spelling.task import SpellingTask
from bsmeta.tasks.spelling.word_kinds import KINDS, find_word_kind
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss, Metric

MIN_LIKELY_PROBABILITY = 0.5
"""Minimum probability of a correction of the first pass that the second pass reads as context."""
UNCORRECTED_SHARE = 0.3
"""In training: share of the texts whose words are judged beside uncorrected neighbors."""
CORRECTED_SHARE = 0.7
"""In training: share of the errors corrected in the context of the other texts."""

FIRST_CORRECTION = 2
"""Row of a word's first correction, after the word itself and the row for none of them."""
_NONE_ROW = 1


class Choice(NamedTuple):
    """The likeliest correction of a word, and its probability (0 if there is none)."""

    text: str
    probability: float


class _Correction(msgspec.Struct):
    """The content of `CORRECTION`."""

    thresholds: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] | None


class CandidateCorrection(Corrector):
    """Corrects words by choosing among candidates."""

    _measure = "words of the longer text"

    @cached_property
    def _inputs(self) -> CandidateInputs:
        inputs = detector.build_inputs(self._config, self.table, self.noise)
        assert isinstance(inputs, CandidateInputs)
        return inputs

    def _estimate_max_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        word_counts = [
            max(len(sample.source.split()), len(sample.correct.split())) for sample in samples
        ]
        return np.array(word_counts, np.int64)

    def build_model(self) -> nn.Module:
        return detector.build_detector(self._config, self._inputs)

    def _fits(self, words: Sequence[str], room: int) -> bool:
        return len(words) <= room

    def _build_micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        """Builds a micro-batch.

        `labels`, int64 [labeled words], has the rows of the right candidates. Words merged with
        others have none.
        """
        sources = [pair.source for pair in pairs]
        rows = self._inputs.build_rows(sources, [*map(correct_most_errors, pairs)], trains=True)
        tensors = make_row_tensors(sources, rows)
        labels = label_rows(pairs, rows)
        tensors["labels"] = torch.from_numpy(labels[labels >= 0])

        tokens = sum(map(len, sources))
        errors = 0
        for pair in pairs:
            errors += sum(
                word != right for word, right in zip(pair.source, pair.correct, strict=False)
            )
        return MicroBatch(
            tensors=tensors,
            weight=float(len(tensors["labels"])),
            tokens=tokens,
            padding=tensors["words"].numel() - tokens,
            documents=[pair.name for pair in pairs],
            counts={"texts": float(len(pairs)), "errors": float(errors)},
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of the right candidate of each word."""
        scores = model(batch["features"], batch["row_words"], batch["words"])
        logs = detector.compute_log_probabilities(scores, batch["row_words"])[batch["labels"]]
        likely = (logs.detach() > np.log(0.5)).sum()
        return Loss(-logs.sum(), {"word_accuracy": (likely, likely * 0 + len(logs))})

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Chooses the threshold on all validation samples, and scores corrections with it.

        Corrections are scored on the first `val_corrections` samples; the loss and the false alarms
        are over all.
        """
        pairs = self._validation
        if not pairs:
            return []

        sources = [pair.source for pair in pairs]
        correct = [pair.correct for pair in pairs]
        choices = self._choose_corrections(model, sources, context)
        clean_choices = self._choose_corrections(model, correct, context)
        threshold = find_best_threshold(
            pairs, choices, clean_choices, self._config.most_false_alarms
        )
        self._chosen = raise_thresholds(
            threshold, correct, clean_choices, self._config.most_kind_false_alarms
        )

        count = self._config.val_corrections
        counts = self._score_corrections(pairs[:count], choices[:count])
        is_changed = [
            self._is_made(word, choice)
            for word, choice in zip(
                chain.from_iterable(correct), chain.from_iterable(clean_choices), strict=True
            )
        ]
        judged = Judged(
            counts, float(np.mean(is_changed)), self._compute_mean_loss(model, pairs, context)
        )
        values = compute_values(select_training_rows(CORRECTION_METRICS), judged)
        return make_metrics(CORRECTION_METRICS, values)

    def _score_corrections(
        self, pairs: Sequence[Pair], choices: Sequence[Sequence[Choice]]
    ) -> Counts:
        """Counts the outcomes of the corrections that are made with the threshold."""
        corrected_lines = [
            self._correct_text(pair.source, word_choices)
            for pair, word_choices in zip(pairs, choices, strict=True)
        ]
        source_lines = [" ".join(pair.source) for pair in pairs]
        correct_lines = [" ".join(pair.correct) for pair in pairs]
        return count_correction_outcomes(source_lines, corrected_lines, correct_lines)

    def _count_tokens(self, pairs: Sequence[Pair]) -> list[int]:
        return [len(pair.source) for pair in pairs]

    def _compute_losses(
        self, model: nn.Module, pairs: Sequence[Pair], device: torch.device
    ) -> list[TextLoss]:
        neighbors = [*map(correct_most_errors, pairs)]
        rows, logs = self.score_beside(model, [pair.source for pair in pairs], neighbors, device)
        text_labels = np.split(label_rows(pairs, rows), np.cumsum(self._count_tokens(pairs))[:-1])

        losses: list[TextLoss] = []
        for labels in text_labels:
            targets = labels[labels >= 0]
            losses.append(TextLoss(-float(logs[targets].sum()), len(targets)))
        return losses

    def score(
        self, model: nn.Module, texts: Sequence[Words], device: torch.device
    ) -> tuple[Rows, np.ndarray]:
        """Scores the candidates of texts in two passes.

        The second pass judges words beside the likely corrections of their neighbors.

        Returns:
            The rows of the candidates, and their log-probabilities: float32 [rows].
        """
        rows, logs = self.score_beside(model, texts, texts, device)
        neighbors = correct_likely_words(texts, choose_likeliest(rows, logs))
        return self.score_beside(model, texts, neighbors, device)

    def score_beside(
        self,
        model: nn.Module,
        texts: Sequence[Words],
        neighbors: Sequence[Words],
        device: torch.device,
    ) -> tuple[Rows, np.ndarray]:
        """Scores the candidates of texts in one pass; see `score`.

        Args:
            neighbors: For each text, the words that are read as the context, one for each word.
        """
        rows = self._inputs.build_rows(texts, neighbors)
        tensors = {
            name: tensor.to(device) for name, tensor in make_row_tensors(texts, rows).items()
        }
        with torch.no_grad():
            logs = detector.compute_log_probabilities(model(**tensors), tensors["row_words"])
        return rows, logs.float().cpu().numpy()

    def _choose_corrections(
        self, model: nn.Module, texts: Sequence[Words], context: Processes
    ) -> list[list[Choice]]:
        """Returns the likeliest correction of each word of each text."""

        def run(windows: list[Words]) -> list[list[Choice]]:
            rows, logs = self.score(model, windows, context.device)
            choices = iter(choose_likeliest(rows, logs))
            return [list(islice(choices, len(window))) for window in windows]

        text_windows = detector.run_in_windows(
            self._inputs, texts, run, self._config.batch_max_length, context
        )
        return [list(chain.from_iterable(windows)) for windows in text_windows]

    def _correct_text(self, text: Words, choices: Sequence[Choice]) -> str:
        return " ".join(
            choice.text if self._is_made(word, choice) else word
            for word, choice in zip(text, choices, strict=True)
        )

    def _is_made(self, word: str, choice: Choice) -> bool:
        """Returns whether a correction is likely enough to be made.

        The thresholds are 0.5 until they are chosen.
        """
        if self._chosen is None:
            return choice.probability > 0.5
        return choice.probability > self._chosen.get(find_word_kind(word), 1.0)

    def _find_line_changes(
        self, model: nn.Module, lines: Sequence[str], context: Processes
    ) -> list[list[Correction]]:
        texts = [line.split() for line in lines]
        flags = self.flags(texts, context)
        choices = self._choose_corrections(model, texts, context)

        line_changes: list[list[Correction]] = []
        for line, text, line_choices, line_flags in zip(lines, texts, choices, flags, strict=True):
            changes: list[Correction] = []
            for span, word, choice, may_change in zip(
                find_words(line), text, line_choices, line_flags, strict=True
            ):
                if may_change and self._is_made(word, choice):
                    changes.append(Correction(*span, word, choice.text))
            line_changes.append(changes)
        return line_changes

    def find_unknown_script(self, word: str) -> str:
        return self._inputs.find_unknown_script(word) or super().find_unknown_script(word)

    def load(self, folder: Path) -> nn.Module:
        model, inputs = detector.load_detector(folder)
        if not isinstance(inputs, CandidateInputs):
            raise DataError(f"{folder}: not a model that corrects; expected one of task=sec")
        self._inputs = inputs

        file = folder / CORRECTION
        try:
            thresholds = decode_json(file.read_bytes(), _Correction).thresholds
            if thresholds is not None:  # otherwise, `finish` has chosen them after that checkpoint
                self._chosen = {kind: thresholds[kind] for kind in KINDS}
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{file} cannot be read: {error}; expected model/ of a run of task=sec"
            ) from error
        return model

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        write_model(model, weights, folder, self._config.export_dtype)
        self._inputs.write(folder)
        content = json.dumps({"thresholds": self._chosen}) + "\n"
        (folder / CORRECTION).write_text(content, encoding="utf-8")
        self._write_card(folder)


def make_correction(config: SecConfig) -> SpellingTask:
    """Makes the task of a configuration, with the small model or with a seq2seq model."""
    if is_small(config):
        return CandidateCorrection(config)

    from bsmeta.tasks.spelling.seq2seq_correction import Seq2SeqCorrection

    return Seq2SeqCorrection(config)


def choose_likeliest(rows: Rows, logs: np.ndarray) -> list[Choice]:
    """Returns the likeliest correction of each word.

    Args:
        logs: The log-probability of each row: float [rows].
    """
    choices: list[Choice] = []
    for texts, start, end in zip(rows.texts, rows.starts[:-1], rows.starts[1:], strict=True):
        if end - start <= FIRST_CORRECTION:
            choices.append(Choice("", 0.0))
            continue
        best = FIRST_CORRECTION + int(logs[start + FIRST_CORRECTION : end].argmax())
        choices.append(Choice(texts[best], float(np.exp(logs[start + best]))))
    return choices


def correct_likely_words(texts: Sequence[Words], choices: Iterable[Choice]) -> list[list[str]]:
    """Returns texts with their likely corrections, which the next pass reads as context.

    Corrections of several words are left out: a word has one neighbor in each position.

    Args:
        choices: The likeliest correction of each word of the texts.
    """
    remaining_choices = iter(choices)
    corrected_texts: list[list[str]] = []
    for text in texts:
        corrected: list[str] = []
        for word, choice in zip(text, islice(remaining_choices, len(text)), strict=True):
            is_likely = choice.probability > MIN_LIKELY_PROBABILITY and " " not in choice.text
            corrected.append(choice.text if is_likely else word)
        corrected_texts.append(corrected)
    return corrected_texts


def correct_most_errors(pair: Pair) -> list[str]:
    """Returns a text in which none or most of the errors are corrected, drawn by the text's hash.

    In training, words are judged in this context, which is like the result of the first pass. See
    `UNCORRECTED_SHARE` and `CORRECTED_SHARE`.
    """
    if len(pair.source) != len(pair.correct):
        return pair.source

    seed = xxhash.xxh3_64_intdigest(" ".join(pair.source).encode())
    draws = np.random.Generator(np.random.PCG64(seed)).random(1 + len(pair.source))
    if draws[0] < UNCORRECTED_SHARE:
        return pair.source
    return [
        right if draw < CORRECTED_SHARE else word
        for word, right, draw in zip(pair.source, pair.correct, draws[1:], strict=True)
    ]


def label_rows(pairs: Sequence[Pair], rows: Rows) -> np.ndarray:
    """Returns the row of the right candidate of each word: int64 [words].

    It is -1 for a word that is merged with another, and the row for none of the candidates where
    the replacement is not one of them.
    """
    all_right: list[str | None] = []
    for pair in pairs:
        all_right += find_right_words(pair)

    labels: list[int] = []
    for right, texts, start in zip(all_right, rows.texts, rows.starts.tolist(), strict=False):
        if right is None:
            labels.append(-1)
        elif right in texts:
            labels.append(start + texts.index(right))
        else:
            labels.append(start + _NONE_ROW)
    return np.array(labels, np.int64)


def find_right_words(pair: Pair) -> list[str | None]:
    """Returns the replacement of each word; None for a word that is merged with another."""
    if len(pair.source) == len(pair.correct):
        return list(pair.correct)

    right: list[str | None] = []
    groups = align_words(" ".join(pair.source), " ".join(pair.correct))
    for source_range, correct_range in groups:
        if len(source_range) == 1:
            right.append(" ".join(pair.correct[correct_range.start : correct_range.stop]))
        else:
            right += [None] * len(source_range)
    return right


def find_best_threshold(
    pairs: Sequence[Pair],
    choices: Sequence[Sequence[Choice]],
    clean_choices: Sequence[Sequence[Choice]],
    most_false_alarms: float,
) -> float:
    """Returns the threshold of probability with the best F1, within a limit of false alarms.

    Args:
        pairs: Texts and their corrections.
        choices: The likeliest correction of each word of the texts.
        clean_choices: The likeliest correction of each word of correct texts.
        most_false_alarms: The largest share of the words of correct texts that may be changed.
    """
    scores: list[float] = []
    is_right: list[bool] = []
    error_count = 0
    for pair, word_choices in zip(pairs, choices, strict=True):
        for right, word, choice in zip(
            find_right_words(pair), pair.source, word_choices, strict=True
        ):
            if right is not None:
                scores.append(choice.probability)
                is_right.append(right == choice.text)
                error_count += right != word

    lowest = _find_lowest_threshold(clean_choices, most_false_alarms)

    # F1 if the corrections up to each position are made, from the most to the least likely:
    # 2 true positives / (changes + errors).
    order = np.argsort(-np.array(scores), kind="stable")
    ordered_scores = np.array(scores)[order]
    hits = np.cumsum(np.array(is_right)[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + error_count)
    f1[ordered_scores <= lowest] = -1

    best = int(f1.argmax())
    if f1[best] <= 0:
        return max(lowest, 0.5)

    # Halfway between the last correction that is made and the first that is not.
    following = ordered_scores[best + 1] if best + 1 < len(f1) else 0.0
    return max(lowest, float(ordered_scores[best] + following) / 2)


def raise_thresholds(
    threshold: float,
    texts: Sequence[Words],
    choices: Sequence[Sequence[Choice]],
    most_false_alarms: float,
) -> dict[str, float]:
    """Returns the threshold of each kind of word, raised where a kind has too many false alarms.

    Args:
        threshold: The lowest threshold.
        texts: Correct texts.
        choices: The likeliest correction of each of their words.
        most_false_alarms: The largest share of the words of a kind that may be changed.
    """
    kind_choices: dict[str, list[Choice]] = {kind: [] for kind in KINDS}
    for text, text_choices in zip(texts, choices, strict=True):
        for word, choice in zip(text, text_choices, strict=True):
            if kind := find_word_kind(word):
                kind_choices[kind].append(choice)
    return {
        kind: max(threshold, _find_lowest_threshold([choices_of_kind], most_false_alarms))
        for kind, choices_of_kind in kind_choices.items()
    }


def _find_lowest_threshold(
    clean_choices: Sequence[Sequence[Choice]], most_false_alarms: float
) -> float:
    """Returns the lowest threshold within the limit of false alarms; see `find_best_threshold`."""
    scores = [choice.probability for choice in chain.from_iterable(clean_choices)]
    descending = np.sort(scores)[::-1]
    allowed = int(most_false_alarms * len(descending))
    return float(descending[allowed]) if allowed < len(descending) else 0.0
