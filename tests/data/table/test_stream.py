"""Which rows make up a step, and that it has them on any number of ranks, workers and parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import (
    FixedSizeSteps,
    SimilarLengthSteps,
    StepOrder,
    TableStream,
    TokenBudgetSteps,
)

LENGTHS = np.array([(7 * row) % 23 + 1 for row in range(61)])
ORDERS: dict[str, StepOrder] = {
    "fixed": FixedSizeSteps(61, 16, seed=3),
    "budget": TokenBudgetSteps(LENGTHS, budget=400, span=6, shares=16, seed=3),
}


def collate(rows: np.ndarray, epoch: int) -> MicroBatch:
    longest = int(LENGTHS[rows].max())
    tokens = int(LENGTHS[rows].sum())
    return MicroBatch(
        tensors={"rows": torch.from_numpy(rows)},
        weight=float(len(rows)),
        tokens=tokens,
        padding=len(rows) * longest - tokens,
        documents=[f"{epoch}:{row}" for row in rows],
        counts={"rows": float(len(rows))},
    )


def stream(order: StepOrder, rank: int = 0, world_size: int = 1, **more: Any) -> TableStream:
    settings = {"accumulation": 1, "num_workers": 0, "fingerprint": {"rows": 61}, **more}
    return TableStream(order, collate, rank=rank, world_size=world_size, **settings)


def global_steps(
    order: StepOrder, world_size: int, workers: int, accumulation: int, list_steps: int,
    state: dict[str, Any] | None = None,
) -> tuple[list[list[str]], dict[str, Any]]:  # fmt: skip
    """Returns the sorted documents of each step over all ranks, and the final state."""
    ranks = [
        stream(order, rank, world_size, accumulation=accumulation, num_workers=workers, state=state)
        for rank in range(world_size)
    ]
    data = [list(itertools.islice(iter(rank), list_steps)) for rank in ranks]
    for step in itertools.chain(*data):
        assert len(step.micro_batches) == accumulation
    documents = [
        sorted(name for rank in parts for batch in rank.micro_batches for name in batch.documents)
        for parts in zip(*data, strict=True)
    ]
    merged = TableStream.merge([rank[-1].state for rank in data])
    return documents, {"fingerprint": ranks[0].fingerprint, **merged}  # as the trainer saves it


@pytest.mark.long
@pytest.mark.parametrize("kind", ORDERS)
def test_global_batches_are_the_same_for_every_launch(kind: str) -> None:
    order = ORDERS[kind]
    list_steps = 2 * order.steps_per_epoch + 1
    expected, _ = global_steps(order, 1, 0, 1, list_steps)
    for world_size, workers, accumulation in itertools.product((1, 2, 4, 8), (0, 2), (1, 2)):
        found, state = global_steps(order, world_size, workers, accumulation, list_steps)
        assert found == expected
        assert state["steps"] == list_steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resume_with_any_launch_continues_the_steps(
    kind: str, world_size: int, workers: int, accumulation: int
) -> None:
    order = ORDERS[kind]
    expected, _ = global_steps(order, 1, 0, 1, 3 * order.steps_per_epoch)
    launches = itertools.cycle([(world_size, workers, accumulation), (2, 0, 1)])
    found: list[list[str]] = []
    state = None
    while len(found) < len(expected):
        part, state = global_steps(order, *next(launches), 3, state)
        found += part
    assert found[: len(expected)] == expected


@pytest.mark.parametrize("kind", ORDERS)
def test_each_epoch_has_every_row_once(kind: str) -> None:
    order = ORDERS[kind]
    documents, _ = global_steps(order, 2, 0, 2, 2 * order.steps_per_epoch)
    names = sorted(itertools.chain(*documents))
    assert names == sorted(f"{epoch}:{row}" for epoch in range(2) for row in range(61))


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_resume_at_any_step_of_an_epoch_continues_the_steps(kind: str, epoch: int) -> None:
    order = ORDERS[kind]
    total = 4 * order.steps_per_epoch
    expected, _ = global_steps(order, 1, 0, 1, total)
    for done in range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch):
        resumed, _ = global_steps(
            order, 2, 0, 1, total - done, {"steps": done, "fingerprint": {"rows": 61}}
        )
        assert resumed == expected[done:]


def test_a_state_of_other_rows_is_refused() -> None:
    state = {"steps": 3, "fingerprint": {"rows": 60}}
    with pytest.raises(ConfigurationError, match="rows: 60 in the checkpoint, 61 now"):
        stream(ORDERS["fixed"], state=state)


def test_a_rank_without_rows_gets_a_filler_without_weight() -> None:
    order = FixedSizeSteps(5, 4, seed=0)  # steps of 4 and of 1 rows
    ranks = [list(itertools.islice(iter(stream(order, rank, 2)), 2)) for rank in range(2)]
    full, empty = ranks[0][1].micro_batches[0], ranks[1][1].micro_batches[0]
    assert (full.weight, len(full.documents)) == (1.0, 1)
    assert (empty.weight, empty.documents, empty.tokens, empty.counts) == (0.0, [], 0, {"rows": 0})
    assert empty.tensors["rows"].tolist() == full.tensors["rows"].tolist()


def test_processes_that_do_not_divide_the_shares_are_refused() -> None:
    message = r"batch_shares=16 is not a multiple of .* = 3 x 2 = 6"
    with pytest.raises(ConfigurationError, match=message):
        stream(ORDERS["budget"], 0, 3, accumulation=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_is_raised_in_the_training_process(workers: int) -> None:
    def fail(rows: np.ndarray, epoch: int) -> MicroBatch:
        raise DataError("row 3 is damaged")

    failing = TableStream(
        FixedSizeSteps(5, 4, seed=0), fail, rank=0, world_size=1, accumulation=1,
        num_workers=workers, fingerprint={},
    )  # fmt: skip
    with pytest.raises(DataError, match="row 3 is damaged"):
        next(iter(failing))


def list_steps(epoch: Sequence[np.ndarray]) -> list[list[int]]:
    return [step.tolist() for step in epoch]


def test_fixed_steps_hold_every_row_once_and_the_last_step_the_rest() -> None:
    order = FixedSizeSteps(7, 3, seed=1)
    assert order.steps_per_epoch == 3
    first, second = list_steps(order.order_epoch(0)), list_steps(order.order_epoch(1))
    assert [len(step) for step in first] == [3, 3, 1]
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(7))
    assert first != second
    assert first == list_steps(FixedSizeSteps(7, 3, seed=1).order_epoch(0))
    assert first != list_steps(FixedSizeSteps(7, 3, seed=2).order_epoch(0))


def test_steps_of_similar_lengths_hold_every_row_once() -> None:
    lengths = np.tile([1, 9, 5], 41)[:121]
    order = SimilarLengthSteps(lengths, 10, seed=1)
    first, second = list_steps(order.order_epoch(0)), list_steps(order.order_epoch(1))
    assert sorted(map(len, first)) == [1, *[10] * 12]
    assert len(first) == order.steps_per_epoch
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(121))
    assert first != second
    assert first == list_steps(SimilarLengthSteps(lengths, 10, seed=1).order_epoch(0))
    mixed = [step for step in first if len({*lengths[step].tolist()}) > 1]
    assert len(mixed) <= 2  # where one length ends and the next begins
    of_steps = [int(lengths[step[0]]) for step in first]
    assert of_steps != sorted(of_steps)


def test_steps_of_a_token_budget_combine_rows_of_similar_length() -> None:
    # Buckets of width 5: lengths 10-14, 5-9, 1-4; in two shares of 20 tokens.
    lengths = np.array([2, 4, 3, 9, 8, 9, 7, 10, 10])
    order = TokenBudgetSteps(lengths, budget=40, span=5, shares=2, seed=0)
    # A step that begins with a row of 10 tokens has 2 x (20 // 10) = 4 rows: both of that bucket
    # and two of the next; one that begins with 9 has 2 x (20 // 9) = 4: the others and the rest.
    assert order.steps_per_epoch == 3
    found = sorted(sorted(lengths[step] // 5) for step in list_steps(order.order_epoch(0)))
    assert found == [[0], [0, 0, 1, 1], [1, 1, 2, 2]]


def test_a_budget_is_filled_though_every_bucket_has_few_rows() -> None:
    """Sentences of 4 to 43 words: 38 buckets of one row to a few hundred, in 8 parts."""
    lengths = np.repeat(np.arange(4, 44), np.r_[1:21, 20:0:-1] * 8)
    order = TokenBudgetSteps(lengths, budget=4096, span=1, shares=8, seed=0)
    tokens = [lengths[step].sum() for step in list_steps(order.order_epoch(0))]
    assert sorted(tokens)[1] > 0.85 * 4096  # one step has the remaining rows


def test_steps_of_a_budget_change_their_order_with_the_epoch() -> None:
    lengths = np.arange(1, 101)
    order = TokenBudgetSteps(lengths, budget=800, span=10, shares=4, seed=0)
    epochs = [list_steps(order.order_epoch(epoch)) for epoch in range(3)]
    assert all(len(epoch) == order.steps_per_epoch for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=120),
    shares=st.sampled_from([1, 2, 4, 8]),
    share_budget=st.integers(60, 200),
    span=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_steps_of_any_budget_hold_every_row_once_within_the_budget(
    lengths: list[int], shares: int, share_budget: int, span: int, seed: int
) -> None:
    sizes = np.array(lengths)
    budget = share_budget * shares
    order = TokenBudgetSteps(sizes, budget=budget, span=span, shares=shares, seed=seed)
    epoch = list_steps(order.order_epoch(seed))
    assert sorted(itertools.chain(*epoch)) == list(range(len(lengths)))
    widths = sorted(sorted(sizes[step] // span) for step in epoch)
    assert all(low[-1] <= high[0] for low, high in itertools.pairwise(widths))
    for step in epoch:
        for processes in (parts for parts in (1, 2, 4, 8) if shares % parts == 0):
            for part in np.array_split(np.array(step), processes):
                padded = len(part) * max(sizes[part], default=0)
                assert padded <= budget / processes


def test_a_row_longer_than_its_share_of_the_budget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"longest example has 11 tokens.*at least 22"):
        TokenBudgetSteps(np.array([3, 11]), budget=20, span=5, shares=2, seed=0)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 rows"):
        FixedSizeSteps(0, 3, seed=0)
    with pytest.raises(ConfigurationError, match="the table has no rows to train on"):
        TokenBudgetSteps(np.array([], np.int64), budget=20, span=5, shares=2, seed=0)
