"""Copies of tensors from main memory to the device."""

from __future__ import annotations

import torch


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Starts to copy a tensor to `device`, and returns the copy without waiting for it.

    A copy from memory that is not page-locked may block the host, so such a tensor is first copied
    to page-locked memory. A loader locks its batches, but not the tensors that a task adds to them.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
