"""Parts of the loop on their own: figures of speed, FLOPs, sums, garbage, and the feed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from bsmeta.tasks.base import Loss
from bsmeta.training import throughput
from bsmeta.training.distributed import Processes
from bsmeta.training.feed import Feed
from bsmeta.training.garbage import EVERY_STEPS, GarbageCollection
from bsmeta.training.sums import LossSums, add_up, means
from bsmeta.training.throughput import Throughput, flops_per_token
from tests.training.toy_task import ToyBatch

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)


class Tied(nn.Module):
    """100 x 8 embeddings that are the output layer, too; 50 x 8 positions that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(100, 8), nn.Embedding(50, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.words.weight


def test_flops_of_a_token_leave_out_what_is_only_looked_up() -> None:
    assert flops_per_token(Tied()) == 6 * (100 * 8 + 8 * 8 + 8)


def test_speed_counts_tokens_and_tells_padding_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 100.0, 101.0])
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(throughput, "peak_flops", lambda device: 6 * 872 * 1000.0)
    speed = Throughput(Tied(), CPU, world_size=2)
    speed.add(tokens=90, padding=10, wait=0.25)
    speed.add(tokens=210, padding=90, wait=0.5)
    figures = speed.figures()
    assert figures.pop("memory_gb") > 0
    assert figures == {
        "data_wait_s": 0.75,
        "step_s": 1.5,
        "tokens_per_s": 100.0,
        "mfu": 100.0 / (1000.0 * 2),
        "padding": 0.25,
    }
    speed.start()  # an evaluation until second 100 is not the loop's
    speed.add(tokens=50, padding=0, wait=0.0)
    assert speed.figures()["tokens_per_s"] == 50.0


def test_losses_are_added_up_with_what_was_counted() -> None:
    sums = LossSums()
    for value in (1.0, 2.5):
        part = (torch.tensor(value / 2), torch.tensor(4))
        sums.add(Loss(torch.tensor(value), {"url": part, "none": (torch.tensor(0.0),) * 2}))
    totals = add_up(ALONE, {"next/targets": 3.0}, sums, torch.tensor(0.5))
    assert totals.on_device("next/targets").item() == 3.0
    read = totals.read()
    assert read.pop("norm") == 0.5
    assert means(read, 7.0) == (0.5, {"url": 1.75 / 8})
    assert [loss.item() for loss in sums.each] == [1.0, 2.5]


def test_garbage_is_collected_when_it_is_time_to() -> None:
    with GarbageCollection() as garbage:
        assert not gc.isenabled()
        loop: list[Any] = []
        loop.append(loop)
        before = gc.get_stats()[2]["collections"]
        garbage.after(EVERY_STEPS - 1)
        assert gc.get_stats()[2]["collections"] == before
        garbage.after(EVERY_STEPS)
        assert gc.get_stats()[2]["collections"] == before + 1
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@dataclass
class Numbered:
    """A stream that counts what it was asked for."""

    asked: int = 0

    def __iter__(self) -> Iterator[ToyBatch]:
        while True:
            self.asked += 1
            ids = torch.tensor([self.asked])
            yield ToyBatch({"ids": ids}, 2.0, 5, [], {}, {"documents": 1.0}, padding=3)


def test_a_step_is_fetched_when_asked_for_and_counted() -> None:
    stream = Numbered()
    feed = Feed(stream, 2, CPU)  # type: ignore[arg-type]
    assert stream.asked == 0
    data = feed.fetch()
    assert stream.asked == 2
    assert [int(one["ids"]) for one in data.tensors()] == [1, 2]
    assert data.counted() == {
        "targets": 4.0,
        "tokens": 10.0,
        "padding": 6.0,
        "counts/documents": 2.0,
    }
