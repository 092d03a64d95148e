"""Compares the memory that a run needs on each device with the memory of the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import psutil

from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import Row
from bsmeta.training.memory.device_fit import find_device


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of this process's GPU, or without a GPU its share of the main memory.

    Attributes:
        total: Bytes in total.
        name: Name of the device, for a message.
    """

    total: float
    name: str

    @classmethod
    def of_launch(cls, launch: Launch) -> DeviceMemory:
        """Determines the memory of the device that this process will use."""
        device = None if launch.use_cpu else find_device(None)
        if device is not None:
            return cls(device.memory, device.name)

        processes = launch.local_processes or launch.num_processes
        total = psutil.virtual_memory().total / processes
        shared = f", shared by {processes} processes" if processes > 1 else ""
        return cls(total, f"main memory{shared}")


class MemoryNeed(Protocol):
    """Bytes that a run will need on each device (`forecast.Forecast`).

    Attributes:
        held: Bytes of weights, gradients and optimizer.
        needed: Bytes in total; None if the activations cannot be counted.
    """

    @property
    def held(self) -> float: ...

    @property
    def needed(self) -> float | None: ...


def list_memory_rows(need: MemoryNeed, memory: DeviceMemory) -> list[Row]:
    """Returns the memory row of the start-up table; [] if the need is unknown."""
    if need.needed is None:
        return []

    value = (
        f"{format_size(need.needed)} needed of {format_size(memory.total)} on each device "
        f"({memory.name}), without buffers and fragmentation"
    )
    return [("memory", value)]


def list_memory_notes(need: MemoryNeed, memory: DeviceMemory, config: RunConfig) -> Iterator[str]:
    """Yields a note with remedies if the run needs more memory than the device has."""
    if need.needed is None or need.needed <= memory.total:
        return

    remedies = ["a smaller micro-batch (per_device_train_batch_size)"]
    if not getattr(config, "gradient_checkpointing", True):  # a key of some tasks
        remedies.append("gradient_checkpointing=true")
    remedies.append("a launch that divides the state (ZeRO, FSDP2), or a smaller model")

    yield (
        f"the run needs {format_size(need.needed)} on each device, of which weights, gradients "
        f"and optimizer take {format_size(need.held)}; {memory.name} has "
        f"{format_size(memory.total)}, so it cannot fit; expected {', '.join(remedies)}"
    )


def format_size(size: float) -> str:
    """Formats a number of bytes for display (powers of 1,024)."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
