"""How the processes of a run wait for each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

from bsmeta.training.ranks.processes import Processes


@pytest.mark.parametrize(
    ("device", "expected"), [(torch.device("cuda", 3), [3]), (torch.device("cpu"), None)]
)
def test_a_barrier_names_the_device_of_this_process(
    device: torch.device, expected: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL would guess a device by the rank. Without a GPU there is no NCCL: calls are recorded."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(distributed, "barrier", lambda group, **options: calls.append(options))
    Processes(rank=1, size=2, device=device).barrier()
    assert calls == [{"device_ids": expected}]
