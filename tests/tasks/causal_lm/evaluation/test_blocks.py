"""Blocks: every document once, whatever the number of processes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.causal_lm.evaluation.blocks import plan_blocks, take_blocks


@given(st.lists(st.integers(1, 5000), max_size=300))
def test_blocks_hold_every_document_once(costs: list[int]) -> None:
    blocks = plan_blocks(costs)
    assert sorted(index for block in blocks for index in block) == list(range(len(costs)))
    assert all(blocks)


def test_a_small_set_is_divided_finely_enough_for_several_ranks() -> None:
    assert plan_blocks([10] * 4) == [[0], [1], [2], [3]]
    assert len(plan_blocks([10] * 64)) == 16


def test_without_documents_there_are_no_blocks() -> None:
    assert plan_blocks([]) == []


@given(st.integers(0, 40), st.integers(1, 9))
def test_ranks_share_the_blocks_in_equally_many_rounds(count: int, world_size: int) -> None:
    blocks = [[index] for index in range(count)]
    shares = [take_blocks(blocks, rank, world_size) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    together = sorted(index for share in shares for block in share for index in block)
    assert together == list(range(count))
