"""Streams, positions and how sequences are dealt out: arithmetic."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.stream.plan import Division


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
