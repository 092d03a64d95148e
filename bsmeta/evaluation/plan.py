"""Work plan: groups documents into blocks, assigns blocks to ranks, groups windows into batches.

Batches depend on lengths alone, never on the number of processes: a document is always scored in
the same batch, so the metrics do not change with the world size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEWEST_BLOCKS = 16
"""Minimum number of blocks, so that several ranks can share a small set."""

DOCUMENTS_PER_BLOCK = 64
"""Documents (on average) that are rendered, encoded and kept in memory at one time."""

FORWARD_OVERHEAD = 96
"""Cost of one model call in tokens: less padding than this costs less than another call."""


def plan_blocks(costs: Sequence[int]) -> list[list[int]]:
    """Group documents into blocks of similar document lengths and about equal total cost.

    Args:
        costs: The cost of each document (for example its characters).

    Returns:
        Blocks of document indices, the longest documents first.
    """
    count = len(costs)
    if count == 0:
        return []
    wanted = max(min(FEWEST_BLOCKS, count), -(-count // DOCUMENTS_PER_BLOCK))
    share = sum(costs) / wanted
    blocks: list[list[int]] = [[]]
    filled = 0.0
    for index in sorted(range(count), key=lambda i: (-costs[i], i)):
        if blocks[-1] and filled + costs[index] / 2 > share:
            blocks.append([])
            filled = 0.0
        blocks[-1].append(index)
        filled += costs[index]
    return blocks


def own_blocks(blocks: Sequence[list[int]], rank: int, world_size: int) -> list[list[int]]:
    """The blocks that a rank scores; every rank gets the same number, possibly some empty."""
    rounds = -(-len(blocks) // world_size)
    mine = [blocks[i] for i in range(rank, len(blocks), world_size)]
    return mine + [[] for _ in range(rounds - len(mine))]


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group windows into padded batches at minimum cost.

    Windows are sorted by length and split into consecutive groups by dynamic programming; the cost
    of a batch is its rows times its longest row (padding included), plus a constant per model call.

    Args:
        lengths: Tokens of each window.
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
