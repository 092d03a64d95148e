"""Copies of tensors from main memory to the device."""

from __future__ import annotations

import torch


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy from main memory for which the host does not wait.

    From memory that is not page-locked, the driver may first wait for the device. A loader locks
    its batches, but not what a task adds to them.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
