"""The base of the spelling tasks, and the tasks that detect errors.

`SpellingTask` has the samples with noise, the steps, the test sets and the predictions.
`sed_words` detects the words with errors, and `sed_sequence` the texts with errors.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
import transformers
from scipy.special import expit
from torch import nn

from bsmeta.config.metric_table import compute_values, select_training_rows
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import decode_json
from bsmeta.core.progress import report_each
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import TableStream, TokenBudgetSteps
from bsmeta.data.text.sentences import Span, cut_text, find_words
from bsmeta.models.exporting import write_model
from bsmeta.tasks.model_card import write_task_card
from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig, count_step_parts
from bsmeta.tasks.spelling.corrections import Flag, count_detection_outcomes, make_record
from bsmeta.tasks.spelling.evaluate import finish_run
from bsmeta.tasks.spelling.inputs import Inputs
from bsmeta.tasks.spelling.kept_words import KeptWords
from bsmeta.tasks.spelling.metrics import DETECTION_METRICS, Judged
from bsmeta.tasks.spelling.noise import Noise
from bsmeta.tasks.spelling.samples import (
    VALIDATION_EPOCH,
    Pair,
    Sample,
    Table,
    make_noise,
    open_table,
    shorten_to_fit,
)
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Task, split_into_lists

PREDICTION_BATCH_SIZE = 500  # records that are batched together

CALIBRATION_FILE = "calibration.json"
"""File in the model's folder with the threshold for `wanted_precision`, a logit."""

logger = logging.getLogger(__name__)


