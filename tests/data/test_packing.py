"""Best fit against an obvious implementation."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.text.chunks import best_fit, one_each

CAPACITY = 20
lengths = st.lists(st.integers(1, CAPACITY), max_size=80)


def obvious(sizes: list[int], capacity: int) -> list[int]:
    """Rooms left by best-fit decreasing, looking at every sequence for every chunk."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [index for index, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=lambda index: rooms[index])] -= size
        else:
            rooms.append(capacity - size)
    return sorted(rooms)


@given(lengths)
def test_every_piece_once_and_none_too_many(sizes: list[int]) -> None:
    packed = best_fit(sizes, CAPACITY)
    assert sorted(chunk for sequence in packed for chunk in sequence) == list(range(len(sizes)))
    assert all(sum(sizes[chunk] for chunk in sequence) <= CAPACITY for sequence in packed)


@given(lengths)
def test_as_full_as_the_obvious_implementation(sizes: list[int]) -> None:
    rooms = [CAPACITY - sum(sizes[i] for i in sequence) for sequence in best_fit(sizes, CAPACITY)]
    assert sorted(rooms) == obvious(sizes, CAPACITY)


def test_literal() -> None:
    assert best_fit([3, 10, 7, 2, 6, 1], 10) == [[1], [2, 0], [4, 3, 5]]
    assert best_fit([], 10) == []
    assert one_each([3, 10], 10) == [[0], [1]]


def test_fill_of_documents_of_many_lengths() -> None:
    generator = random.Random(0)
    sizes = [1 + int(1024 * generator.random() ** 2) for _ in range(2000)]
    assert sum(sizes) / (1024 * len(best_fit(sizes, 1024))) > 0.995
