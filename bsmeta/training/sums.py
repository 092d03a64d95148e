"""The losses of a step: added up over its micro-batches, then over the ranks."""

from __future__ import annotations

import torch

from bsmeta.tasks.base import Loss
from bsmeta.training.distributed import Processes


class LossSums:
    """Sums of the loss and of its named parts, on the device until they are asked for.

    Attributes:
        each: The loss of each micro-batch of this rank.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.each: list[torch.Tensor] = []

    def add(self, loss: Loss) -> None:
        """Adds a micro-batch."""
        self.each.append(loss.sum.detach())
        self._add("loss", loss.sum)
        for name, (part, weight) in loss.parts.items():
            self._add(f"parts/{name}", part)
            self._add(f"weights/{name}", weight)

    def _add(self, name: str, value: torch.Tensor) -> None:
        value = value.detach().double()
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def means(self, processes: Processes, targets: float) -> tuple[float, dict[str, float]]:
        """The mean loss of the step, and that of each part; all ranks call it.

        Args:
            processes: The ranks to add up over.
            targets: Targets of the global batch.

        Returns:
            Nats per target; of each part over its own weight, without the parts that have none.
        """
        values = processes.sum(torch.stack(list(self._sums.values()))).tolist()
        named = dict(zip(self._sums, values, strict=True))
        parts = {}
        for name, weight in named.items():
            if name.startswith("weights/") and weight > 0:
                part = name[len("weights/") :]
                parts[part] = named[f"parts/{part}"] / weight
        return named["loss"] / max(targets, 1.0), parts
