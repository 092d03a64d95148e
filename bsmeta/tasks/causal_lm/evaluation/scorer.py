"""Scores batches of windows: the log-probabilities of their tokens.

A batch is padded on the right and needs no attention mask, because under causal attention a token
never sees the padding after it. Vocabulary logits are computed only where a token is scored (a hook
on the output embedding selects those rows) and, if the model permits it, a few rows at a time. On a
GPU, rows and columns of padding limit the number of distinct shapes, and attention uses no kernel
that is planned separately for each shape.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import report_progress
from bsmeta.models.kernel_plans import disable_planned_attention
from bsmeta.models.shapes import count_positions
from bsmeta.tasks.causal_lm.evaluation.batches import SIZE_DIGITS, round_up
from bsmeta.tasks.causal_lm.evaluation.windows import Window

LOGITS_PER_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits that are computed, or held in float32, at one time (on a CPU few enough for its cache)."""

ROWS_PER_CHUNK = 64
"""Minimum rows per chunk: with fewer, the matrix product is inefficient."""


def unwrap_model(model: nn.Module) -> nn.Module:
    """Returns the model without any wrappers (DDP, DeepSpeed)."""
    while True:
        wrapped_model = getattr(model, "module", None)  # of DDP and of DeepSpeed's engine
        if not isinstance(wrapped_model, nn.Module):
            return model
        model = wrapped_model


def find_output_embedding(model: nn.Module) -> nn.Module:
    """Returns the layer that computes logits.

    Raises:
        ConfigurationError: If the model has none, so it is not a language model.
    """
    bare_model = unwrap_model(model)
    get_head = getattr(bare_model, "get_output_embeddings", None)
    head = get_head() if callable(get_head) else None
    if not isinstance(head, nn.Module):
        raise ConfigurationError(
            f"{type(bare_model).__name__} has no output embedding: only causal language models can "
            "be evaluated in bits per byte. Give a checkpoint of the causal_lm task."
        )
    return head


@contextmanager
def open_scorer(model: nn.Module, device: torch.device) -> Iterator[Scorer]:
    """Yields a scorer for a model, which stays in evaluation mode until the context exits."""
    was_training = model.training
    model.eval()
    with disable_planned_attention():
        scorer = Scorer(model, device)
        try:
            yield scorer
        finally:
            scorer.hook.remove()
            model.train(was_training)


