"""A loss or gradient that is not a number: every rank decides alike, and writes what it was fed.

The trainer asks after the backward pass of a step, before the weights are touched wherever the
engine allows it. All that is judged was summed over the ranks, so all of them stop or all skip.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bsmeta.config.errors import TrainingError
from bsmeta.tasks.base import MicroBatch


def is_finite(loss: float, norm: float | None) -> bool:
    """Whether a step's loss, and its gradient's norm where there is one, are numbers.

    DeepSpeed tells a norm that is none as -1 or infinity.
    """
    return math.isfinite(loss) and (norm is None or (math.isfinite(norm) and norm >= 0))


class NonFiniteSteps:
    """What to do about steps that are not finite.

    Args:
        action: `stop`, or `skip`: leave the weights alone and go on with the next step.
        limit: Consecutive skips at which the run stops after all.
        folder: The run folder; each rank writes `nonfinite-step{n}-rank{r}.json` there.
        rank: This process.

    Attributes:
        consecutive: Steps skipped since the last good one; saved with a checkpoint.
    """

    def __init__(self, action: str, limit: int, folder: Path, rank: int) -> None:
        self._action = action
        self._limit = limit
        self._folder = folder
        self._rank = rank
        self.consecutive = 0

    def passed(self) -> None:
        """A finite step."""
        self.consecutive = 0

    def failed(
        self,
        step: int,
        loss: float,
        norm: float | None,
        batches: Sequence[MicroBatch],
        losses: Sequence[torch.Tensor],
        *,
        in_weights: bool,
    ) -> dict[str, Any]:
        """Writes the step's documents, then stops the run or lets it go on without this step.

        Args:
            step: The number that this update has, or would have had.
            loss: Mean loss over the global batch.
            norm: Norm of the gradient of the global batch.
            batches: This rank's micro-batches.
            losses: The sum of losses of each.
            in_weights: Whether the engine has changed the weights already: then there is nothing
                to skip.

        Returns:
            The event for the log, when the step is skipped.

        Raises:
            TrainingError: If the run must stop.
        """
        self.consecutive += 1
        file = self._folder / f"nonfinite-step{step}-rank{self._rank}.json"
        parts = [
            {"loss_sum": repr(float(value)), "documents": list(batch.documents)}
            for batch, value in zip(batches, losses, strict=True)
        ]
        report = {"step": step, "rank": self._rank, "loss": repr(loss), "grad_norm": repr(norm)}
        file.write_text(json.dumps({**report, "micro_batches": parts}, indent=1) + "\n")
        found = (
            f"step {step}: loss {loss}, gradient norm {norm}. The documents of the step are in "
            f"{self._folder}/nonfinite-step{step}-rank*.json; no checkpoint of it was written"
        )
        if self._action == "stop" or in_weights:
            raise TrainingError(
                f"{found}. Resume with a lower learning_rate, or with on_nonfinite=skip"
            )
        if self.consecutive > self._limit:
            raise TrainingError(
                f"{found}. There were {self.consecutive} such steps in a row, and "
                f"max_consecutive_skips={self._limit}"
            )
        return {"loss": repr(loss), "grad_norm": repr(norm), "consecutive": self.consecutive}
