"""Copies of tensors from main memory to the device."""

from __future__ import annotations

import torch


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy from main memory without waiting for it.

    The driver may wait for the device if the memory is not page-locked. A loader locks its batches,
    but not the tensors that a task adds to them.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
