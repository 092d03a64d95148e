"""The task `sec`: what corrects texts; by default, each word is kept, or replaced by one of its
candidates (`Ranker`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from torch import nn

from bsmeta.core.errors import DataError
from bsmeta.core.parsing import parse_json
from bsmeta.data.batch import MicroBatch
from bsmeta.data.text.sentences import words
from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import CORRECTION, SecConfig
from bsmeta.tasks.spelling.corrections import Correction, correction_counts, word_groups
from bsmeta.tasks.spelling.corrector import Corrector
from bsmeta.tasks.spelling.inputs import CandidateInputs, Rows, Words, row_tensors
from bsmeta.tasks.spelling.samples import Pair, Sample, is_small
from bsmeta.tasks.spelling.task import SpellingTask
from bsmeta.training.processes import Processes
from bsmeta.training.task import Loss, Metric

LIKELY = 0.5
"""The probability above which a correction replaces a word where its neighbors are judged."""
UNCORRECTED_SHARE = 0.3
"""In training: share of the texts in which words are judged beside uncorrected neighbors."""
CORRECTED_SHARE = 0.7
"""In training: share of the errors that are corrected in the other texts, as by the first pass."""


class Choice(NamedTuple):
    """The likeliest correction of a word, and its probability (0 if there is none)."""

    text: str
    probability: float


class CandidateCorrection(Corrector):
    """Corrects words by choosing among candidates."""

    _measure = "words of the longer text"

    @cached_property
    def _inputs(self) -> CandidateInputs:
        found = detector.build_inputs(self._config, self.table, self.noise)
        assert isinstance(found, CandidateInputs)
        return found

    def _most_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        longer = [max(len(s.source.split()), len(s.correct.split())) for s in samples]
        return np.array(longer, np.int64)

    def build_model(self) -> nn.Module:
        return detector.build_detector(self._config, self._inputs)

    def _fits(self, words: Sequence[str], room: int) -> bool:
        return len(words) <= room

    def _micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        """`labels` has the row of the right candidate of each word that has one, int64."""
        sources = [pair.source for pair in pairs]
        rows = self._inputs.rows(sources, [*map(half_corrected, pairs)], trains=True)
        tensors = row_tensors(sources, rows)
        found = label_rows(pairs, rows)
        tensors["labels"] = torch.from_numpy(found[found >= 0])
        tokens = sum(map(len, sources))
        errors = sum(
            a != b for pair in pairs for a, b in zip(pair.source, pair.correct, strict=False)
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
        logs = detector.log_probabilities(scores, batch["row_words"])[batch["labels"]]
        likely = (logs.detach() > np.log(0.5)).sum()
        return Loss(-logs.sum(), {"word_accuracy": (likely, likely * 0 + len(logs))})

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Chooses the threshold, and corrects the first validation samples with it."""
        pairs = self._validation
        if not pairs:
            return []
        sources, right = [p.source for p in pairs], [p.correct for p in pairs]
        found = self._choices(model, sources, context)
        clean = self._choices(model, right, context)
        self._chosen = best_threshold(pairs, found, clean, self._config.most_false_alarms)
        first = slice(self._config.val_corrections)
        lines = [[" ".join(own) for own in side[first]] for side in (sources, right)]
        made = [self._corrected(*both) for both in zip(sources[first], found[first], strict=True)]
        counts = correction_counts(lines[0], made, lines[1])
        changed = [choice.probability > self._chosen for own in clean for choice in own]
        return [
            Metric("loss", self._mean_loss(model, pairs, context)),
            Metric("correction_f1", counts.f1, better="max"),
            Metric("edit_distance", counts.mean_distance),
            Metric("false_alarms", float(np.mean(changed))),
        ]

    def _sizes(self, pairs: Sequence[Pair]) -> list[int]:
        return [len(pair.source) for pair in pairs]

    def _losses(
        self, model: nn.Module, pairs: Sequence[Pair], device: torch.device
    ) -> list[tuple[float, int]]:
        neighbors = [*map(half_corrected, pairs)]
        rows, logs = self.score_beside(model, [pair.source for pair in pairs], neighbors, device)
        parts = np.split(label_rows(pairs, rows), np.cumsum(self._sizes(pairs))[:-1])
        return [(-float(logs[part[part >= 0]].sum()), int((part >= 0).sum())) for part in parts]

    def score(
        self, model: nn.Module, texts: Sequence[Words], device: torch.device
    ) -> tuple[Rows, np.ndarray]:
        """The candidates of texts, and the log-probability of each, float32 [rows], beside the
        likely corrections of their neighbors.
        """
        rows, logs = self.score_beside(model, texts, texts, device)
        found = iter(likeliest(rows, logs))

        def replaced(word: str) -> str:
            """The likely correction, if it is one word."""
            text, probability = next(found)
            return text if probability > LIKELY and " " not in text else word

        first = [[replaced(word) for word in text] for text in texts]
        return self.score_beside(model, texts, first, device)

    def score_beside(
        self, model: nn.Module, texts: Sequence[Words], neighbors: Sequence[Words],
        device: torch.device,
    ) -> tuple[Rows, np.ndarray]:  # fmt: skip
        """The same beside given neighbors."""
        rows = self._inputs.rows(texts, neighbors)
        tensors = {name: part.to(device) for name, part in row_tensors(texts, rows).items()}
        with torch.no_grad():
            logs = detector.log_probabilities(model(**tensors), tensors["row_words"])
        return rows, logs.float().cpu().numpy()

    def _choices(
        self, model: nn.Module, texts: Sequence[Words], context: Processes
    ) -> list[list[Choice]]:
        """The likeliest correction of each word of each text."""

        def run(parts: list[Words]) -> list[list[Choice]]:
            best = iter(likeliest(*self.score(model, parts, context.device)))
            return [[next(best) for _ in part] for part in parts]

        found = detector.spread_words(
            self._inputs, texts, run, self._config.batch_max_length, context
        )
        return [[choice for part in own for choice in part] for own in found]

    def _corrected(self, text: Words, choices: Sequence[Choice]) -> str:
        return " ".join(
            choice.text if choice.probability > self._least else word
            for word, choice in zip(text, choices, strict=True)
        )

    @property
    def _least(self) -> float:
        """The probability above which a correction is made."""
        return 0.5 if self._chosen is None else self._chosen

    def _line_changes(
        self, model: nn.Module, lines: Sequence[str], context: Processes
    ) -> list[list[Correction]]:
        texts = [line.split() for line in lines]
        flags = self.flags(texts, context)
        return [
            [
                Correction(*span, word, choice.text)
                for span, word, choice, flag in zip(words(line), text, choices, own, strict=True)
                if flag and choice.probability > self._least
            ]
            for line, text, choices, own in zip(
                lines, texts, self._choices(model, texts, context), flags, strict=True
            )
        ]

    def load(self, folder: Path) -> nn.Module:
        model, inputs = detector.load_detector(folder)
        if not isinstance(inputs, CandidateInputs):
            raise DataError(f"{folder}: not a model that corrects; expected one of task=sec")
        self._inputs = inputs
        file = folder / CORRECTION
        try:
            threshold = parse_json(file.read_text(encoding="utf-8"))["threshold"]
            if threshold is not None:  # otherwise, `finish` has chosen it after that checkpoint
                self._chosen = float(threshold)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file} cannot be read: {error}; expected model/ of a run of task=sec"
            ) from error
        return model

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self._inputs.write(folder)
        content = json.dumps({"threshold": self._chosen}) + "\n"
        (folder / CORRECTION).write_text(content, encoding="utf-8")
        self._write_card(folder)


