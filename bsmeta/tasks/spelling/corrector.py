"""The base of the tasks that correct texts, whatever model they train."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.corrections import Correction, apply_corrections, joined
from bsmeta.tasks.spelling.inputs import Inputs, Words
from bsmeta.tasks.spelling.samples import Pair
from bsmeta.tasks.spelling.task import SpellingTask
from bsmeta.training.processes import Processes
from bsmeta.training.task import batches_within, spread


class Corrector(SpellingTask):
    """A task that corrects texts; a detector may say which words may be changed."""

    _config: SecConfig
    forms = ("text", "color", "json", "diff")
    about = "Corrects the spelling errors of a text."

    @cached_property
    def _detector(self) -> tuple[nn.Module, Inputs] | None:
        folder = self._config.detector
        return None if folder is None else detector.load_detector(Path(folder))

    def flags(self, texts: Sequence[Words], context: Processes) -> list[list[bool]]:
        """Which words may be changed: those that the detector flags, or all."""
        if self._detector is None:
            return [[True] * len(text) for text in texts]
        model, inputs = self._detector
        budget = self._config.batch_max_length
        logits = detector.logits_of_words(model.to(context.device), inputs, texts, budget, context)
        return [(own > 0).tolist() for own in logits]

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Correction]]:
        """The corrections of each text; each of its lines is a text by itself for the model."""
        context = Processes(device=next(model.parameters()).device)
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        found = iter(self._line_changes(model, lines, context))
        return [joined(text.splitlines(keepends=True), found) for text in texts]

    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> list[str]:
        """The correction of each line."""
        found = self._line_changes(model, lines, context)
        return [apply_corrections(line, own) for line, own in zip(lines, found, strict=True)]

    def _mean_loss(self, model: nn.Module, pairs: Sequence[Pair], context: Processes) -> float:
        """The loss of a target in nats."""

        def run(batch: np.ndarray) -> list[tuple[float, int]]:
            return self._losses(model, [pairs[number] for number in batch], context.device)

        batches = batches_within(self._sizes(pairs), self._config.batch_max_length)
        found = spread(batches, run, context)
        return sum(loss for loss, _ in found) / sum(targets for _, targets in found)

    @abstractmethod
    def _sizes(self, pairs: Sequence[Pair]) -> Sequence[int] | np.ndarray:
        """The tokens of each text."""

    @abstractmethod
    def _losses(
        self, model: nn.Module, pairs: Sequence[Pair], device: torch.device
    ) -> list[tuple[float, int]]:
        """The sum of the losses of the targets of each text, in nats, and their number."""

    @abstractmethod
    def _line_changes(
        self, model: nn.Module, lines: Sequence[str], context: Processes
    ) -> list[list[Correction]]:
        """The corrections of each line, with their places in it."""
