"""Windows of tokens to log-probabilities: batched, on any causal model, bounded in memory.

A batch is padded on the right and needs no attention mask: under causal attention a token never
sees the padding behind it. Vocabulary logits are computed only where a token is scored (a hook on
the output embedding picks those rows) and, where the model allows it, a few rows at a time.
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
from torch.nn.functional import cross_entropy

from bsmeta.config.errors import ConfigurationError

LOGITS_PER_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits that are computed, or held in float32, at one time (on a CPU few enough for a cache)."""

ROWS_PER_CHUNK = 64
"""Rows of them at least: with fewer a matrix product is no longer efficient."""

LOGITS_PER_BATCH = 1 << 29
"""Logits (in the model's own type) that one call of the model may return."""


@dataclass(slots=True)
class Window:
    """What the model sees at once: (prefix, context,) text of one document.

    Attributes:
        ids: int32 [n], token ids.
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after the last; equal to `starts` where a token holds no text.
        scored: bool [n], tokens whose probability counts (never the first of the window).
        own: Index of the first token that belongs to this window; those before it (prefix,
            context) are only seen.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    scored: np.ndarray
    own: int


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, whatever a launcher wrapped around it."""
    while isinstance(module := getattr(model, "module", None), nn.Module):
        model = module  # DDP and the DeepSpeed engine keep the model there
    return model


def output_embedding_of(model: nn.Module) -> nn.Module:
    """The layer that makes logits.

    Raises:
        ConfigurationError: The model has none: it is not a language model.
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


def max_batch_tokens(vocabulary: int, rows: int, max_seq_len: int) -> int:
    """Tokens of the largest batch: `rows` full sequences, less where the vocabulary is large."""
    return max(min(rows * max_seq_len, LOGITS_PER_BATCH // max(vocabulary, 1)), max_seq_len)


@contextmanager
def scoring(model: nn.Module, device: torch.device) -> Iterator[Scorer]:
    """A scorer for a model, which is in evaluation mode meanwhile and as before afterwards.

    Args:
        model: A causal language model, wrapped by a launcher or not.
        device: Where its inputs go.
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
    """Scores batches of windows with one model, which `scoring` has put into evaluation mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._head = output_embedding_of(model)
        self._picked = threading.local()  # .rows: which hidden states the head is to see
        # a wrapped model may be spread over ranks: then every call of it must be like the others'
        self._is_bare = unwrapped(model) is model
        self._hook = self._head.register_forward_pre_hook(self._pick)
        self._by_rows = False
        self._by_rows = self._is_bare and self._head_makes_the_logits()

    def close(self) -> None:
        """Leave the model as it was."""
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
        # a thread a batch: threads that share each small operation wait for each other
        try:
            torch.set_num_threads(1)
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(self._score_batch, batches))
        finally:
            torch.set_num_threads(threads)

    def dummy(self) -> None:
        """A call of the model whose result nobody needs: keeps ranks with less work in step.

        Under ZeRO-3 (and under DDP, where buffers are synchronised) a forward pass is collective.
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
        return np.split(values, np.cumsum([len(part) for part in kept])[:-1])

    def _score_rows(
        self, ids: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Log-probabilities float32 [n] of targets [n], at flat positions [n] of ids [b, l]."""
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
        """The model's logits, and the hidden states below them, at flat positions of ids.

        Where the head is applied by rows, the model itself computes no logits.
        """
        self._picked.rows = rows
        try:
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._picked.rows = None
        return logits, self._picked.hidden

    def _pick(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The hook of the head: of all hidden states it is to see those that are wanted."""
        rows = getattr(self._picked, "rows", None)
        if rows is None:  # called by ourselves
            return inputs
        self._picked.hidden = inputs[0].flatten(0, -2)[rows]
        shown = self._picked.hidden[:0] if self._by_rows else self._picked.hidden
        return (shown.unsqueeze(0), *inputs[1:])

    @torch.no_grad()
    def _head_makes_the_logits(self) -> bool:
        """Whether logits are the head's output as it is (some models scale or cap them)."""
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self._device)
        logits, hidden = self._call(ids, torch.zeros(1, dtype=torch.int64, device=self._device))
        own = self._head(hidden)
        return own.dtype == logits.dtype and torch.equal(own, logits)
