"""Between the stream and the update: the micro-batches of a step, counted and on the device.

The loop fetches the next step while the device works on this one. On a GPU the copies run on a
stream of their own, from the pinned memory that the loader puts the batches into, so that neither
the host nor the computation waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bsmeta.tasks.base import MicroBatch, Stream


@dataclass(frozen=True)
class StepData:
    """The micro-batches of one step of this rank.

    Attributes:
        batches: The micro-batches.
        wait: Seconds that the loop waited for them.
        inputs: Their tensors on the device.
        copied: Set on a GPU: when the tensors have arrived there.
    """

    batches: list[MicroBatch]
    wait: float
    inputs: list[dict[str, torch.Tensor]]
    copied: torch.cuda.Event | None = None

    def counted(self) -> dict[str, float]:
        """What this rank counts in them; the same names on every rank."""
        values = {
            "targets": float(sum(batch.weight for batch in self.batches)),
            "tokens": float(sum(batch.tokens for batch in self.batches)),
            "padding": float(sum(batch.padding for batch in self.batches)),
        }
        for batch in self.batches:
            for name, count in batch.counts.items():
                values[f"counts/{name}"] = values.get(f"counts/{name}", 0.0) + count
        return values

    def tensors(self) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors of each micro-batch, safe to use on the current stream of the device."""
        if self.copied is not None:
            current = torch.cuda.current_stream()
            current.wait_event(self.copied)
            for one in self.inputs:
                for tensor in one.values():
                    tensor.record_stream(current)  # or its memory would be given away too early
        yield from self.inputs


class Feed:
    """Fetches the steps of a stream.

    Args:
        stream: The stream of this rank.
        accumulation: Micro-batches of a step.
        device: Where they go.
    """

    def __init__(self, stream: Stream, accumulation: int, device: torch.device) -> None:
        self._batches = iter(stream)
        self._accumulation = accumulation
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fetch(self) -> StepData:
        """The next step. Never asks the stream for more than that."""
        began = time.perf_counter()
        batches = [next(self._batches) for _ in range(self._accumulation)]
        wait = time.perf_counter() - began
        if self._side is None:
            return StepData(batches, wait, [self._moved(batch) for batch in batches])
        with torch.cuda.stream(self._side):
            inputs = [self._moved(batch) for batch in batches]
            copied = torch.cuda.Event()
            copied.record(self._side)
        return StepData(batches, wait, inputs, copied)

    def _moved(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        return {
            name: tensor.to(self._device, non_blocking=True)
            for name, tensor in batch.tensors.items()
        }
