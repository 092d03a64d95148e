"""The base of the spelling tasks (samples with noise, steps, test sets, predictions), and two of
them, `sed_words` and `sed_sequence`: which words, or which texts, have an error.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy.special import expit
from torch import nn

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import reporting
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import TableStream, TokenBudget
from bsmeta.data.text.sentences import Span, cut, words
from bsmeta.tasks.model_card import write_task_card
from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig, shares_of
from bsmeta.tasks.spelling.corrections import Flag, as_record, detection_counts
from bsmeta.tasks.spelling.evaluate import finish
from bsmeta.tasks.spelling.inputs import Inputs
from bsmeta.tasks.spelling.noise import Noise
from bsmeta.tasks.spelling.samples import (
    VALIDATION_EPOCH,
    Pair,
    Sample,
    Table,
    fitting,
    make_noise,
    open_table,
)
from bsmeta.training.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Task, batched

TEXTS_AT_ONCE = 500  # records that are batched together

CALIBRATION = "calibration.json"
"""File in the model's folder with the threshold for `wanted_precision`, a logit."""

logger = logging.getLogger(__name__)


class SpellingTask(Task):
    """A task on texts and their corrections, whose steps are bounded in tokens."""

    _config: SpellingConfig
    forms: tuple[str, ...]
    """In which forms `predict.py` can show what the model changes."""
    about: str
    """A sentence about its models, for the model card."""
    chooses = True  # whether evaluations choose a threshold
    _chosen: Any = None
    """What the last evaluation chose, for the exported model: JSON."""

    def __init__(self, config: SpellingConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._config = config

    @cached_property
    def table(self) -> Table:
        """The samples, whose store is built first if there is none."""
        return open_table(self._config)

    @cached_property
    def noise(self) -> Noise:
        """The errors of samples without a target."""
        return make_noise(self._config)

    def _write_card(self, folder: Path) -> None:
        """Write the model card of an exported model."""
        corrects = "text" in self.forms
        write_task_card(
            self._config,
            folder,
            pipeline_tag="text2text-generation" if corrects else "token-classification",
            about=self.about,
            prediction="input=letter.txt" + (" output=corrected.txt" if corrects else " show=json"),
        )

    def pairs(self, numbers: np.ndarray, epoch: int) -> list[Pair]:
        """The pairs of some samples in an epoch (`VALIDATION_EPOCH` for held-out ones)."""
        found = []
        samples = reporting(self.table.read(numbers))
        for sample, number in zip(samples, numbers.tolist(), strict=True):
            source = sample.source
            if sample.target is None:
                seed = self._config.seed
                source = self.noise.corrupt(source, seed=seed, epoch=epoch, sample=number)
            found.append(Pair(source.split(), sample.correct.split(), sample.name))
        return found

    @cached_property
    def _validation(self) -> list[Pair]:
        return self.pairs(self.table.numbers("validation"), VALIDATION_EPOCH)

    @property
    @abstractmethod
    def _measure(self) -> Any:
        """What determines the lengths of samples: JSON."""

    @abstractmethod
    def _most_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        """The most tokens that each sample may have, int64 [samples]."""

    @abstractmethod
    def _fits(self, words: Sequence[str], room: int) -> bool:
        """Whether a text has at most that number of tokens."""

    @abstractmethod
    def _micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch: ...

    @cached_property
    def _lengths(self) -> np.ndarray:
        return self.table.lengths(self._measure, self._most_tokens)

    @cached_property
    def _order(self) -> TokenBudget:
        """The steps of every epoch.

        Raises:
            ConfigurationError: If there is nothing to train on, or a sample is too long.
        """
        config, shares = self._config, shares_of(self._config)
        longest, room = int(self._lengths.max(initial=0)), config.batch_max_length // shares
        if longest > room:
            raise ConfigurationError(
                f"the longest sample may have {longest:,} tokens, but a part of a step has "
                f"{room:,}: batch_max_length={config.batch_max_length:,} in batch_shares={shares}; "
                f"expected batch_max_length of at least {longest * shares:,}, fewer batch_shares, "
                f"or a smaller max_characters (now {config.max_characters})",
                ["batch_max_length"],
            )
        return TokenBudget(
            self._lengths, config.batch_max_length, config.bucket_span, shares, config.seed
        )

    def steps_per_epoch(self, world_size: int) -> int:
        return self._order.steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        config, numbers = self._config, self.table.numbers("train")

        def read(rows: np.ndarray, epoch: int) -> MicroBatch:
            pairs, rooms = self.pairs(numbers[rows], epoch), self._lengths[rows].tolist()
            return self._micro_batch([
                fitting(pair, self._fits, room) for pair, room in zip(pairs, rooms, strict=True)
            ])  # fmt: skip

        fingerprint = {
            **self.table.key,
            "task": config.task,
            "noise": vars(config.noise),
            "misspellings": self.noise.misspellings_hash,
            "batch_max_length": config.batch_max_length,
            "bucket_span": config.bucket_span,
            "batch_shares": shares_of(config),
        }
        return TableStream(
            self._order, read, rank=rank, world_size=world_size,
            accumulation=config.gradient_accumulation_steps, num_workers=config.num_workers,
            fingerprint=fingerprint, state=state,
        )  # fmt: skip

    def state(self) -> Any:
        return self._chosen

    def restore(self, state: Any) -> None:
        self._chosen = state

    @abstractmethod
    def load(self, folder: Path) -> nn.Module: ...

    @abstractmethod
    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> Sequence[Any]:
        """The model's output for each line (see `evaluate.Judge`)."""

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test sets, once, with the exported model; writes the report."""
        if self.chooses and self._chosen is None:  # no evaluation was due
            self.evaluate(model, context)
        if self._config.benchmarks is None:
            return []
        exported = self.load(context.exported / "model").to(context.device)
        return finish(self._config, lambda lines: [*self.judge(exported, lines, context)], context)

    @property
    def inputs(self) -> tuple[str, ...]:
        column = self._config.text_column
        return ("text" if column == "auto" else column,)

    @abstractmethod
    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Any]]:
        """The model's flags or corrections in each text, with character offsets."""

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the changes of each record's text; of a corrector, the corrected text, too."""
        (column,) = self.inputs
        for batch in batched(records, TEXTS_AT_ONCE):
            texts = [str(record[column]) for record in batch]
            for text, changes in zip(texts, self.changes(model, texts), strict=True):
                yield as_record(text, changes, corrects="text" in self.forms)


class WordDetection(SpellingTask):
    """Predicts which words of a text have an error."""

    _config: DetectionConfig
    forms = ("color", "json")
    about = "Finds the words of a text that have a spelling error."
    _least = np.float64(0)  # the logit above which a unit is flagged

    @cached_property
    def _inputs(self) -> Inputs:
        return detector.build_inputs(self._config, self.table, self.noise)

    @property
    def _measure(self) -> Any:
        return self._inputs.measure

    def _most_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        return self._inputs.lengths([sample.correct.split() for sample in samples])

    def build_model(self) -> nn.Module:
        return detector.build_detector(self._config, self._inputs)

    def _fits(self, words: Sequence[str], room: int) -> bool:
        return self._inputs.fits(words, room)

    def _micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        """`labels`, float [texts, words], are 1 for words with an error, -1 for padding."""
        tensors = self._inputs.tensors([pair.source for pair in pairs], trains=True)
        labels = torch.full((len(pairs), max(len(pair.source) for pair in pairs)), -1.0)
        for row, pair in enumerate(pairs):
            labels[row, : len(pair.source)] = torch.from_numpy(wrong_words(pair)).float()
        is_token = tensors["words" if "words" in tensors else "attention_mask"] > 0
        tokens = int(is_token.sum())
        return MicroBatch(
            tensors={**tensors, "labels": labels},
            weight=self._weight(labels),
            tokens=tokens,
            padding=is_token.numel() - tokens,
            documents=[pair.name for pair in pairs],
            counts={"texts": float(len(pairs)), "errors": float((labels > 0).sum())},
        )

    def _weight(self, labels: torch.Tensor) -> float:
        """The number of targets among the labels of words."""
        return float((labels >= 0).sum())

    def _units(self, logits: np.ndarray) -> np.ndarray:
        """The logits of what is judged in a text, from those of its words."""
        return logits

    def _labels(self, pair: Pair) -> np.ndarray:
        """The labels of what is judged in a text, int [units]."""
        return wrong_words(pair)

    def _spans(self, text: str, part: Span) -> list[Span]:
        """The places of what is judged in a chunk of a text."""
        inside = words(text[part.start : part.end])
        return [Span(part.start + start, part.start + end) for start, end in inside]

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of every word, and the share of words predicted right."""
        labels = batch["labels"]
        logits = detector.word_logits(model, batch)
        is_word = labels >= 0
        right = ((logits.detach() > 0) == (labels > 0)) & is_word
        return Loss(
            detector.word_losses(logits, labels).sum(),
            {"word_accuracy": (right.sum(), is_word.sum())},
        )

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the validation samples; chooses the threshold that is exported with the model."""
        pairs = self._validation
        if not pairs:
            return []
        logits = self._logits(model, [pair.source for pair in pairs], context)
        clean = self._logits(model, [pair.correct for pair in pairs], context)
        labels = [self._labels(pair) for pair in pairs]
        flat, truth = np.concatenate(logits), np.concatenate(labels)
        wanted = self._config.wanted_precision
        self._chosen = asdict(calibrate(flat.astype(np.float64), truth, wanted))
        flags = [(row > 0).astype(int).tolist() for row in logits]
        counts = detection_counts(flags, [row.tolist() for row in labels])
        losses = np.logaddexp(0, np.where(truth > 0, -flat, flat))
        return [
            Metric("loss", float(losses.mean())),
            Metric("f1", counts.f1, better="max"),
            Metric("precision", counts.precision, better="max"),
            Metric("recall", counts.recall, better="max"),
            Metric("accuracy", counts.accuracy, better="max"),
            Metric("false_alarms", float((np.concatenate(clean) > 0).mean())),
        ]

    def _logits(
        self, model: nn.Module, texts: Sequence[Sequence[str]], context: Processes
    ) -> list[np.ndarray]:
        """The logits of the units of each text."""
        budget = self._config.batch_max_length
        rows = detector.logits_of_words(model, self._inputs, texts, budget, context)
        return [self._units(row) for row in rows]

    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> list[list[int]]:
        """The flags of the units of each line."""
        logits = self._logits(model, [line.split() for line in lines], context)
        return [(row > self._least).astype(int).tolist() for row in logits]

    def load(self, folder: Path) -> nn.Module:
        model, self._inputs = detector.load_detector(folder)
        self._least = saved_threshold(folder) if self._config.abstains else np.float64(0)
        return model

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Flag]]:
        """The flags in each text: of words, or of chunks of at most `max_characters`."""
        parts = [(n, part) for n, text in enumerate(texts) for part in self._parts(text)]
        context = Processes(device=next(model.parameters()).device)
        chosen = [texts[n][slice(*part)].split() for n, part in parts]
        found: list[list[Flag]] = [[] for _ in texts]
        for (n, part), row in zip(parts, self._logits(model, chosen, context), strict=True):
            found[n] += [
                Flag(*span, texts[n][slice(*span)], float(expit(score)))
                for span, score in zip(self._spans(texts[n], part), row, strict=True)
                if score > self._least
            ]
        return found

    def _parts(self, text: str) -> list[Span]:
        """The chunks of a text that the model reads, without the whitespace around them."""
        found, at = [], 0
        for chunk in cut(text, self._config.max_characters):
            start = at + len(chunk) - len(chunk.lstrip())
            at += len(chunk)
            if chunk.strip():
                found.append(Span(start, start + len(chunk.strip())))
        return found

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self._inputs.write(folder)
        if self._chosen is not None:
            text = json.dumps(self._chosen, indent=1) + "\n"
            (folder / CALIBRATION).write_text(text, encoding="utf-8")
        self._write_card(folder)


