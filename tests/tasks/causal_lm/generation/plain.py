"""Guided decoding as slowly and plainly as it can be written: no batch, no padding, no cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


@torch.no_grad()
def compute_next_scores(model: nn.Module, ids: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Returns log-probabilities [vocabulary] of the token after `ids`."""
    logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1, :vocabulary]
    return torch.log_softmax(logits.double(), dim=-1)


def decode_greedily(
    model: nn.Module,
    context: Sequence[int],
    null_context: Sequence[int],
    *,
    guidance: float,
    steps: int,
    vocabulary: int,
    eos: int,
) -> list[int]:
    """Returns the most likely tokens under `null + guidance (context - null)`."""
    written: list[int] = []
    for _ in range(steps):
        given = compute_next_scores(model, [*context, *written], vocabulary)
        null = compute_next_scores(model, [*null_context, *written], vocabulary)
        token = int((null + guidance * (given - null)).argmax())
        if token == eos:
            break
        written.append(token)
    return written
