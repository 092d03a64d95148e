"""The figures of a step: added up over its micro-batches, then over the ranks in one collective.

They stay on the device until they are read. Reading waits for the device, so the loop asks for the
copy at once and looks at it later, while the device is busy with the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bsmeta.tasks.base import Loss
from bsmeta.training.distributed import Processes


class LossSums:
    """Sums of the loss and of its named parts over the micro-batches of this rank.

    Attributes:
        each: The loss of each micro-batch.
    """

    def __init__(self) -> None:
        self.each: list[torch.Tensor] = []
        self._names: list[str] = []
        self._sums: torch.Tensor | None = None

    def add(self, loss: Loss) -> None:
        """Adds a micro-batch."""
        self.each.append(loss.sum.detach())
        values = {"loss": loss.sum}
        for name, (part, weight) in loss.parts.items():
            values |= {f"parts/{name}": part, f"weights/{name}": weight}
        self._names = list(values)
        stacked = torch.stack([value.detach().double() for value in values.values()])
        self._sums = stacked if self._sums is None else self._sums + stacked

    def named(self) -> tuple[list[str], torch.Tensor]:
        """Names and float64 sums (on the device), in the same order on every rank."""
        assert self._sums is not None, "no micro-batch was added"
        return self._names, self._sums


class Totals:
    """Named float64 figures, on the device until they are read."""

    def __init__(self, names: Sequence[str], values: torch.Tensor) -> None:
        self._names = names
        self._values = values
        self._host = values
        self._ready: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def on_device(self, name: str) -> torch.Tensor:
        """One of them, without waiting for it."""
        return self._values[self._names.index(name)]

    def read(self) -> dict[str, float]:
        """All of them; waits for the device where it is not done with them."""
        if self._ready is not None:
            self._ready.synchronize()
        return dict(zip(self._names, self._host.tolist(), strict=True))


def add_up(
    processes: Processes,
    counted: Mapping[str, float],
    sums: LossSums | None = None,
    norm: torch.Tensor | None = None,
) -> Totals:
    """Adds up over the ranks, in one collective; all ranks call it with the same names.

    Args:
        processes: The ranks.
        counted: What this rank counted itself.
        sums: Losses of this rank's micro-batches.
        norm: The gradient's norm, the same on all ranks: it is kept beside them as `norm`.
    """
    names = list(counted)
    # Float64 on the host: a GPU gets them in one small copy.
    values = torch.tensor(list(counted.values()), dtype=torch.float64)
    values = values.to(processes.device, non_blocking=True)
    if sums is not None:
        sum_names, sum_values = sums.named()
        names, values = [*names, *sum_names], torch.cat([values, sum_values])
    values = processes.sum(values)
    if norm is not None:
        names, values = [*names, "norm"], torch.cat([values, norm.detach().double().reshape(1)])
    return Totals(names, values)


def means(totals: Mapping[str, float], targets: float) -> tuple[float, dict[str, float]]:
    """The mean loss of a step, and that of each part.

    Args:
        totals: The sums over all ranks, as `Totals.read` gives them.
        targets: Targets of the global batch.

    Returns:
        Nats per target; of each part over its own weight, without the parts that have none.
    """
    parts = {}
    for name, weight in totals.items():
        if name.startswith("weights/") and weight > 0:
            part = name[len("weights/") :]
            parts[part] = totals[f"parts/{part}"] / weight
    return totals["loss"] / max(targets, 1.0), parts
