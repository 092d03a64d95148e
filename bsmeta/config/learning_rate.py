"""The learning rate of each step of a run.

It depends only on the configuration, the number of steps, and the number of the step, so there is
no state to save, and a resumed run cannot deviate from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bsmeta.config.schema import WSD, RunConfig

SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Factor of the learning rate after a share of the decay, from 1 at 0 to 0 at 1."""


@dataclass(frozen=True, kw_only=True)
class RatePlan:
    """The learning rate of each step of a run.

    A linear warm-up reaches the peak at step `num_warmup_steps`, or after `warmup_share` of the
    steps. Then the rate stays at the peak (`constant`), or decays linearly (`linear`) or along half
    a cosine (`cosine`) such that it would reach `min_learning_rate_ratio` of the peak one step
    after the last. Under `wsd` (Hu et al. 2024, arXiv 2404.06395), the rate decays only in the last
    `num_decay_steps`, or in the last `decay_share` of the steps; `1-sqrt` is the shape that Hägele
    et al. 2024 (arXiv 2405.18392) found best.

    Attributes:
        max_steps: Number of steps of the run.
        peak: The learning rate after the warm-up.
        lowest: The share of the peak to which the rate decays.
        warm_up_steps: Number of steps in which the rate rises.
        decay_start: The last step before the decay under `lr_scheduler_type=wsd`; None under
            others.
        shape: The shape of the decay, a key of `SHAPES`; None: the rate stays at the peak.
    """

    max_steps: int
    peak: float
    lowest: float
    warm_up_steps: int
    decay_start: int | None
    shape: str | None

    @classmethod
    def of(cls, config: RunConfig, max_steps: int) -> RatePlan:
        """Creates the plan of a run.

        Args:
            max_steps: Number of steps of the run.
        """
        warm_up_steps = config.num_warmup_steps
        if config.warmup_share is not None:
            warm_up_steps = _count_share_steps(config.warmup_share, max_steps)

        shape: str | None = config.lr_scheduler_type
        decay_start = None
        if shape == "constant":
            shape = None
        elif shape == WSD:
            decay_steps = config.num_decay_steps
            if decay_steps is None:
                decay_steps = max(1, _count_share_steps(config.decay_share, max_steps))
            decay_start = max_steps - decay_steps
            shape = config.decay_shape

        return cls(
            max_steps=max_steps,
            peak=config.learning_rate,
            lowest=config.min_learning_rate_ratio,
            warm_up_steps=warm_up_steps,
            decay_start=decay_start,
            shape=shape,
        )

    @property
    def decays_in_warm_up(self) -> bool:
        """Whether the decay would begin before the warm-up ends."""
        return self.decay_start is not None and self.decay_start < self.warm_up_steps

    def compute_rate(self, step: int) -> float:
        """Returns the learning rate of a step, from 1 to `max_steps`."""
        if step <= self.warm_up_steps:
            return self.peak * step / self.warm_up_steps
        if self.shape is None:
            return self.peak

        start = self.warm_up_steps if self.decay_start is None else self.decay_start
        progress = min(1.0, max(0, step - 1 - start) / max(1, self.max_steps - start))
        return self.peak * (self.lowest + (1.0 - self.lowest) * SHAPES[self.shape](progress))


def _count_share_steps(share: float, max_steps: int) -> int:
    """Returns the number of steps in a share of the run.

    It is 0 for a share that is not finite, which the checks refuse later.
    """
    return round(share * max_steps) if math.isfinite(share) else 0
