"""Batches of items, and their results over all processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bsmeta.training import task
from bsmeta.training.ranks.processes import ALONE, Processes
from bsmeta.training.task import (
    run_on_all_ranks,
    sort_into_batches,
    sort_into_budgeted_batches,
    sort_into_tight_batches,
    split_into_lists,
)


def test_batches_are_sorted_by_length() -> None:
    assert [b.tolist() for b in sort_into_batches([3, 1, 9, 4, 1], 2)] == [[1, 4], [0, 3], [2]]
    assert [b.tolist() for b in sort_into_budgeted_batches([3, 1, 9, 4, 1], 8)] == [
        [1, 4],
        [0, 3],
        [2],
    ]
    assert [b.tolist() for b in sort_into_budgeted_batches([3, 3, 3], 8)] == [[0, 1], [2]]
    assert sort_into_batches([], 2) == sort_into_budgeted_batches([], 8) == []
    assert list(split_into_lists("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("lengths", "size", "batches"),
    [
        ([130, 100, 200, 101, 199], 8, [[1, 3], [0], [4, 2]]),  # with 130, 59 tokens of padding
        ([100, 116, 100], 8, [[0, 2, 1]]),  # 32
        ([100, 117, 100], 8, [[0, 2], [1]]),  # 34
        ([3, 9, 5], 8, [[0, 2, 1]]),  # few tokens: a further call would take longer
        ([1000, 950, 900], 8, [[2, 1], [0]]),  # 50 of 1,850 tokens; with 1,000, 150 of 2,850
        ([7, 7, 7], 2, [[0, 1], [2]]),
        ([], 2, []),
    ],
)
def test_tight_batches_have_little_padding(
    lengths: list[int], size: int, batches: list[list[int]]
) -> None:
    assert [batch.tolist() for batch in sort_into_tight_batches(lengths, size)] == batches


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_rank_runs_equally_often_and_gets_all_results(world_size: int) -> None:
    lengths = np.array([3, 1, 9, 4, 1, 5, 2])
    batches = sort_into_budgeted_batches(lengths, 8)
    runs: list[list[list[int]]] = []
    parts: list[dict[int, list[int]]] = []

    def rank(number: int, exchange: Callable[[Any], list[Any]]) -> list[int]:
        rank_batches: list[list[int]] = []

        def run(batch: np.ndarray) -> list[int]:
            rank_batches.append(batch.tolist())
            return (batch * 10).tolist()

        class Shared(Processes):
            def gather(self, value: Any) -> list[Any]:
                return exchange(value)

        results = run_on_all_ranks(batches, run, Shared(number, world_size))
        runs.append(rank_batches)
        return results

    def note(value: dict[int, list[int]]) -> list[dict[int, list[int]]]:
        parts.append(value)
        return []

    for number in range(world_size):
        rank(number, note)
    assert len({len(rank_batches) for rank_batches in runs}) == 1
    assert all(max(lengths[batch]) * len(batch) <= 8 or len(batch) == 1
               for rank_batches in runs for batch in rank_batches)  # fmt: skip
    assert rank(0, lambda _: parts) == [0, 10, 20, 30, 40, 50, 60]


def test_long_scoring_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = itertools.count(0, 4)  # seconds
    monkeypatch.setattr(task, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    caplog.set_level("INFO", logger="bsmeta")
    single = [np.array([number]) for number in range(8)]
    assert run_on_all_ranks(single, lambda numbers: numbers * 2, ALONE) == [*range(0, 16, 2)]
    assert caplog.messages == ["scoring: 2 of 8 batches", "scoring: 5 of 8 batches"]
