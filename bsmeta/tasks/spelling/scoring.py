"""Runs a model on many texts, shared among the processes: every rank gets all results.

The batches depend on the texts only, not on the number of processes, and each rank runs the model
equally often: under ZeRO-3 the ranks gather the weights together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.spelling.detector import word_logits
from bsmeta.tasks.spelling.inputs import Inputs, Words


def spread(
    lengths: np.ndarray,
    budget: int,
    run: Callable[[np.ndarray], Sequence[Any]],
    context: EvaluationContext,
) -> list[Any]:
    """The result of each item, in their order.

    Args:
        lengths: Tokens of each item, int [items].
        budget: Padded tokens of a batch (a longer item is a batch by itself).
        run: Returns the results of a batch of items, given their numbers.
        context: The processes.
    """
    batches = _batches(np.asarray(lengths), budget)
    own: list[tuple[int, Any]] = []
    for start in range(0, len(batches), context.world_size):
        turn = start + context.rank
        batch = batches[min(turn, len(batches) - 1)]
        found = run(batch)
        if turn < len(batches):
            own += zip(batch.tolist(), found, strict=True)
    everyone = dict(item for part in context.gather(own) for item in part)
    return [everyone[number] for number in range(len(lengths))]


def _batches(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """The items by length, in batches whose padded tokens fit the budget."""
    order = np.argsort(lengths, kind="stable")
    found, start = [], 0
    for end in range(1, len(order) + 1):
        is_last = end == len(order)
        if is_last or (end + 1 - start) * lengths[order[end]] > budget:
            found.append(order[start:end])
            start = end
    return found


def logits_of_words(
    model: nn.Module,
    inputs: Inputs,
    texts: Sequence[Words],
    budget: int,
    context: EvaluationContext,
) -> list[np.ndarray]:
    """The logit of an error for each word of each text, float32 [words].

    Args:
        model: The detector, wrapped or not, in evaluation mode.
        inputs: Its inputs.
        texts: The words of each text; a text may be empty, or longer than the model can read.
        budget: Padded tokens of a batch.
        context: The processes.
    """
    windows = [
        (number, part) for number, words in enumerate(texts) for part in inputs.windows(words)
    ]
    parts = [part for _, part in windows]

    def run(batch: np.ndarray) -> list[np.ndarray]:
        chosen = [parts[number] for number in batch]
        tensors = {
            name: tensor.to(context.device) for name, tensor in inputs.tensors(chosen).items()
        }
        with torch.no_grad():
            logits = word_logits(model, tensors).float().cpu().numpy()
        return [row[: len(part)].copy() for row, part in zip(logits, chosen, strict=True)]

    scored = spread(inputs.lengths(parts), budget, run, context)
    found: list[list[np.ndarray]] = [[] for _ in texts]
    for (number, _), logits in zip(windows, scored, strict=True):
        found[number].append(logits)
    return [np.concatenate(rows) if rows else np.zeros(0, np.float32) for rows in found]
