"""Which documents each stream owns: each document once, and as many for each stream."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.plan import Share, cuts_of, deal, order_of, step_of, weight


def shards_of(sizes: list[int]) -> list[Shard]:
    return [Shard(f"{i}.jsonl.gz", f"/{i}.jsonl.gz", size) for i, size in enumerate(sizes)]


SHARDS = shards_of([1000] * 30)
WINDOW = 8


def numbers(share: Share, documents: int, window: int = 0) -> list[int]:
    """The documents of a share of a shard that has so many."""
    found: list[int] = []
    for number in itertools.count(window):
        asked = share.documents(number, WINDOW)
        assert len(asked) == WINDOW
        found += [one for one in asked if one < documents]
        if asked[-1] >= documents:
            return found
    raise AssertionError


@given(
    st.lists(st.integers(0, 3_000_000), min_size=1, max_size=20),
    st.integers(1, 40),
    st.integers(1, 700),
)
def test_every_document_belongs_to_one_stream(
    sizes: list[int], streams: int, documents: int
) -> None:
    owners: Counter[tuple[str, int]] = Counter()
    for shares in deal(shards_of(sizes), [1] * streams):
        for share in shares:
            own = numbers(share, documents)
            assert own == sorted(own)
            owners.update((share.shard.name, number) for number in own)
    assert set(owners.values()) == {1}
    assert len(owners) == documents * len(sizes)


@pytest.mark.parametrize("count", [1, 2, 5, 15, 30])
@pytest.mark.parametrize("streams", [1, 2, 3, 4, 7, 8, 16, 25, 64])
def test_an_epoch_is_even(count: int, streams: int) -> None:
    """The documents of each stream, in shards of different sizes."""
    sizes = [1_000_000 + 70_000 * (i * 7 % 5) for i in range(count)]
    documents = {shard.name: shard.size // 500 for shard in shards_of(sizes)}
    owned = [
        sum(len(numbers(share, documents[share.shard.name])) for share in shares)
        for shares in deal(shards_of(sizes), [1] * streams)
    ]
    assert sum(owned) == sum(documents.values())
    assert max(owned) <= 1.15 * min(owned)


def test_who_owns_what() -> None:
    first, second, third = SHARDS[:3]
    assert deal([first, second], [1, 1]) == [[Share(first)], [Share(second)]]
    assert deal([first, second, third], [1, 1]) == [
        [Share(first), Share(second, 0, 64, 128)],
        [Share(second, 64, 128, 128), Share(third)],
    ]
    large = Shard("a.jsonl.gz", "/a.jsonl.gz", 450_000_000)
    halves = deal([large], [1, 1])
    assert halves == [[Share(large, 0, 64, 128, 429)], [Share(large, 64, 128, 128, 429)]]
    # In runs of 429 documents, in turn.
    assert list(halves[0][0].documents(0, 500))[427:431] == [427, 428, 858, 859]
    assert list(halves[1][0].documents(0, 500))[427:431] == [856, 857, 1287, 1288]


def test_a_shard_stays_whole_where_that_is_about_even() -> None:
    assert cuts_of([1000, 2010, 3000], [1, 1, 1]) == [1000, 2010]
    assert cuts_of([1000, 2200, 3000], [1, 1, 1]) == [1000, 2000]


def test_shards_that_are_not_compressed_count_less() -> None:
    assert weight(Shard("a.jsonl", "/a.jsonl", 1000)) == 200
    assert weight(Shard("a.jsonl.zst", "/a.jsonl.zst", 1000)) == 1000
    assert weight(Shard("a.jsonl", "/a.jsonl", 0)) == 1


def test_slots_are_filled_evenly_from_the_beginning() -> None:
    assert [step_of(cycle) for cycle in (1, 4, 8, 128, 512)] == [1, 3, 5, 79, 317]
    assert [run * step_of(8) % 8 for run in range(8)] == [0, 5, 2, 7, 4, 1, 6, 3]
    quarter = Share(SHARDS[0], 6, 8, 8)  # runs 3 and 6 of each 8
    assert list(quarter.documents(0, 5)) == [3, 6, 11, 14, 19]
    assert list(quarter.documents(2, 5)) == [43, 46, 51, 54, 59]
    third = Share(SHARDS[0], 1, 2, 4, run=3)  # run 3 of each 4: 9, 10, 11, 21, 22, 23 ...
    assert list(third.documents(0, 5)) == [9, 10, 11, 21, 22]


@given(st.integers(0, 31), st.integers(1, 32), st.integers(1, 5), st.integers(0, 500))
def test_the_window_of_a_document(low: int, size: int, run: int, document: int) -> None:
    share = Share(SHARDS[0], low, min(low + size, 32), 32, run)
    window = share.window_from(document, WINDOW)
    later = [one for one in numbers(share, 2000) if one >= document]
    assert later[0] in share.documents(window, WINDOW)
    assert document not in numbers(share, 2000) or later[0] == document


def test_the_order_is_another_in_each_epoch_and_stream() -> None:
    (shares,) = deal(SHARDS, [1])
    orders = [order_of(shares, 1, epoch, stream) for epoch in (0, 1) for stream in (0, 1)]
    assert all(sorted(order, key=shares.index) == shares for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert order_of(shares, 1, 0, 0) == orders[0]
