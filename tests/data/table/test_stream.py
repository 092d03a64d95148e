"""The steps of all ranks together do not depend on how many ranks, workers and parts there are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import FixedSize, StepOrder, TableStream, TokenBudget

LENGTHS = np.array([(7 * row) % 23 + 1 for row in range(61)])
ORDERS: dict[str, StepOrder] = {
    "fixed": FixedSize(61, 16, seed=3),
    "budget": TokenBudget(LENGTHS, budget=400, span=6, shares=16, seed=3),
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
    order: StepOrder, world_size: int, workers: int, accumulation: int, steps: int,
    state: dict[str, Any] | None = None,
) -> tuple[list[list[str]], dict[str, Any]]:  # fmt: skip
    """The documents of each step over all ranks, sorted, and the state after the last."""
    ranks = [
        stream(order, rank, world_size, accumulation=accumulation, num_workers=workers, state=state)
        for rank in range(world_size)
    ]
    data = [list(itertools.islice(iter(rank), steps)) for rank in ranks]
    for step in itertools.chain(*data):
        assert len(step.micro_batches) == accumulation
    documents = [
        sorted(name for rank in parts for batch in rank.micro_batches for name in batch.documents)
        for parts in zip(*data, strict=True)
    ]
    merged = TableStream.merge([rank[-1].state for rank in data])
    return documents, {"fingerprint": ranks[0].fingerprint, **merged}  # as the trainer saves it


@pytest.mark.parametrize("kind", ORDERS)
def test_global_batches_are_the_same_for_every_launch(kind: str) -> None:
    order = ORDERS[kind]
    steps = 2 * order.steps_per_epoch + 1
    expected, _ = global_steps(order, 1, 0, 1, steps)
    for world_size, workers, accumulation in itertools.product((1, 2, 4, 8), (0, 2), (1, 2)):
        found, state = global_steps(order, world_size, workers, accumulation, steps)
        assert found == expected
        assert state["steps"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_resumes_of_every_launch(
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
def test_every_row_once_an_epoch(kind: str) -> None:
    order = ORDERS[kind]
    documents, _ = global_steps(order, 2, 0, 2, 2 * order.steps_per_epoch)
    names = sorted(itertools.chain(*documents))
    assert names == sorted(f"{epoch}:{row}" for epoch in range(2) for row in range(61))


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_resumes_at_every_step_of_an_epoch(kind: str, epoch: int) -> None:
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
    order = FixedSize(5, 4, seed=0)  # steps of 4 and of 1 rows
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
def test_what_a_worker_cannot_read_is_raised_in_the_training_process(workers: int) -> None:
    def fail(rows: np.ndarray, epoch: int) -> MicroBatch:
        raise DataError("row 3 is damaged")

    failing = TableStream(
        FixedSize(5, 4, seed=0), fail, rank=0, world_size=1, accumulation=1,
        num_workers=workers, fingerprint={},
    )  # fmt: skip
    with pytest.raises(DataError, match="row 3 is damaged"):
        next(iter(failing))
