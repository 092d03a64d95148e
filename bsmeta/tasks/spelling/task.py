"""Base of the spelling tasks: samples with noise, steps, test sets, and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import TableStream, TokenBudget
from bsmeta.tasks.spelling.config import SecConfig, SpellingConfig, shares_of
from bsmeta.tasks.spelling.corrections import Correction, as_record, joined
from bsmeta.tasks.spelling.detector import load_detector, logits_of_words
from bsmeta.tasks.spelling.evaluate import finish
from bsmeta.tasks.spelling.inputs import Inputs, Words
from bsmeta.tasks.spelling.samples import (
    VALIDATION_EPOCH,
    Pair,
    Pairs,
    Table,
    fitting,
    make_noise,
    open_table,
)
from bsmeta.training.task import EvaluationContext, FinishContext, Loss, Metric, batched

TEXTS_AT_ONCE = 500
"""Records that are batched together."""


class SpellingTask(ABC):
    """A task on texts and their corrections, whose steps are bounded in tokens."""

    _config: SpellingConfig
    forms: tuple[str, ...]
    """In which forms `predict.py` can show what the model changes."""

    def __init__(self, config: SpellingConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._config = config

    @cached_property
    def table(self) -> Table:
        """The samples, whose store is built first if there is none."""
        return open_table(self._config)

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.table, make_noise(self._config), self._config.seed)

    @cached_property
    def _validation(self) -> list[Pair]:
        return self._pairs.read(self.table.numbers("validation"), VALIDATION_EPOCH)

    @abstractmethod
    def _most_tokens(self) -> np.ndarray:
        """The most tokens that each training sample may have, int64 [samples]."""

    @abstractmethod
    def _fits(self, words: Sequence[str], room: int) -> bool:
        """Whether a text has at most that number of tokens."""

    @abstractmethod
    def _micro_batch(self, pairs: Sequence[Pair]) -> MicroBatch:
        """Builds a micro-batch."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """The loss of a micro-batch."""

    @cached_property
    def _lengths(self) -> np.ndarray:
        return self._most_tokens()

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
            pairs, rooms = self._pairs.read(numbers[rows], epoch), self._lengths[rows].tolist()
            return self._micro_batch([
                fitting(pair, self._fits, room) for pair, room in zip(pairs, rooms, strict=True)
            ])  # fmt: skip

        return TableStream(
            self._order,
            read,
            rank=rank,
            world_size=world_size,
            accumulation=config.gradient_accumulation_steps,
            num_workers=config.num_workers,
            fingerprint={
                **self.table.key,
                "task": config.task,
                "noise": vars(config.noise),
                "misspellings": self._pairs.noise.misspellings_hash,
                "batch_max_length": config.batch_max_length,
                "bucket_span": config.bucket_span,
                "batch_shares": shares_of(config),
            },
            state=state,
        )

    @abstractmethod
    def load(self, folder: Path) -> nn.Module:
        """Loads the exported model."""

    @abstractmethod
    def judge(
        self, model: nn.Module, lines: Sequence[str], context: EvaluationContext
    ) -> Sequence[Any]:
        """The model's output for each line (see `benchmarks.Judge`)."""

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test sets, once, with the exported model; writes the report."""
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


class Corrector(SpellingTask):
    """A task that corrects texts; a detector may say which words may be changed."""

    _config: SecConfig
    forms = ("text", "color", "json", "diff")

    @cached_property
    def _detector(self) -> tuple[nn.Module, Inputs] | None:
        """The detector and its inputs."""
        folder = self._config.detector
        return None if folder is None else load_detector(Path(folder))

    def flags(self, texts: Sequence[Words], context: EvaluationContext) -> list[list[bool]]:
        """Which words may be changed: those that the detector flags, or all."""
        if self._detector is None:
            return [[True] * len(text) for text in texts]
        model, inputs = self._detector
        budget = self._config.batch_max_length
        logits = logits_of_words(model.to(context.device), inputs, texts, budget, context)
        return [(own > 0).tolist() for own in logits]

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Correction]]:
        """The corrections of each text; each of its lines is a text by itself for the model."""
        context = EvaluationContext.alone(next(model.parameters()).device)
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        found = iter(self._line_changes(model, lines, context))
        return [joined(text.splitlines(keepends=True), found) for text in texts]

    @abstractmethod
    def _line_changes(
        self, model: nn.Module, lines: Sequence[str], context: EvaluationContext
    ) -> list[list[Correction]]:
        """The corrections of each line, with their places in it."""
