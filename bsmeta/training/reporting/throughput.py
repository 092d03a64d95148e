"""The speed of a run. With N parameters in matrix products (`flops_per_token`), over some steps:

    tokens_per_s = tokens of all ranks / seconds of these steps
    mfu = 6 x N x tokens_per_s / (devices x dense bf16 peak of one)

Tokens are the model's inputs without padding, which is counted separately.
"""

from __future__ import annotations

import resource
import time
from typing import Any

import torch

from bsmeta.config.cards import CARDS, find_card


class Throughput:
    """Accumulates tokens and seconds between two lines of the log."""

    def __init__(self, flops_per_token: float, device: torch.device, world_size: int) -> None:
        self._device = device
        self._world_size = world_size
        self._flops_per_token = flops_per_token
        self._peak_flops = find_peak_flops(device)
        self.start()
        self._clear()

    def start(self) -> None:
        """Restarts the clock, after the set-up, an evaluation or a save."""
        self._step_start = time.perf_counter()

    def add(self, tokens: float, padding: float, wait_s: float) -> None:
        """Adds a completed step, for whose data the loop waited `wait_s` seconds."""
        step_end = time.perf_counter()
        self._seconds += step_end - self._step_start
        self._step_start = step_end

        self._steps += 1
        self._tokens += tokens
        self._padding += padding
        self._wait_s += wait_s

    def take_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the steps since the last call, and resets them.

        Returns:
            `tokens_per_s` and `mfu` (None if the device's peak is unknown), see the module's
            docstring; `padding`, the share of padding among the positions; `step_s`, seconds per
            step; `data_wait_s`, seconds that the loop waited for data in all these steps;
            `memory_gb`, the peak allocation so far on this rank's GPU, or without one the peak
            resident size of its process, in GiB (2^30 bytes).
        """
        tokens_per_s = self._tokens / self._seconds
        mfu = None
        if self._peak_flops is not None:
            mfu = tokens_per_s * self._flops_per_token / (self._peak_flops * self._world_size)

        if self._device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._device) / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB

        metrics = {
            "data_wait_s": self._wait_s,
            "step_s": self._seconds / self._steps,
            "tokens_per_s": tokens_per_s,
            "mfu": mfu,
            "padding": self._padding / max(self._tokens + self._padding, 1.0),
            "memory_gb": memory,
        }
        self._clear()
        return metrics

    def _clear(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._padding = 0.0
        self._wait_s = 0.0
        self._steps = 0


def find_peak_flops(device: torch.device) -> float | None:
    """Returns the dense bf16 peak of a GPU in FLOP/s; None if unknown."""
    if device.type != "cuda":
        return None
    card = find_card(torch.cuda.get_device_name(device))
    return None if card is None else CARDS[card].peak_flops
