"""Copies of a batch to a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bsmeta.training.device_copy import copy_to


def test_a_copy_to_a_gpu_begins_in_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is no such memory, so the calls are recorded."""
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