class SpellingTask(Task):
    """The base class of the spelling tasks; the size of their steps is limited in tokens."""

    _config: SpellingConfig
    forms: tuple[str, ...]
    """The output forms of `predict.py` for the changes of the model."""
    about: str
    """A sentence about its models, for the model card."""
    chooses = True  # whether evaluations choose a threshold
    _chosen: Any = None
    """The threshold of the last evaluation, exported with the model: a JSON value."""

    def __init__(self, config: SpellingConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._config = config

    @cached_property
    def kept_words(self) -> KeptWords:
        """The words that are never flagged or changed."""
        return KeptWords(self._config.keep_words)

    def data_fingerprint(self) -> Any:
        """Returns the hash of `keep_words`, on which predictions depend; None without words."""
        return self.kept_words.fingerprint if self.kept_words else None

    @cached_property
    def table(self) -> Table:
        """The samples; their store is built on first use."""
        return open_table(self._config)

    @cached_property
    def noise(self) -> Noise:
        """The errors of samples without a target."""
        return make_noise(self._config)

    def _write_card(self, folder: Path) -> None:
        """Writes the model card of an exported model."""
        corrects = "text" in self.forms
        write_task_card(
            self._config,
            folder,
            pipeline_tag="text2text-generation" if corrects else "token-classification",
            about=self.about,
            prediction="input=letter.txt" + (" output=corrected.txt" if corrects else " show=json"),
        )

    def make_pairs(self, numbers: np.ndarray, epoch: int) -> list[Pair]:
        """Makes pairs from samples, and misspells those without a target.

        Args:
            numbers: The samples: int64 [samples].
            epoch: Part of the key of the noise; `VALIDATION_EPOCH` for held-out samples.
        """
        pairs: list[Pair] = []
        samples = report_each(self.table.read(numbers))
        for sample, number in zip(samples, numbers.tolist(), strict=True):
            source = sample.source
            if sample.target is None:
                seed = self._config.seed
                source = self.noise.corrupt(source, seed=seed, epoch=epoch, sample=number)
            pairs.append(Pair(source.split(), sample.correct.split(), sample.name))
        return pairs

    @cached_property
    def _validation(self) -> list[Pair]:
        return self.make_pairs(self.table.list_numbers("validation"), VALIDATION_EPOCH)

    @property
    @abstractmethod
    def _measure(self) -> Any:
        """Identifies how the lengths of samples are computed: JSON."""

    @abstractmethod
    def _estimate_max_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        """Returns the maximum number of tokens of each sample with errors: int64 [samples]."""

    @abstractmethod
    def _fits(self, words: Sequence[str], room: int) -> bool:
        """Returns whether a text has at most `room` tokens."""

    @abstractmethod
    def _build_micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch: ...

    @cached_property
    def _lengths(self) -> np.ndarray:
        return self.table.measure_lengths(self._measure, self._estimate_max_tokens)

    @cached_property
    def _order(self) -> TokenBudgetSteps:
        """The order of the samples, in steps.

        Raises:
            ConfigurationError: If there is nothing to train on, or a sample is too long.
        """
        config = self._config
        shares = count_step_parts(config)
        room = config.batch_max_length // shares
        longest = int(self._lengths.max(initial=0))
        if longest > room:
            raise ConfigurationError(
                f"the longest sample may have {longest:,} tokens, but a part of a step has "
                f"{room:,}: batch_max_length={config.batch_max_length:,} in batch_shares={shares}; "
                f"expected batch_max_length of at least {longest * shares:,}, fewer batch_shares, "
                f"or a smaller max_characters (now {config.max_characters})",
                ["batch_max_length"],
            )
        return TokenBudgetSteps(
            self._lengths, config.batch_max_length, config.bucket_span, shares, config.seed
        )

    def steps_per_epoch(self, world_size: int) -> int:
        return self._order.steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        config = self._config
        numbers = self.table.list_numbers("train")

        def read(rows: np.ndarray, epoch: int) -> MicroBatch:
            pairs = self.make_pairs(numbers[rows], epoch)
            rooms = self._lengths[rows].tolist()
            return self._build_micro_batch(
                [
                    shorten_to_fit(pair, self._fits, room)
                    for pair, room in zip(pairs, rooms, strict=True)
                ]
            )

        fingerprint = {
            **self.table.key,
            "task": config.task,
            "noise": vars(config.noise),
            "misspellings": self.noise.misspellings_hash,
            "batch_max_length": config.batch_max_length,
            "bucket_span": config.bucket_span,
            "batch_shares": count_step_parts(config),
        }
        return TableStream(
            self._order,
            read,
            rank=rank,
            world_size=world_size,
            accumulation=config.gradient_accumulation_steps,
            num_workers=config.num_workers,
            fingerprint=fingerprint,
            state=state,
        )

    def state(self) -> Any:
        return self._chosen

    def restore(self, state: Any) -> None:
        self._chosen = state

    @abstractmethod
    def load(self, folder: Path) -> nn.Module: ...

    @abstractmethod
    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> Sequence[Any]:
        """Returns the output for each line: its flags, or the corrected line."""

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the exported model on the test sets, and writes the report."""
        if self.chooses and self._chosen is None:  # no evaluation was due
            self.evaluate(model, context)
        if self._config.benchmarks is None:
            return []
        exported = self.load(context.exported / "model").to(context.device)

        def judge(lines: Sequence[str]) -> list[Any]:
            return [*self.judge(exported, lines, context)]

        return finish_run(self._config, judge, self.table, context)

    @property
    def inputs(self) -> tuple[str, ...]:
        column = self._config.text_column
        return ("text" if column == "auto" else column,)

    @abstractmethod
    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Any]]:
        """Returns the flags or corrections of the model in each text."""

    def find_unknown_script(self, word: str) -> str:
        """Returns the script of a word if the lexicon of the loaded model lacks it; otherwise "".

        Such words are not judged. Models without a lexicon judge words of every script.
        """
        return ""

    def warn_of_unknown_scripts(self, texts: Iterable[str]) -> None:
        """Logs the number of words of texts that were not judged, by their script."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(map(self.find_unknown_script, text.split()))
        _warn_of_scripts(counts)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the output record of each input record; see `make_record`."""
        (column,) = self.inputs
        scripts: Counter[str] = Counter()
        for batch in split_into_lists(records, PREDICTION_BATCH_SIZE):
            texts = [str(record[column]) for record in batch]
            for text, changes in zip(texts, self.changes(model, texts), strict=True):
                scripts.update(map(self.find_unknown_script, text.split()))
                yield make_record(text, changes, corrects="text" in self.forms)
        _warn_of_scripts(scripts)


class WordDetection(SpellingTask):
    """Detects the words with errors.

    The unit of decisions is a word; a subclass may choose another.
    """

    _config: DetectionConfig
    forms = ("color", "json")
    about = "Finds the words of a text that have a spelling error."
    _threshold = np.float64(0)  # the logit above which a unit is flagged

    @cached_property
    def _inputs(self) -> Inputs:
        return detector.build_inputs(self._config, self.table, self.noise)

    @property
    def _measure(self) -> Any:
        return self._inputs.measure

    def _estimate_max_tokens(self, samples: Sequence[Sample]) -> np.ndarray:
        return self._inputs.measure_lengths([sample.correct.split() for sample in samples])

    def build_model(self) -> nn.Module:
        return detector.build_detector(self._config, self._inputs)

    def _fits(self, words: Sequence[str], room: int) -> bool:
        return self._inputs.fits(words, room)

    def _build_micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        """Builds a micro-batch, with `labels`, float [texts, words].

        They are 1 for words with an error, 0 for others, and -1 for padding.
        """
        tensors = self._inputs.make_tensors([pair.source for pair in pairs], trains=True)
        labels = torch.full((len(pairs), max(len(pair.source) for pair in pairs)), -1.0)
        for row, pair in enumerate(pairs):
            labels[row, : len(pair.source)] = torch.from_numpy(mark_wrong_words(pair)).float()

        is_token = tensors["words" if "words" in tensors else "attention_mask"] > 0
        tokens = int(is_token.sum())
        return MicroBatch(
            tensors={**tensors, "labels": labels},
            weight=self._count_targets(labels),
            tokens=tokens,
            padding=is_token.numel() - tokens,
            documents=[pair.name for pair in pairs],
            counts={"texts": float(len(pairs)), "errors": float((labels > 0).sum())},
        )

    def _count_targets(self, labels: torch.Tensor) -> float:
        """Counts the units that have a loss, from the labels of words."""
        return float((labels >= 0).sum())

    def _judge_units(self, logits: np.ndarray) -> np.ndarray:
        """Computes the logits of the units of a text from the logits of its words."""
        return logits

    def _label_units(self, pair: Pair) -> np.ndarray:
        """Labels the units of a text: int [units], 1 for an error."""
        return mark_wrong_words(pair)

    def _find_units(self, text: str, chunk: Span) -> list[Span]:
        """Finds the positions, in the text, of the units of a chunk."""
        word_spans = find_words(text[chunk.start : chunk.end])
        return [Span(chunk.start + start, chunk.start + end) for start, end in word_spans]

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of the words, and the share of right predictions."""
        labels = batch["labels"]
        logits = detector.compute_word_logits(model, batch)
        is_word = labels >= 0
        is_right = ((logits.detach() > 0) == (labels > 0)) & is_word
        return Loss(
            detector.compute_word_losses(logits, labels).sum(),
            {"word_accuracy": (is_right.sum(), is_word.sum())},
        )

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the validation samples at logit 0, and chooses the threshold to export."""
        pairs = self._validation
        if not pairs:
            return []

        logits = self._compute_logits(model, [pair.source for pair in pairs], context)
        clean_logits = self._compute_logits(model, [pair.correct for pair in pairs], context)
        labels = [self._label_units(pair) for pair in pairs]
        all_logits = np.concatenate(logits)
        all_labels = np.concatenate(labels)

        precision = self._config.wanted_precision
        self._chosen = asdict(
            calibrate_threshold(all_logits.astype(np.float64), all_labels, precision)
        )

        flags = [(row > 0).astype(int).tolist() for row in logits]
        counts = count_detection_outcomes(flags, [row.tolist() for row in labels])
        # The cross-entropy: log(1 + exp(-logit)) for an error, log(1 + exp(logit)) otherwise.
        losses = np.logaddexp(0, np.where(all_labels > 0, -all_logits, all_logits))
        false_alarms = float((np.concatenate(clean_logits) > 0).mean())
        judged = Judged(counts, false_alarms, float(losses.mean()))
        values = compute_values(select_training_rows(DETECTION_METRICS), judged)
        return make_metrics(DETECTION_METRICS, values)

    def _compute_logits(
        self,
        model: nn.Module,
        texts: Sequence[Sequence[str]],
        context: Processes,
        kept_words: KeptWords | None = None,
    ) -> list[np.ndarray]:
        """Computes the logits of the units of each text.

        Args:
            kept_words: Words that are never flagged.
        """
        budget = self._config.batch_max_length
        rows = detector.compute_logits_of_words(model, self._inputs, texts, budget, context)
        logits: list[np.ndarray] = []
        for words, row in zip(texts, rows, strict=True):
            if kept_words:
                is_kept = np.array([word in kept_words for word in words], bool)
                row[is_kept] = np.minimum(row[is_kept], detector.NO_ERROR_LOGIT)
            logits.append(self._judge_units(row))
        return logits

    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> list[list[int]]:
        """Flags the units of each line."""
        logits = self._compute_logits(
            model, [line.split() for line in lines], context, self.kept_words
        )
        return [(row > self._threshold).astype(int).tolist() for row in logits]

    def load(self, folder: Path) -> nn.Module:
        model, self._inputs = detector.load_detector(folder)
        self._threshold = read_saved_threshold(folder) if self._config.abstains else np.float64(0)
        return model

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Flag]]:
        """Returns the flagged units of each text.

        Where the unit is the whole text, a text above `max_characters` has a unit per chunk.
        """
        chunks: list[tuple[int, Span]] = []  # with the number of the text
        for number, text in enumerate(texts):
            chunks += [(number, chunk) for chunk in self._divide_text(text)]

        context = Processes(device=next(model.parameters()).device)
        chunk_words = [texts[number][slice(*chunk)].split() for number, chunk in chunks]
        logits = self._compute_logits(model, chunk_words, context, self.kept_words)

        flags: list[list[Flag]] = [[] for _ in texts]
        for (number, chunk), row in zip(chunks, logits, strict=True):
            text = texts[number]
            for span, logit in zip(self._find_units(text, chunk), row, strict=True):
                if logit > self._threshold:
                    flags[number].append(Flag(*span, text[slice(*span)], float(expit(logit))))
        return flags

    def find_unknown_script(self, word: str) -> str:
        return self._inputs.find_unknown_script(word)

    def _divide_text(self, text: str) -> list[Span]:
        """Divides a text into stripped chunks of at most `max_characters`."""
        spans: list[Span] = []
        end = 0
        for chunk in cut_text(text, self._config.max_characters):
            start = end + len(chunk) - len(chunk.lstrip())
            end += len(chunk)
            if chunk.strip():
                spans.append(Span(start, start + len(chunk.strip())))
        return spans

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        write_model(model, weights, folder, self._config.export_dtype)
        self._inputs.write(folder)
        if self._chosen is not None:
            text = json.dumps(self._chosen, indent=1) + "\n"
            (folder / CALIBRATION_FILE).write_text(text, encoding="utf-8")
        self._write_card(folder)


class SequenceDetection(WordDetection):
    """Detects the texts with errors; the unit is the whole text."""

    about = "Finds the texts that have a spelling error."

    def _count_targets(self, labels: torch.Tensor) -> float:
        return float(len(labels))

    def _judge_units(self, logits: np.ndarray) -> np.ndarray:
        return detector.compute_sequence_logit(logits)[None]

    def _label_units(self, pair: Pair) -> np.ndarray:
        return mark_wrong_words(pair).max(initial=0)[None]

    def _find_units(self, text: str, chunk: Span) -> list[Span]:
        return [chunk]

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of the texts, and the share of right predictions."""
        is_word = batch["labels"] >= 0
        labels = (batch["labels"] > 0).any(1).float()
        losses = detector.compute_sequence_losses(
            detector.compute_word_logits(model, batch), is_word, labels
        )
        is_right = (losses.detach() < np.log(2)).float()  # p(label) > 0.5
        return Loss(losses.sum(), {"accuracy": (is_right.sum(), torch.ones_like(is_right).sum())})


def _warn_of_scripts(counts: Counter[str]) -> None:
    """Logs the number of words that were not judged.

    Args:
        counts: The number of words by unknown script; "" counts the judged words.
    """
    unknown = Counter({script: count for script, count in counts.items() if script})
    if unknown:
        scripts = ", ".join(f"{script} {count:,}" for script, count in unknown.most_common())
        logger.warning(
            "words that were not judged, because the lexicon of the model has no words of their "
            "script: %d of %d (%s)",
            unknown.total(),
            counts.total(),
            scripts,
        )


def read_saved_threshold(folder: Path) -> np.float64:
    """Reads the threshold for `abstains`: a logit; infinite if none had the wanted precision.

    Raises:
        DataError: If the file is missing or damaged.
    """
    file = folder / CALIBRATION_FILE
    try:
        calibration = decode_json(file.read_bytes(), Calibration)
    except (OSError, ValueError) as error:
        raise DataError(
            f"abstains: {file} cannot be read: {error}; it is written by a run with validation "
            "samples (val_splits)"
        ) from error

    if calibration.threshold is None:
        logger.warning(
            "abstains: no threshold has a precision of %.3f: the highest is %.3f, at recall %.3f; "
            "nothing is flagged",
            calibration.wanted,
            calibration.precision,
            calibration.recall,
        )
        return np.float64(np.inf)

    # A logit equal to the threshold is flagged. In float64: float32 logits are compared exactly.
    return np.nextafter(np.float64(calibration.threshold), -np.inf)


def mark_wrong_words(pair: Pair) -> np.ndarray:
    """Marks the words with errors by 1: int64 [words]."""
    is_wrong = [word != correct for word, correct in zip(pair.source, pair.correct, strict=True)]
    return np.array(is_wrong, np.int64)


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Calibration:
    """A threshold chosen for a wanted precision, and its scores on held-out units."""

    wanted: Share  # the wanted precision
    threshold: float | None  # the lowest score that is flagged; None: none has that precision
    precision: Share  # with the threshold; if it is None, the highest of any threshold
    recall: Share  # at that precision
    flagged: Annotated[int, msgspec.Meta(ge=0)]  # number of units at that precision


def calibrate_threshold(scores: np.ndarray, labels: np.ndarray, precision: float) -> Calibration:
    """Chooses the threshold with the highest recall at or above the wanted precision.

    Args:
        scores: float [units], of held-out units, higher for likelier errors.
        labels: int [units], 1 for an error.
        precision: The wanted precision.
    """
    order = np.argsort(-scores, kind="stable")
    ordered_scores = scores[order]
    is_error = np.asarray(labels)[order].astype(bool)
    if not is_error.any():
        return Calibration(precision, None, 0.0, 0.0, 0)

    hits = np.cumsum(is_error)
    flagged = np.arange(1, len(is_error) + 1)

    # Equal scores are flagged together: a threshold can only be the last of them.
    ends = np.flatnonzero(np.append(ordered_scores[1:] != ordered_scores[:-1], True))
    precisions = hits[ends] / flagged[ends]
    precise_enough = np.flatnonzero(precisions >= precision)
    if len(precise_enough):
        best = precise_enough[-1]  # the last has the highest recall
    else:
        best = np.flatnonzero(precisions == precisions.max())[-1]

    end = ends[best]
    return Calibration(
        wanted=precision,
        threshold=float(ordered_scores[end]) if len(precise_enough) else None,
        precision=float(precisions[best]),
        recall=float(hits[end] / hits[-1]),
        flagged=int(flagged[end]),
    )
