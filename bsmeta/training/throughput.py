"""Tokens per second, model FLOPs utilisation, waiting for data, and memory.

Tokens are those that the model was fed and that are not padding; padding is told apart. With N
parameters in matrix products (`flops_per_token`), over the updates since the last line of the log:

    tokens_per_s = tokens of all ranks / seconds of these updates
    mfu = 6 x N x tokens_per_s / (devices x dense bf16 peak of one)
"""

from __future__ import annotations

import resource
import time
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
    """Adds up tokens and seconds between two lines of the log.

    Args:
        model: The model, before any engine wraps it.
        device: Of this rank.
        world_size: Number of devices.
    """

    def __init__(self, model: nn.Module, device: torch.device, world_size: int) -> None:
        self._device = device
        self._world_size = world_size
        self._flops_per_token = flops_per_token(model)
        self._peak = peak_flops(device)
        self.start()
        self._clear()

    def start(self) -> None:
        """Time counts from now on: after the set-up, an evaluation or a save."""
        self._since = time.perf_counter()

    def add(self, tokens: float, padding: float, wait: float) -> None:
        """An update has been made.

        Args:
            tokens: Tokens of its global batch that are not padding.
            padding: Those that are.
            wait: Seconds that the loop waited for its data.
        """
        now = time.perf_counter()
        self._seconds += now - self._since
        self._since = now
        self._updates += 1
        self._tokens += tokens
        self._padding += padding
        self._wait += wait

    def figures(self) -> dict[str, Any]:
        """Figures of the updates since the last call.

        Returns:
            `tokens_per_s` and `mfu` (None where the device's peak is unknown), see above;
            `padding`, the share of the positions that is padding; `step_s`, seconds an update;
            `data_wait_s`, seconds of all these updates in which the loop waited for data;
            `memory_gb`, the largest allocation of this rank's GPU, or resident size of its process,
            so far.
        """
        rate = self._tokens / self._seconds
        mfu = None
        if self._peak is not None:
            mfu = rate * self._flops_per_token / (self._peak * self._world_size)
        if self._device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._device) / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB
        figures = {
            "data_wait_s": self._wait,
            "step_s": self._seconds / self._updates,
            "tokens_per_s": rate,
            "mfu": mfu,
            "padding": self._padding / max(self._tokens + self._padding, 1.0),
            "memory_gb": memory,
        }
        self._clear()
        return figures

    def _clear(self) -> None:
        self._seconds = self._tokens = self._padding = self._wait = 0.0
        self._updates = 0


def peak_flops(device: torch.device) -> float | None:
    """The dense bf16 peak of a GPU in FLOP/s; None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def flops_per_token(model: nn.Module) -> float:
    """Forward and backward FLOPs of one token: 6 a parameter (Kaplan et al. 2020, section 2.1).

    Embeddings that are only looked up take none; one that is also the output layer does. Attention
    over the context is left out: the documents packed into a sequence do not see each other, so
    that it depends on their lengths. The true utilisation is therefore a little higher.
    """
    looked_up: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        into = looked_up if isinstance(module, nn.Embedding) else others
        into.update(id(parameter) for parameter in module.parameters(recurse=False))
    # Under ZeRO-3 a parameter is a shard here, and its full size stands in ds_numel.
    return 6.0 * sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if id(parameter) in others or id(parameter) not in looked_up
    )
