"""Tokens per second, model FLOPs utilisation and memory."""

from __future__ import annotations

import resource
from typing import Any

import torch
from torch import nn

# Dense bf16 peak of one device in FLOP/s, from the vendors' data sheets (without sparsity).
PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
}


class Throughput:
    """Turns the tokens and seconds of a step into figures."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._flops_per_token = flops_per_token(model)
        self._peak = None
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            self._peak = next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)

    def figures(self, tokens: float, seconds: float, world_size: int) -> dict[str, Any]:
        """Figures of a step.

        Args:
            tokens: Tokens of the global batch, without padding.
            seconds: Duration of the step.
            world_size: Number of devices.

        Returns:
            `tokens_per_s` over all devices; `mfu`, the share of the devices' peak that the model's
            own arithmetic takes (None where the peak is unknown); `memory_gb`, the largest
            allocation of this rank's GPU, or resident size of its process, so far.
        """
        rate = tokens / seconds
        mfu = None
        if self._peak is not None:
            mfu = rate * self._flops_per_token / (self._peak * world_size)
        if self._device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._device) / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB
        return {"tokens_per_s": rate, "mfu": mfu, "memory_gb": memory}


def flops_per_token(model: nn.Module) -> float:
    """Forward and backward FLOPs of one token: 6 a parameter (Kaplan et al. 2020, section 2.1).

    Attention over the context is left out: the documents packed into a sequence do not see each
    other, so that it depends on their lengths. The true utilisation is therefore a little higher.
    """
    # Under ZeRO-3 a parameter is a shard here, and its full size stands in ds_numel.
    return 6.0 * sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
