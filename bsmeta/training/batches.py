"""Runs a model on many items, in batches that the processes share: every rank gets all results.

The batches depend on the items only, not on the number of processes, and each rank runs the model
equally often: under ZeRO-3 the ranks gather the weights together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from bsmeta.core.progress import report_progress
from bsmeta.training.task import EvaluationContext

Item = TypeVar("Item")
logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 10.0


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of `size`, in their order; the last list has the rest."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def batches_of(lengths: Sequence[int] | np.ndarray, size: int) -> list[np.ndarray]:
    """The numbers of the items by their length, `size` to a batch."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def batches_within(lengths: Sequence[int] | np.ndarray, budget: int) -> list[np.ndarray]:
    """The numbers of the items by their length, in batches of at most `budget` padded tokens.

    A longer item is a batch by itself.
    """
    order = np.argsort(lengths, kind="stable")
    found, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > budget:
            found.append(order[start:end])
            start = end
    return found


def spread(
    batches: Sequence[np.ndarray],
    run: Callable[[np.ndarray], Sequence[Any] | np.ndarray],
    context: EvaluationContext,
) -> list[Any]:
    """The result of each item, in their order.

    Args:
        batches: The numbers of the items of each batch; every item is in one.
        run: Returns the results of a batch of items, given their numbers.
        context: The processes.
    """
    own: dict[int, Sequence[Any] | np.ndarray] = {}
    last = time.monotonic()
    for start in range(0, len(batches), context.world_size):
        turn = start + context.rank
        results = run(batches[min(turn, len(batches) - 1)])
        report_progress()
        if turn < len(batches):
            own[turn] = results
        if context.rank == 0 and time.monotonic() - last > LOG_INTERVAL_S:
            last = time.monotonic()
            logger.info("scoring: %d of %d batches", start, len(batches))
    found: list[Any] = [None] * sum(map(len, batches))
    for part in context.gather(own):
        for turn, results in part.items():
            for item, result in zip(batches[turn].tolist(), results, strict=True):
                found[item] = result
    return found
