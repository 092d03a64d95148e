"""Parts of the loop on their own: speed, FLOPs, statistics of a step, garbage collection."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training import metrics as metrics_module
from bsmeta.training.device_copy import copy_to
from bsmeta.training.distributed import GARBAGE_STEPS, GarbageCollection
from bsmeta.training.metrics import Progress, Throughput
from bsmeta.training.processes import ALONE, Processes
from bsmeta.training.step_stats import DataStats, LossSums, ReducedStats, StepStats
from bsmeta.training.task import Loss, flops_per_token

CPU = torch.device("cpu")
ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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


def test_the_state_of_the_progress_is_a_copy_that_loads_into_another_run() -> None:
    progress = Progress(step=3, tokens=40, targets=30)
    progress.add_counts({"documents": 2.0})
    state = progress.state_dict()
    assert state == {
        "step": 3,
        "tokens": 40,
        "targets": 30,
        "counts": {"documents": 2.0},
        "unlogged": {"documents": 2.0},
        "totals": {"documents": 2.0},
    }
    progress.add_counts({"documents": 1.0})
    progress.step = 4
    progress.load_state_dict(state)
    assert progress == Progress(3, 40, 30, {"documents": 2.0}, {"documents": 2.0}, state["totals"])

    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.tokens`"
    ):
        progress.load_state_dict(state | {"tokens": "40"})
    assert progress.tokens == 40


def test_speed_counts_tokens_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 100.0, 101.0])
    monkeypatch.setattr(metrics_module.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(metrics_module, "peak_flops", lambda device: 6 * 872 * 1000.0)
    speed = Throughput(flops_per_token(Tied()), CPU, world_size=2)
    speed.add(tokens=90, padding=10, wait=0.25)
    speed.add(tokens=210, padding=90, wait=0.5)
    figures = speed.metrics()
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
    assert speed.metrics()["tokens_per_s"] == 50.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def test_statistics_of_the_step_and_of_the_next_data_share_one_reduction(device: str) -> None:
    def on_device(value: float) -> torch.Tensor:
        return torch.tensor(value, device=device)

    losses = [
        Loss(
            on_device(value),
            {"url": (on_device(value / 2), on_device(4)), "none": (on_device(0.0), on_device(0))},
        )
        for value in (1.0, 2.5)
    ]
    own = StepStats(DataStats(3.0, 5.0, 1.0, {"documents": 2.0}), stop=1.0, save_failed=0.0)
    processes = Processes(0, 1, torch.device(device))
    reduced = ReducedStats(processes, own, losses, on_device(0.5))
    assert reduced.next_targets.item() == 3.0
    assert reduced.loss.item() == 3.5
    assert reduced.read() == StepStats(
        DataStats(3.0, 5.0, 1.0, {"documents": 2.0}),
        stop=1.0,
        save_failed=0.0,
        loss=3.5,
        parts={"url": 1.75 / 8.0},
        grad_norm=0.5,
    )
    stats = reduced.read(targets=7.0)
    assert (stats.loss, stats.parts, stats.grad_norm) == (0.5, {"url": 1.75 / 8}, 0.5)


def test_a_copy_to_a_gpu_begins_in_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none without a GPU, so the calls are recorded."""
    calls: list[Any] = []

    def record(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        calls.append((tensor.tolist(), *arguments, options))
        return tensor

    def lock(tensor: torch.Tensor) -> torch.Tensor:
        calls.append("lock")
        return tensor + 1

    monkeypatch.setattr(torch.Tensor, "to", record)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: bool(tensor[0] == 7))
    gpu, cpu = torch.device("cuda", 1), torch.device("cpu")
    for device, value in ((gpu, 1), (gpu, 7), (cpu, 1)):
        copy_to(device, torch.tensor([value]))
    in_the_background = {"non_blocking": True}
    assert calls == [
        "lock",
        ([2], gpu, in_the_background),
        ([7], gpu, in_the_background),
        ([1], cpu, in_the_background),
    ]


def test_statistics_of_a_rank_are_packed_by_name() -> None:
    stats = StepStats(
        DataStats(targets=4.0, tokens=5.0, padding=6.0, counts={"pages": 7.0, "urls": 8.0}),
        stop=1.0,
        save_failed=2.0,
        out_of_data=3.0,
    )
    assert stats.pack() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert StepStats.unpack(stats.pack(), ["pages", "urls"]) == stats
    with pytest.raises(ValueError, match="zip"):
        StepStats.unpack(stats.pack(), ["pages"])


def test_losses_are_packed_as_their_sum_and_a_pair_for_each_part() -> None:
    def scalar(value: float) -> torch.Tensor:
        return torch.tensor(value, requires_grad=True)

    losses = []
    for value in (1.0, 2.5):
        url = (scalar(2 * value), scalar(4.0))
        losses.append(Loss(scalar(value), {"url": url, "none": (scalar(0.0), scalar(0.0))}))
    packed = LossSums.pack(losses)
    assert packed.tolist() == [3.5, 7.0, 8.0, 0.0, 0.0]
    assert packed.dtype == torch.float64
    assert not packed.requires_grad
    sums = LossSums.unpack(packed.tolist(), ["url", "none"])
    assert sums.loss == 3.5
    assert sums.parts == {"url": (7.0, 8.0), "none": (0.0, 0.0)}
    assert sums.part_means() == {"url": 0.875}


def test_before_the_first_step_only_its_data_is_reduced() -> None:
    own = StepStats(DataStats(3.0, 5.0, 1.0), stop=0.0, save_failed=0.0)
    assert ReducedStats(ALONE, own, [], None).read() == own


def test_statistics_of_a_step_are_summed_over_its_micro_batches() -> None:
    batches = [
        MicroBatch({}, weight=2.0, tokens=5, padding=3, counts={"documents": float(number)})
        for number in (1, 2)
    ]
    assert DataStats.of(StepData(batches, {})) == DataStats(4.0, 10.0, 6.0, {"documents": 3.0})


def test_a_loss_without_targets_is_zero_and_keeps_its_graph() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    loss = Loss(weight * 2, {"url": (weight, torch.tensor(4))}).without_targets()
    loss.sum.backward()
    assert (loss.sum.item(), weight.grad.item()) == (0.0, 0.0)
    assert [value.item() for value in loss.parts["url"]] == [0.0, 0]


def test_garbage_is_collected_when_it_is_time_to() -> None:
    with GarbageCollection() as garbage:
        assert not gc.isenabled()
        loop: list[Any] = []
        loop.append(loop)
        before = gc.get_stats()[2]["collections"]
        garbage.after(GARBAGE_STEPS - 1)
        assert gc.get_stats()[2]["collections"] == before
        garbage.after(GARBAGE_STEPS)
        assert gc.get_stats()[2]["collections"] == before + 1
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("Tesla V100-SXM2-32GB", None),  # it has no bf16
    ],
)
def test_the_bf16_peak_of_a_gpu(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert metrics_module.peak_flops(torch.device("cuda")) == peak