def make_correction(config: SecConfig) -> SpellingTask:
    """The task of a configuration: by candidates, or with a pretrained seq2seq model."""
    if is_small(config):
        return CandidateCorrection(config)
    from bsmeta.tasks.spelling.seq2seq_correction import Seq2SeqCorrection

    return Seq2SeqCorrection(config)


def likeliest(rows: Rows, logs: np.ndarray) -> list[Choice]:
    """The likeliest correction of each word, from the log-probability of each row."""
    found = []
    for texts, start, end in zip(rows.texts, rows.starts[:-1], rows.starts[1:], strict=True):
        if end - start < 3:  # the word itself, and the row for none of the candidates
            found.append(Choice("", 0.0))
            continue
        place = 2 + int(logs[start + 2 : end].argmax())
        found.append(Choice(texts[place], float(np.exp(logs[start + place]))))
    return found


def half_corrected(pair: Pair) -> list[str]:
    """A text as it may be after a first correction, beside which the words are judged in training:
    in some texts, no error is corrected, and in the others most are.

    What is drawn follows from the text, whose errors are drawn for each sample and epoch.
    """
    if len(pair.source) != len(pair.correct):
        return pair.source
    seed = xxhash.xxh3_64_intdigest(" ".join(pair.source).encode())
    draws = np.random.Generator(np.random.PCG64(seed)).random(1 + len(pair.source))
    if draws[0] < UNCORRECTED_SHARE:
        return pair.source
    return [
        right if drawn < CORRECTED_SHARE else word
        for word, right, drawn in zip(pair.source, pair.correct, draws[1:], strict=True)
    ]


def label_rows(pairs: Sequence[Pair], rows: Rows) -> np.ndarray:
    """The row of the right candidate of each word, int64 [words]; -1 if the word is part of a
    merged one.
    """
    right = [word for pair in pairs for word in right_words(pair)]
    found = [
        -1 if word is None else start + (own.index(word) if word in own else 1)
        for word, own, start in zip(right, rows.texts, rows.starts.tolist(), strict=False)
    ]
    return np.array(found, np.int64)


def right_words(pair: Pair) -> list[str | None]:
    """What belongs in the place of each word; None for a word that is merged with another."""
    if len(pair.source) == len(pair.correct):
        return list(pair.correct)
    found: list[str | None] = []
    for own, became in word_groups(" ".join(pair.source), " ".join(pair.correct)):
        joined = " ".join(pair.correct[became.start : became.stop])
        found += [joined] if len(own) == 1 else [None] * len(own)
    return found


def best_threshold(
    pairs: Sequence[Pair], found: Sequence[Sequence[Choice]], clean: Sequence[Sequence[Choice]],
    most_false_alarms: float,
) -> float:  # fmt: skip
    """The probability above which corrections have the best F1 of those with which at most a share
    of the correct words is changed, from the choices for the words of texts and of correct texts.
    """
    rows = [
        (choice.probability, word == choice.text, word != own)
        for pair, choices in zip(pairs, found, strict=True)
        for word, own, choice in zip(right_words(pair), pair.source, choices, strict=True)
        if word is not None
    ]
    scores, is_right, is_error = (np.array(column) for column in zip(*rows, strict=True))
    alarms = np.sort([choice.probability for own in clean for choice in own])[::-1]
    allowed = int(most_false_alarms * len(alarms))
    least = float(alarms[allowed]) if allowed < len(alarms) else 0.0
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(is_right[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + is_error.sum())
    f1[scores[order] <= least] = -1
    best = int(f1.argmax())
    if f1[best] <= 0:
        return max(least, 0.5)
    following = scores[order][best + 1] if best + 1 < len(f1) else 0.0
    return max(least, float(scores[order][best] + following) / 2)
