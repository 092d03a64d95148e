"""Windows of tokens to log-probabilities: batched, on any causal model, bounded in memory.

A batch is padded on the right and needs no attention mask: under causal attention a token never
sees the padding behind it. The vocabulary logits are computed only where a token is scored (a
hook on the output embedding picks those rows), and turned into float32 a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bsmeta.config.errors import ConfigurationError

LOGITS_PER_CHUNK = 1 << 21
"""Logits that are held in float32 at one time."""

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


def output_embedding_of(model: nn.Module) -> nn.Module:
    """The layer that makes logits, whatever a launcher wrapped around the model.

    Raises:
        ConfigurationError: It is not a language model (it has no output embedding).
    """
    inner = model
    while isinstance(module := getattr(inner, "module", None), nn.Module):
        inner = module  # DDP and the DeepSpeed engine keep the model there
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
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients; the mode of before comes back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def log_probabilities(
    model: nn.Module, windows: Sequence[Window], device: torch.device
) -> list[np.ndarray]:
    """Score one batch of windows.

    Args:
        model: A causal language model, wrapped or not; call it inside `evaluation_mode`.
        windows: Windows of similar length.
        device: Where the model's inputs go.

    Returns:
        For each window: float64 [number of its scored tokens], natural log-probabilities.
    """
    lengths = [len(window.ids) for window in windows]
    ids = np.zeros((len(windows), max(lengths)), dtype=np.int64)
    kept: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for row, window in enumerate(windows):
        ids[row, : lengths[row]] = window.ids
        positions = np.flatnonzero(window.scored)
        kept.append(row * ids.shape[1] + positions - 1)  # position j - 1 predicts token j
        targets.append(window.ids[positions])
    logits = _logits_at(model, torch.from_numpy(ids).to(device), np.concatenate(kept))
    wanted = torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device)
    scores = _log_softmax_at(logits, wanted).cpu().numpy().astype(np.float64)
    return np.split(scores, np.cumsum([len(part) for part in kept])[:-1])


def dummy_forward(model: nn.Module, device: torch.device) -> None:
    """A call of the model whose result nobody needs: keeps ranks with less work in step.

    Under ZeRO-3 (and under DDP, where buffers are synchronised) a forward pass is collective.
    """
    ids = torch.zeros((1, 2), dtype=torch.int64, device=device)
    _logits_at(model, ids, np.zeros(1, dtype=np.int64))


def _logits_at(model: nn.Module, ids: torch.Tensor, kept: np.ndarray) -> torch.Tensor:
    """Logits [len(kept), vocabulary] at flat positions of a batch of ids [rows, length]."""
    rows = torch.from_numpy(kept).to(ids.device)

    def pick(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0].flatten(0, -2)[rows].unsqueeze(0), *inputs[1:])

    handle = output_embedding_of(model).register_forward_pre_hook(pick)
    try:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    return logits[0]


def _log_softmax_at(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[i, targets[i]] in float32, for logits [n, vocabulary]: [n]."""
    rows = max(LOGITS_PER_CHUNK // max(logits.shape[-1], 1), 1)
    parts = []
    for start in range(0, len(targets), rows):
        chunk = logits[start : start + rows].float()
        parts.append(-cross_entropy(chunk, targets[start : start + rows], reduction="none"))
    return torch.cat(parts) if parts else logits.new_zeros(0, dtype=torch.float32)
