"""Which rows make up a step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.errors import ConfigurationError
from bsmeta.data.table.stream import EpochOrder, FixedSize, SimilarLengths, TokenBudget


def steps(order: EpochOrder) -> list[list[int]]:
    return [order.step(index).tolist() for index in range(len(order.bounds) - 1)]


def test_fixed_steps_hold_every_row_once_and_the_last_one_the_rest() -> None:
    order = FixedSize(7, 3, seed=1)
    assert order.steps_per_epoch == 3
    first, second = steps(order.epoch(0)), steps(order.epoch(1))
    assert [len(step) for step in first] == [3, 3, 1]
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(7))
    assert first != second
    assert first == steps(FixedSize(7, 3, seed=1).epoch(0))
    assert first != steps(FixedSize(7, 3, seed=2).epoch(0))


def test_steps_of_similar_lengths_hold_every_row_once() -> None:
    lengths = np.tile([1, 9, 5], 41)[:121]
    order = SimilarLengths(lengths, 10, seed=1)
    first, second = steps(order.epoch(0)), steps(order.epoch(1))
    assert sorted(map(len, first)) == [1, *[10] * 12]
    assert len(first) == order.steps_per_epoch
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(121))
    assert first != second
    assert first == steps(SimilarLengths(lengths, 10, seed=1).epoch(0))
    mixed = [step for step in first if len({*lengths[step].tolist()}) > 1]
    assert len(mixed) <= 2  # where one length ends and the next begins
    of_steps = [int(lengths[step[0]]) for step in first]
    assert of_steps != sorted(of_steps)


def test_a_budget_of_forty_tokens_takes_rows_of_one_bucket() -> None:
    # Buckets of width 5: lengths 1-4, 5-9, 10-14; in two shares of 20 tokens.
    lengths = np.array([2, 4, 3, 9, 8, 9, 7, 10, 10])
    order = TokenBudget(lengths, budget=40, span=5, shares=2, seed=0)
    # 2 x (20 // 4) = 10 rows of at most 4 tokens, 2 x (20 // 9) = 4 of 9, 2 x (20 // 10) = 4 of 10
    assert order.steps_per_epoch == 3
    assert {frozenset(step) for step in steps(order.epoch(0))} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5, 6}),
        frozenset({7, 8}),
    }


def test_steps_of_a_budget_change_their_order_with_the_epoch() -> None:
    lengths = np.arange(1, 101)
    order = TokenBudget(lengths, budget=800, span=10, shares=4, seed=0)
    epochs = [steps(order.epoch(epoch)) for epoch in range(3)]
    assert all(len(epoch) == order.steps_per_epoch for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=120),
    shares=st.sampled_from([1, 2, 4, 8]),
    share_budget=st.integers(60, 200),
    span=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_budget_steps(
    lengths: list[int], shares: int, share_budget: int, span: int, seed: int
) -> None:
    sizes = np.array(lengths)
    budget = share_budget * shares
    order = TokenBudget(sizes, budget=budget, span=span, shares=shares, seed=seed)
    epoch = steps(order.epoch(seed))
    assert sorted(itertools.chain(*epoch)) == list(range(len(lengths)))
    for step in epoch:
        assert len({length // span for length in sizes[step]}) == 1
        for processes in (parts for parts in (1, 2, 4, 8) if shares % parts == 0):
            for part in np.array_split(np.array(step), processes):
                padded = len(part) * max(sizes[part], default=0)
                assert padded <= budget / processes


def test_a_row_longer_than_its_share_of_the_budget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"longest example has 11 tokens.*at least 22"):
        TokenBudget(np.array([3, 11]), budget=20, span=5, shares=2, seed=0)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 rows"):
        FixedSize(0, 3, seed=0)
    with pytest.raises(ConfigurationError, match="the table is empty"):
        TokenBudget(np.array([], np.int64), budget=20, span=5, shares=2, seed=0)
