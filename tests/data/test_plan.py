"""Streams, positions and how sequences are dealt out: arithmetic."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.plan import Division, Share, order_of, shares_of, unevenness
from bsmeta.data.shards import Shard

SHARDS = [Shard(f"{number}.jsonl", f"/{number}.jsonl", 100) for number in range(30)]


@given(st.integers(1, 30), st.integers(1, 40))
def test_every_window_belongs_to_one_stream(count: int, streams: int) -> None:
    owners: dict[tuple[str, int], int] = {}
    for stream in range(streams):
        shares = shares_of(stream, SHARDS[:count], streams)
        assert shares
        for share in shares:
            for window in range(share.offset, 200, share.stride):
                assert owners.setdefault((share.shard.name, window), stream) == stream
    assert len(owners) == 200 * count


def test_shares() -> None:
    assert shares_of(1, SHARDS[:5], 2) == [Share(SHARDS[1], 0, 1), Share(SHARDS[3], 0, 1)]
    assert shares_of(4, SHARDS[:3], 5) == [Share(SHARDS[1], 1, 2)]
    assert Share(SHARDS[1], 1, 2).first_document(3, 10) == 70


def test_the_order_is_another_in_each_epoch_and_stream() -> None:
    shares = shares_of(0, SHARDS, 1)
    orders = [order_of(shares, 1, epoch, stream) for epoch in (0, 1) for stream in (0, 1)]
    assert all(sorted(order, key=shares.index) == shares for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert order_of(shares, 1, 0, 0) == orders[0]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 50))
def test_ranks_and_workers_share_out_every_sequence_once(
    world_size: int, workers: int, done: int
) -> None:
    streams = 16
    dealt: list[int] = []
    for rank in range(world_size):
        division = Division(streams, rank, world_size, workers)
        for worker in range(workers):
            own = list(islice(division.sequences(done, worker), 64 // workers))
            dealt += own
            assert all(number % streams % world_size == rank for number in own)
            assert len({number % streams for number in own}) == streams // world_size // workers
    assert sorted(dealt) == list(range(done, done + 64 * world_size))


def test_unevenness() -> None:
    assert unevenness(SHARDS[:8], 4) == 1
    assert unevenness(SHARDS[:9], 4) == 1.5
    assert unevenness(SHARDS[:2], 5) == 1.5
