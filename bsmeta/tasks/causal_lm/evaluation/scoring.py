"""Computes log-probabilities of token windows: batched, for any causal model, in bounded memory.

A batch is padded on the right and needs no attention mask: under causal attention a token never
sees the padding after it. Vocabulary logits are computed only where a token is scored (a hook on
the output embedding selects those rows) and, if the model permits it, a few rows at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import report_progress

LOGITS_PER_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits that are computed, or held in float32, at one time (on a CPU few enough for its cache)."""

ROWS_PER_CHUNK = 64
"""Minimum rows per chunk: with fewer, the matrix product is inefficient."""

LOGITS_PER_BATCH = 1 << 29
"""Maximum number of logits (in the model's dtype) that one model call may return."""


FORWARD_OVERHEAD = 96
"""Cost of one model call in tokens: less padding than this costs less than another call."""


@dataclass(slots=True)
class Window:
    """One input sequence of the model: text of one document, after an optional prefix and context.

    Attributes:
        ids: int32 [n], token ids.
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last; equal to `starts` if a token contains no text.
        scored: bool [n], tokens whose probability counts (never the first of the window).
        own: Index of the first token that belongs to this window; the tokens before it (prefix,
            context) only provide context.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    scored: np.ndarray
    own: int


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without any wrappers (DDP, DeepSpeed)."""
    while isinstance(module := getattr(model, "module", None), nn.Module):
        model = module  # DDP and the DeepSpeed engine keep the model there
    return model


def output_embedding_of(model: nn.Module) -> nn.Module:
    """The layer that computes logits.

    Raises:
        ConfigurationError: The model has none, so it is not a language model.
    """
    inner = unwrapped(model)
    find = getattr(inner, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Module):
        raise ConfigurationError(
            f"{type(inner).__name__} has no output embedding: only causal language models can be "
            "evaluated in bits per byte. Give a checkpoint of the causal_lm task."
        )
    return head


