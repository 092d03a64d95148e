"""The speed of a run, and the peak of a GPU that it is compared with."""

from __future__ import annotations

import pytest
import torch

from bsmeta.training.reporting import throughput
from bsmeta.training.reporting.throughput import Throughput
from bsmeta.training.task import compute_flops_per_token
from tests.training.tied_embeddings import Tied

CPU = torch.device("cpu")


def test_speed_counts_tokens_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 100.0, 101.0])
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(throughput, "find_peak_flops", lambda device: 6 * 872 * 1000.0)
    speed = Throughput(compute_flops_per_token(Tied()), CPU, world_size=2)
    speed.add(tokens=90, padding=10, wait_s=0.25)
    speed.add(tokens=210, padding=90, wait_s=0.5)
    figures = speed.take_metrics()
    assert figures.pop("memory_gb") > 0
    assert figures == {
        "data_wait_s": 0.75,
        "step_s": 1.5,
        "tokens_per_s": 100.0,
        "mfu": 100.0 / (1000.0 * 2),
        "padding": 0.25,
    }
    speed.start()  # an evaluation until second 100 is not the loop's
    speed.add(tokens=50, padding=0, wait_s=0.0)
    assert speed.take_metrics()["tokens_per_s"] == 50.0


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
def test_the_bf16_peak_is_found_by_the_name_of_the_gpu(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert throughput.find_peak_flops(torch.device("cuda")) == peak
