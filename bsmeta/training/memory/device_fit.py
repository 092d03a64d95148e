"""Checks whether a launch fits into the memory of a GPU, and suggests remedies if it does not."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bsmeta.config.cards import CARDS, GIB, find_card
from bsmeta.training.reporting.throughput import find_peak_flops

RESERVED_BYTES = 2.0 * GIB
"""Bytes that a run cannot use for tensors: the CUDA context, the workspaces of cuBLAS and NCCL, and
fragmentation. Assumed, not measured."""


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        memory: Bytes in total.
        peak_flops: Dense bf16 peak in FLOP/s; None if unknown.
        is_here: Whether it is the device of this process, on which steps can be measured.
    """

    name: str
    memory: float
    peak_flops: float | None
    is_here: bool

    @property
    def usable(self) -> float:
        """Bytes of memory that are available for tensors."""
        return self.memory - RESERVED_BYTES


def find_device(card: str | None) -> Device | None:
    """Describes a GPU; returns None if `card` is None and this process has no GPU.

    Args:
        card: A name in `CARDS`; None: the GPU of this process.
    """
    if torch.cuda.is_available():
        # Processes choose their devices later, when the engine starts.
        gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        name = torch.cuda.get_device_name(gpu)
        if card is None or card == find_card(name):
            memory = float(torch.cuda.get_device_properties(gpu).total_memory)
            return Device(name, memory, find_peak_flops(gpu), is_here=True)

    if card is None:
        return None
    return Device(card, CARDS[card].memory, CARDS[card].peak_flops, is_here=False)


@dataclass(frozen=True)
class Need:
    """Bytes that a launch takes on each device, as a function of the rows of its micro-batch.

    Attributes:
        rows: Rows in the configuration.
        size: Bytes with these rows.
        per_row: Additional bytes for each additional row.
    """

    rows: int
    size: float
    per_row: float

    def max_rows(self, usable: float) -> float:
        """Returns the largest number of rows that fits into `usable` bytes, from 0 to infinity."""
        if self.per_row <= 0:
            return math.inf if self.size <= usable else 0
        return max(0, self.rows + math.floor((usable - self.size) / self.per_row))


def describe_fit(
    device: Device,
    plain: Need,
    recomputing: Need | None,
    engines: Mapping[str, float],
    *,
    recomputes: bool,
    rows_key: str | None,
) -> list[str]:
    """Returns lines that say whether a launch fits on a device, and which alternatives do.

    Args:
        plain: Need of the launch without recomputation.
        recomputing: Need with gradient_checkpointing; None: the task does not have it.
        engines: Bytes that the same micro-batch takes under the other engines, by launch file.
        recomputes: Whether gradient_checkpointing is on in the configuration.
        rows_key: The key that sets the rows; None: they vary.
    """
    need = recomputing if recomputing is not None and recomputes else plain
    fits = need.size <= device.usable

    rows_line = f"{rows_key or 'rows of a micro-batch'} that fit: {_describe_rows(plain, device)}"
    if recomputing is not None:
        rows_line += f"; with gradient_checkpointing=true {_describe_rows(recomputing, device)}"

    fitting = [
        f"{name} ({_format_gib(size)})" for name, size in engines.items() if size <= device.usable
    ]
    lines = [
        f"{device.name}: {_format_gib(device.memory)}, of which {_format_gib(RESERVED_BYTES)} are "
        f"left to CUDA and to fragmentation (assumed); this launch takes {_format_gib(need.size)} "
        f"with {need.rows} rows: it {'fits' if fits else 'DOES NOT FIT'}",
        rows_line,
        f"other engines that fit with {need.rows} rows, on the same number of devices: "
        f"{', '.join(fitting) or 'none'}",
    ]
    if not fits:
        remedies = _list_remedies(can_recompute=recomputing is not None)
        lines.append(f"from cheap to expensive: {', '.join(remedies)}")
    return lines


def _list_remedies(*, can_recompute: bool) -> list[str]:
    """Lists changes that lower the memory of a launch, from cheap to expensive."""
    remedies = ["fewer rows and more gradient_accumulation_steps (the same batch)"]
    if can_recompute:
        remedies.append(
            "gradient_checkpointing=true (a third more computation; "
            "gradient_checkpointing_every=2: half of it)"
        )
    return [*remedies, "another engine", "more devices"]


def _describe_rows(need: Need, device: Device) -> str:
    """Describes the number of rows that fit on a device: `any`, `up to 8`, `none`."""
    rows = need.max_rows(device.usable)
    if rows == math.inf:
        return "any"
    return f"up to {rows:,}" if rows else "none"


def _format_gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
