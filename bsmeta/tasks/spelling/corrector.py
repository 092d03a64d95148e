"""The base of the tasks that correct texts, with any model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bsmeta.tasks.spelling import detector
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.corrections import Correction, apply_corrections, join_corrections
from bsmeta.tasks.spelling.inputs import Inputs, Words
from bsmeta.tasks.spelling.samples import Pair
from bsmeta.tasks.spelling.task import SpellingTask
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_budgeted_batches


class TextLoss(NamedTuple):
    """The loss of the targets of a text."""

    loss: float  # sum over the targets, in nats
    targets: int  # their number


class Corrector(SpellingTask):
    """A task that corrects texts; a detector may select the words that may be changed."""

    _config: SecConfig
    forms = ("text", "color", "json", "diff")
    about = "Corrects the spelling errors of a text."

    @cached_property
    def _detector(self) -> tuple[nn.Module, Inputs] | None:
        folder = self._config.detector
        return None if folder is None else detector.load_detector(Path(folder))

    def flags(self, texts: Sequence[Words], context: Processes) -> list[list[bool]]:
        """Marks the words that may be changed.

        They are the words that the detector flags, or all, without those of `keep_words`.
        """
        flags = [[word not in self.kept_words for word in text] for text in texts]
        if self._detector is None:
            return flags

        model, inputs = self._detector
        budget = self._config.batch_max_length
        rows = detector.compute_logits_of_words(
            model.to(context.device), inputs, texts, budget, context
        )
        return [
            (np.array(text_flags, bool) & (logits > 0)).tolist()
            for text_flags, logits in zip(flags, rows, strict=True)
        ]

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Correction]]:
        """Returns the corrections of each text; each of its lines is a text by itself."""
        lines: list[str] = []
        for text in texts:
            lines += text.splitlines(keepends=True)

        context = Processes(device=next(model.parameters()).device)
        corrections = iter(self._find_line_changes(model, lines, context))
        # `join_corrections` takes the corrections of the lines of one text from the iterator.
        return [join_corrections(text.splitlines(keepends=True), corrections) for text in texts]

    def find_unknown_script(self, word: str) -> str:
        """Returns the script of a word if the lexicon of the detector lacks it; otherwise ""."""
        if self._detector is None:
            return ""
        _, inputs = self._detector
        return inputs.find_unknown_script(word)

    def judge(self, model: nn.Module, lines: Sequence[str], context: Processes) -> list[str]:
        """Corrects each line."""
        line_changes = self._find_line_changes(model, lines, context)
        return [
            apply_corrections(line, changes)
            for line, changes in zip(lines, line_changes, strict=True)
        ]

    def _compute_mean_loss(
        self, model: nn.Module, pairs: Sequence[Pair], context: Processes
    ) -> float:
        """Computes the mean loss per target, in nats, on all ranks."""

        def run(batch: np.ndarray) -> list[TextLoss]:
            return self._compute_losses(model, [pairs[number] for number in batch], context.device)

        batches = sort_into_budgeted_batches(
            self._count_tokens(pairs), self._config.batch_max_length
        )
        results = run_on_all_ranks(batches, run, context)
        return sum(loss for loss, _ in results) / sum(targets for _, targets in results)

    @abstractmethod
    def _count_tokens(self, pairs: Sequence[Pair]) -> Sequence[int] | np.ndarray:
        """Counts the tokens of each pair, for the sizes of batches."""

    @abstractmethod
    def _compute_losses(
        self, model: nn.Module, pairs: Sequence[Pair], device: torch.device
    ) -> list[TextLoss]:
        """Computes the loss of each pair of a batch."""

    @abstractmethod
    def _find_line_changes(
        self, model: nn.Module, lines: Sequence[str], context: Processes
    ) -> list[list[Correction]]:
        """Returns the corrections of each line, with their positions in it."""