class Scorer:
    """Scores batches of windows with a model that `open_scorer` has put into evaluation mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._head = find_output_embedding(model)
        digits = SIZE_DIGITS.get(device.type, SIZE_DIGITS["cuda"])
        self._pad_size = partial(round_up, digits=digits)
        model_config = getattr(unwrap_model(model), "config", None)
        self._positions = None if model_config is None else count_positions(model_config)

        # For each thread, `rows` are the flat positions whose hidden states are passed to the head,
        # and `hidden` are these hidden states.
        self._selection = threading.local()
        self.hook = self._head.register_forward_pre_hook(self._select_rows)

        # A wrapped model may be sharded over ranks: then all ranks must make the same calls.
        self._is_bare = unwrap_model(model) is model and not isinstance(model, FSDPModule)
        self._applies_head_by_rows = False
        if self._is_bare:
            self._applies_head_by_rows = self._returns_output_of_head()

    def _returns_output_of_head(self) -> bool:
        """Whether the logits are the head's unchanged output (some models scale them).

        If they are, the head can be applied to a few rows at a time.
        """
        with torch.no_grad():
            logits, hidden = self.call_dummy()
            output = self._head(hidden)
        return output.dtype == logits.dtype and torch.equal(output, logits)

    def score(self, batches: Sequence[Sequence[Window]]) -> list[list[np.ndarray]]:
        """Scores batches of windows.

        Returns:
            For each batch and window: float64 [number of its scored tokens], natural
            log-probabilities.
        """
        threads = torch.get_num_threads()
        if self._device.type != "cpu" or not self._is_bare or threads == 1 or len(batches) < 2:
            return [self._score_batch(batch) for batch in batches]

        # One thread per batch, because sharing each small operation among threads is slower.
        try:
            torch.set_num_threads(1)
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(self._score_batch, batches))
        finally:
            torch.set_num_threads(threads)

    def call_dummy(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Calls the model on any two tokens, so that all ranks make the same number of calls.

        Under ZeRO-3 (and under DDP if buffers are synchronized) a forward pass is collective.
        """
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self._device)
        return self._call(ids, ids[0, :1])

    @torch.no_grad()
    def _score_batch(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Pads a batch and scores it: for each window, float64 [number of its scored tokens]."""
        lengths = [len(window.ids) for window in windows]
        longest = max(lengths)
        width = self._pad_size(longest)
        if self._positions is not None:
            width = max(min(width, self._positions), longest)

        ids = np.zeros((self._pad_size(len(windows)), width), dtype=np.int64)
        rows_by_window: list[np.ndarray] = []
        targets_by_window: list[np.ndarray] = []
        for number, window in enumerate(windows):
            ids[number, : lengths[number]] = window.ids
            positions = np.flatnonzero(window.scored)
            rows_by_window.append(number * width + positions - 1)  # position j - 1 predicts token j
            targets_by_window.append(window.ids[positions])

        rows = np.concatenate(rows_by_window)
        targets = np.concatenate(targets_by_window).astype(np.int64)
        scores = self._score_rows(
            torch.from_numpy(ids).to(self._device),
            torch.from_numpy(rows).to(self._device),
            torch.from_numpy(targets).to(self._device),
        )
        values = scores.cpu().numpy().astype(np.float64)
        report_progress()
        bounds = np.cumsum([len(window_rows) for window_rows in rows_by_window])
        return np.split(values, bounds[:-1])

    def _score_rows(
        self, ids: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Returns the log-probability of each target, float32 [n].

        Args:
            ids: int64 [b, l].
            rows: int64 [n], flat positions in `ids`, each one before its target.
            targets: int64 [n], token ids.
        """
        logits, hidden = self._call(ids, rows)
        row_values = hidden if self._applies_head_by_rows else logits
        chunk_size = LOGITS_PER_CHUNK.get(self._device.type, LOGITS_PER_CHUNK["cuda"])
        step = max(chunk_size // max(logits.shape[-1], 1), ROWS_PER_CHUNK)

        scores = [logits.new_zeros(0, dtype=torch.float32)]
        # To limit the memory, only a chunk of rows at a time is converted to float32.
        for start in range(0, len(targets), step):
            chunk = row_values[start : start + step]
            if self._applies_head_by_rows:
                chunk = self._head(chunk)
            chunk_targets = targets[start : start + step]
            scores.append(-cross_entropy(chunk.float(), chunk_targets, reduction="none"))
        return torch.cat(scores)

    @torch.no_grad()
    def _call(self, ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Calls the model on `ids`, and selects flat positions in them.

        Args:
            ids: int64 [b, l].
            rows: int64 [n], flat positions in `ids`.

        Returns:
            The logits at these positions, [n, vocabulary], and the inputs of the head, [n, hidden].
            If the head is applied by rows, there are no logits: [0, vocabulary].
        """
        self._selection.rows = rows
        try:
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._selection.rows = None
        return logits, self._selection.hidden

    def _select_rows(
        self, _: nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Pre-forward hook of the head: passes only the selected hidden states."""
        rows = getattr(self._selection, "rows", None)
        if rows is None:  # a direct call of the head
            return inputs

        hidden = inputs[0].flatten(0, -2)[rows]
        self._selection.hidden = hidden
        # If the head is applied by rows, it is called later, and computes no logits here.
        head_input = hidden[:0] if self._applies_head_by_rows else hidden
        return (head_input.unsqueeze(0), *inputs[1:])