def max_batch_tokens(vocabulary: int, rows: int, row_length: int) -> int:
    """Maximum tokens in a batch: `rows` full sequences, fewer if the vocabulary is large."""
    return max(min(rows * row_length, LOGITS_PER_BATCH // max(vocabulary, 1)), row_length)


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group windows into padded batches at minimum cost.

    Windows are sorted by length and split into consecutive groups by dynamic programming; the cost
    of a batch is its rows times its longest row (padding included), plus a constant per model call.

    Args:
        max_tokens: Maximum padded size of a batch (a longer window forms a batch of its own).

    Returns:
        Batches of window indices, the longest windows first.
    """
    order = np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable")
    ordered = np.asarray(lengths, dtype=np.int64)[order]
    best = np.zeros(len(order) + 1)
    cut_at = np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        longest = max(int(ordered[end - 1]), 1)
        first = end - max(min(end, max_tokens // longest), 1)
        starts = np.arange(first, end)
        costs = best[first:end] + (end - starts) * longest
        cheapest = int(np.argmin(costs))
        best[end] = costs[cheapest] + FORWARD_OVERHEAD
        cut_at[end] = first + cheapest
    batches = []
    end = len(order)
    while end > 0:
        batches.append([int(i) for i in order[cut_at[end] : end][::-1]])
        end = int(cut_at[end])
    return batches


@contextmanager
def scoring(model: nn.Module, device: torch.device) -> Iterator[Scorer]:
    """Yield a scorer for a model, which is in evaluation mode within the context.

    Args:
        model: A causal language model, wrapped by a launcher or not.
    """
    was_training = model.training
    model.eval()
    scorer = Scorer(model, device)
    try:
        yield scorer
    finally:
        scorer.close()
        model.train(was_training)


class Scorer:
    """Scores batches of windows with a model that `scoring` has put into evaluation mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._head = output_embedding_of(model)
        self._picked = threading.local()  # .rows: the hidden states to pass to the head
        # a wrapped model may be sharded over ranks: then all ranks must make the same calls
        self._is_bare = unwrapped(model) is model and not isinstance(model, FSDPModule)
        self._hook = self._head.register_forward_pre_hook(self._pick)
        self._by_rows = False
        self._by_rows = self._is_bare and self._head_makes_the_logits()

    def close(self) -> None:
        """Remove the hook from the model."""
        self._hook.remove()

    def score(self, batches: Sequence[Sequence[Window]]) -> list[list[np.ndarray]]:
        """Score batches of windows.

        Returns:
            For each batch and window: float64 [number of its scored tokens], natural
            log-probabilities.
        """
        threads = torch.get_num_threads()
        if self._device.type != "cpu" or not self._is_bare or threads == 1 or len(batches) < 2:
            return [self._score_batch(batch) for batch in batches]
        # one thread per batch: sharing each small operation among threads is slower
        try:
            torch.set_num_threads(1)
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(self._score_batch, batches))
        finally:
            torch.set_num_threads(threads)

    def dummy(self) -> None:
        """Call the model and discard the result, so that all ranks make the same number of calls.

        Under ZeRO-3 (and under DDP if buffers are synchronized) a forward pass is collective.
        """
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self._device)
        self._call(ids, torch.zeros(1, dtype=torch.int64, device=self._device))

    @torch.no_grad()
    def _score_batch(self, windows: Sequence[Window]) -> list[np.ndarray]:
        lengths = [len(window.ids) for window in windows]
        ids = np.zeros((len(windows), max(lengths)), dtype=np.int64)
        kept: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for row, window in enumerate(windows):
            ids[row, : lengths[row]] = window.ids
            positions = np.flatnonzero(window.scored)
            kept.append(row * ids.shape[1] + positions - 1)  # position j - 1 predicts token j
            targets.append(window.ids[positions])
        rows, wanted = np.concatenate(kept), np.concatenate(targets).astype(np.int64)
        scores = self._score_rows(self._moved(ids), self._moved(rows), self._moved(wanted))
        values = scores.cpu().numpy().astype(np.float64)
        report_progress()
        return np.split(values, np.cumsum([len(part) for part in kept])[:-1])

    def _score_rows(
        self, ids: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Log-probabilities float32 [n] of targets [n] at flat positions [n] in ids [b, l]."""
        logits, hidden = self._call(ids, rows)
        source = hidden if self._by_rows else logits
        chunk_size = LOGITS_PER_CHUNK.get(self._device.type, LOGITS_PER_CHUNK["cuda"])
        step = max(chunk_size // max(logits.shape[-1], 1), ROWS_PER_CHUNK)
        parts = [logits.new_zeros(0, dtype=torch.float32)]
        for start in range(0, len(targets), step):
            chunk = source[start : start + step]
            if self._by_rows:
                chunk = self._head(chunk)
            gold = targets[start : start + step]
            parts.append(-cross_entropy(chunk.float(), gold, reduction="none"))
        return torch.cat(parts)

    def _moved(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    @torch.no_grad()
    def _call(self, ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's logits, and the hidden states that the head gets, at flat positions of ids.

        If the head is applied by rows, the model call itself computes no logits.
        """
        self._picked.rows = rows
        try:
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._picked.rows = None
        return logits, self._picked.hidden

    def _pick(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Pre-forward hook of the head: pass only the selected hidden states."""
        rows = getattr(self._picked, "rows", None)
        if rows is None:  # a direct call of the head
            return inputs
        self._picked.hidden = inputs[0].flatten(0, -2)[rows]
        shown = self._picked.hidden[:0] if self._by_rows else self._picked.hidden
        return (shown.unsqueeze(0), *inputs[1:])

    @torch.no_grad()
    def _head_makes_the_logits(self) -> bool:
        """Whether the logits are the head's unchanged output (some models scale or cap it)."""
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self._device)
        logits, hidden = self._call(ids, torch.zeros(1, dtype=torch.int64, device=self._device))
        own = self._head(hidden)
        return own.dtype == logits.dtype and torch.equal(own, logits)
