"""Statistics of a step: packed by name, and reduced together with the next data."""

from __future__ import annotations

import pytest
import torch

from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training.ranks.processes import ALONE, Processes
from bsmeta.training.step_stats import DataStats, LossSums, ReducedStats, StepStats
from bsmeta.training.task import Loss

ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def test_statistics_of_a_step_and_the_next_data_share_a_reduction(device: str) -> None:
    def on_device(value: float) -> torch.Tensor:
        return torch.tensor(value, device=device)

    losses = [
        Loss(
            on_device(value),
            {"url": (on_device(value / 2), on_device(4)), "none": (on_device(0.0), on_device(0))},
        )
        for value in (1.0, 2.5)
    ]
    rank_stats = StepStats(DataStats(3.0, 5.0, 1.0, {"documents": 2.0}), stop=1.0, save_failed=0.0)
    processes = Processes(0, 1, torch.device(device))
    reduced = ReducedStats(processes, rank_stats, losses, on_device(0.5))
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
    assert sums.compute_part_means() == {"url": 0.875}


def test_before_the_first_step_only_its_data_is_reduced() -> None:
    rank_stats = StepStats(DataStats(3.0, 5.0, 1.0), stop=0.0, save_failed=0.0)
    assert ReducedStats(ALONE, rank_stats, [], None).read() == rank_stats


def test_statistics_of_a_step_are_summed_over_its_micro_batches() -> None:
    batches = [
        MicroBatch({}, weight=2.0, tokens=5, padding=3, counts={"documents": float(number)})
        for number in (1, 2)
    ]
    assert DataStats.of(StepData(batches, {})) == DataStats(4.0, 10.0, 6.0, {"documents": 3.0})


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("loss", "norm", "expected"),
    [
        (1.0, 2.0, True),
        (1.0, None, True),
        (NAN, 1.0, False),
        (INF, None, False),
        (1.0, NAN, False),
        (1.0, INF, False),
        (1.0, -1.0, False),
    ],
)
def test_a_step_is_finite_if_its_loss_and_norm_are_finite(
    loss: float, norm: float | None, expected: bool
) -> None:
    assert StepStats(DataStats(), stop=0.0, loss=loss, grad_norm=norm).is_finite is expected
