"""Groups documents into blocks that are scored one at a time, and deals them to the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.core.rounding import divide_up

MIN_BLOCKS = 16
"""Minimum number of blocks, so that several ranks can share a small set."""

DOCUMENTS_PER_BLOCK = 64
"""Documents (on average) that are rendered, encoded and kept in memory at one time."""


def plan_blocks(costs: Sequence[int]) -> list[list[int]]:
    """Groups documents into blocks of similar document lengths and about equal total cost.

    Args:
        costs: The cost of each document (for example its characters).

    Returns:
        Blocks of document indices, the longest documents first.
    """
    num_documents = len(costs)
    min_blocks = max(min(MIN_BLOCKS, num_documents), 1)
    num_blocks = max(min_blocks, divide_up(num_documents, DOCUMENTS_PER_BLOCK))
    target_cost = sum(costs) / num_blocks

    blocks: list[list[int]] = []
    block_cost = 0.0
    for index in sorted(range(num_documents), key=lambda index: (-costs[index], index)):
        # A document that would exceed the target by more than half of its cost begins a new block,
        # so that the cost of a block is as near to the target as it can be.
        if not blocks or block_cost + costs[index] / 2 > target_cost:
            blocks.append([])
            block_cost = 0.0
        blocks[-1].append(index)
        block_cost += costs[index]
    return blocks


def take_blocks(blocks: Sequence[list[int]], rank: int, world_size: int) -> list[list[int]]:
    """Returns the blocks that a rank scores: the same number for every rank, some perhaps empty."""
    rank_blocks = list(blocks[rank::world_size])
    while len(rank_blocks) < divide_up(len(blocks), world_size):
        rank_blocks.append([])
    return rank_blocks
