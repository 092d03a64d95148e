"""Planning: every document and window once, whatever the number of processes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.causal_lm.paired import plan_blocks, take_blocks
from bsmeta.tasks.causal_lm.scoring import plan_batches


@given(st.lists(st.integers(1, 5000), max_size=300))
def test_blocks_hold_every_document_once(costs: list[int]) -> None:
    blocks = plan_blocks(costs)
    assert sorted(index for block in blocks for index in block) == list(range(len(costs)))
    assert all(blocks)


def test_a_small_set_is_cut_finely_enough_for_several_ranks() -> None:
    assert plan_blocks([10] * 4) == [[0], [1], [2], [3]]
    assert len(plan_blocks([10] * 64)) == 16


def test_no_document_gives_no_block() -> None:
    assert plan_blocks([]) == []


@given(st.integers(0, 40), st.integers(1, 9))
def test_ranks_share_the_blocks_in_equally_many_rounds(count: int, world_size: int) -> None:
    blocks = [[index] for index in range(count)]
    shares = [take_blocks(blocks, rank, world_size) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    together = sorted(index for share in shares for block in share for index in block)
    assert together == list(range(count))


@given(st.lists(st.integers(1, 64), max_size=80), st.integers(64, 512))
def test_batches_hold_every_window_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = plan_batches(lengths, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= limit


def test_a_window_beyond_the_limit_is_a_batch_of_its_own() -> None:
    assert plan_batches([100, 100], 64) == [[1], [0]]


def test_padding_is_avoided_only_where_it_costs_more_than_a_call() -> None:
    assert plan_batches([10, 12, 11], 4096) == [[1, 2, 0]]
    assert plan_batches([1000, 10, 10], 8192) == [[0], [2, 1]]