class SequenceDetection(WordDetection):
    """Predicts which texts have an error: what is judged is the whole text."""

    about = "Finds the texts that have a spelling error."

    def _weight(self, labels: torch.Tensor) -> float:
        return float(len(labels))

    def _units(self, logits: np.ndarray) -> np.ndarray:
        return detector.sequence_logit(logits)[None]

    def _labels(self, pair: Pair) -> np.ndarray:
        return wrong_words(pair).max(initial=0)[None]

    def _spans(self, text: str, part: Span) -> list[Span]:
        return [part]

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of every text, and the share of texts predicted right."""
        is_word = batch["labels"] >= 0
        labels = (batch["labels"] > 0).any(1).float()
        losses = detector.sequence_losses(detector.word_logits(model, batch), is_word, labels)
        right = (losses.detach() < np.log(2)).float()
        return Loss(losses.sum(), {"accuracy": (right.sum(), torch.ones_like(right).sum())})


def saved_threshold(folder: Path) -> np.float64:
    """The logit above which `abstains` flags; infinite if no threshold was precise enough."""
    file = folder / CALIBRATION
    try:
        found = Calibration(**parse_json(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"abstains: {file} cannot be read: {error}; it is written by a run with validation "
            "samples (val_splits)"
        ) from error
    if found.threshold is None:
        logger.warning(
            "abstains: no threshold has a precision of %.3f: the highest is %.3f, at recall %.3f; "
            "nothing is flagged", found.wanted, found.precision, found.recall,
        )  # fmt: skip
        return np.float64(np.inf)
    # What has the threshold itself is flagged. In float64: float32 logits are compared exactly.
    return np.nextafter(np.float64(found.threshold), -np.inf)


def wrong_words(pair: Pair) -> np.ndarray:
    """Whether each word has an error: int64 [words]."""
    return np.array([a != b for a, b in zip(pair.source, pair.correct, strict=True)], np.int64)


@dataclass(frozen=True)
class Calibration:
    """The threshold from which a score counts as an error, chosen for a wanted precision."""

    wanted: float
    threshold: float | None  # the lowest score that is flagged; None: none has that precision
    precision: float  # with the threshold; if it is None, the highest that any has
    recall: float  # at that precision
    flagged: int  # number of units at that precision


def calibrate(scores: np.ndarray, labels: np.ndarray, precision: float) -> Calibration:
    """The threshold with the highest recall among those that have the wanted precision.

    Held-out units have scores, higher for likelier errors, and labels, 1 for an error.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, errors = scores[order], np.asarray(labels)[order].astype(bool)
    if not errors.any():
        return Calibration(precision, None, 0.0, 0.0, 0)
    found, flagged = np.cumsum(errors), np.arange(1, len(errors) + 1)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # equal scores together
    precisions = found[ends] / flagged[ends]
    reaches = np.flatnonzero(precisions >= precision)
    # The last that reaches it has the highest recall; if none does, the best, and its last tie.
    best = reaches[-1] if len(reaches) else np.flatnonzero(precisions == precisions.max())[-1]
    end = ends[best]
    return Calibration(
        wanted=precision,
        threshold=float(ordered[end]) if len(reaches) else None,
        precision=float(precisions[best]),
        recall=float(found[end] / found[-1]),
        flagged=int(flagged[end]),
    )
