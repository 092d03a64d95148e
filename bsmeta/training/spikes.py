"""Loss spikes: found among the last losses, and how often a run may go back because of them."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

from bsmeta.config.errors import TrainingError


class SpikeDetector:
    """Finds losses far above those of the last steps.

    Every rank sees the same losses and so finds the same spikes; a resumed run does too, because
    the losses are saved with a checkpoint.

    Args:
        deviations: Standard deviations above the mean from which on a loss is a spike; 0: never.
        window: Number of losses that it is compared with; before there are as many, nothing is one.
        limit: How often the run may go back to one checkpoint.
    """

    def __init__(self, deviations: float, window: int, limit: int) -> None:
        self._deviations = deviations
        self._limit = limit
        self._losses: deque[float] = deque(maxlen=window)
        self._rollbacks: dict[int, int] = {}

    def is_spike(self, loss: float) -> bool:
        """Whether the loss is a spike; if not, it becomes one of those compared with."""
        if self._deviations > 0 and len(self._losses) == self._losses.maxlen:
            spread = self._deviations * statistics.pstdev(self._losses)
            if loss > statistics.fmean(self._losses) + spread:
                return True
        self._losses.append(loss)
        return False

    def went_back(self, step: int) -> None:
        """Counts a return to the checkpoint of `step`.

        Raises:
            TrainingError: If it was one too many.
        """
        self._rollbacks[step] = self._rollbacks.get(step, 0) + 1
        if self._rollbacks[step] > self._limit:
            raise TrainingError(
                f"the loss spiked again after {self._limit} rollbacks (max_rollbacks) to step "
                f"{step}; resume with a lower learning_rate, or raise loss_spike_deviations"
            )

    def state(self) -> list[float]:
        """The losses compared with, for a checkpoint."""
        return list(self._losses)

    def restore(self, state: list[Any]) -> None:
        """Takes the losses of a checkpoint."""
        self._losses.clear()
        self._losses.extend(float(loss) for loss in state)
