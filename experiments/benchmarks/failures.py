"""What failures, saves and slow GPUs cost a long run: simulated, beside the closed form.

    python experiments/benchmarks/failures.py                   # the tables of docs/scaling.md
    python experiments/benchmarks/failures.py gpus=4096 gpu_hours_between_failures=50000 save_s=120

Keys (defaults in `Setting`): gpus, gpu_hours_between_failures (of one GPU with its share of the
machine), restart_s (until the first step after a failure), save_s (of one checkpoint), pause_s (for
which an asynchronous save stops the loop), step_spread (standard deviation of one GPU's step time,
as a share of its mean). docs/scaling.md has the formulas and their sources.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from scaling import given
from scipy.integrate import quad
from scipy.stats import norm

from bsmeta.core.process import run_and_report

INTERVALS_MIN = (1, 5, 15, 30, 60)
FAILURES = 4000
"""Simulated failures of each cell of the table."""
GPUS = (8, 64, 512, 1024, 16384)
SEED = 1


@dataclass(frozen=True)
class Setting:
    """The cluster and its saves; by default 1,000 GPUs of which one fails every 3 hours."""

    gpus: float = 1000.0
    gpu_hours_between_failures: float = 3000.0
    restart_s: float = 300.0
    save_s: float = 60.0
    pause_s: float = 2.0
    step_spread: float = 0.02

    @property
    def failure_s(self) -> float:
        """Mean seconds between failures of any GPU."""
        return self.gpu_hours_between_failures * 3600 / self.gpus


@dataclass(frozen=True)
class Saves:
    """When a run saves.

    Attributes:
        every_s: Seconds of training between two saves.
        pause_s: Seconds for which a save stops the loop.
        behind_s: Seconds after that until a failure can no longer lose the checkpoint; 0 for a
            synchronous save. The next save waits for it.
    """

    every_s: float
    pause_s: float
    behind_s: float = 0.0

    @property
    def cycle_s(self) -> float:
        """Seconds from one save to the next."""
        return self.pause_s + max(self.every_s, self.behind_s)


def useful_share(saves: Saves, failure_s: float, restart_s: float) -> float:
    """Expected share of the time whose training is not lost.

    Failures are a Poisson process, also during a restart. Between two failures, time X apart,
    floor((X - restart - behind) / cycle) checkpoints become durable, the expectation of which is
    exp(-(restart + behind) / M) / (exp(cycle / M) - 1). Without `behind_s` this is the complete
    model of Daly (2006, A higher order estimate of the optimum checkpoint interval).
    """
    durable = math.exp(-(restart_s + saves.behind_s) / failure_s)
    return saves.every_s * durable / (failure_s * math.expm1(saves.cycle_s / failure_s))


def simulated_share(
    saves: Saves, failure_s: float, restart_s: float, failures: int, seed: int
) -> float:
    """The same share in a simulated run that goes from event to event until its last failure.

    Raises:
        ValueError: If a number of seconds is not positive where it must be.
    """
    if min(saves.every_s, failure_s) <= 0:
        raise ValueError(f"every_s={saves.every_s}, failure_s={failure_s}: expected more than 0")
    clock = durable = 0.0
    for wait in np.random.default_rng(seed).exponential(failure_s, failures):
        fails = clock + wait
        clock += restart_s
        trained, writing = durable, None  # (when it is durable, the training that it holds)
        while clock < fails:
            clock += saves.every_s
            if writing is not None and writing[0] <= fails:
                durable = writing[1]
                clock = max(clock, writing[0])
            writing = None
            clock += saves.pause_s
            if clock > fails:
                break
            trained += saves.every_s
            writing = (clock + saves.behind_s, trained)
        if writing is not None and writing[0] <= fails:
            durable = writing[1]
        clock = fails
    return durable / clock


def best_interval_s(pause_s: float, failure_s: float) -> float:
    """Young's (1974) interval, sqrt(2 pause M), which loses the least to first order."""
    return math.sqrt(2 * pause_s * failure_s)


def slowest(gpus: float, spread: float) -> float:
    """Expected step time of the slowest of independent GPUs, relative to the mean of one.

    Args:
        gpus: Number of GPUs.
        spread: Standard deviation of a normally distributed step time, as a share of its mean.
    """
    # E[max] of n standard normals: the integral of z n phi(z) Phi(z)^(n-1)
    density = lambda z: z * gpus * norm.pdf(z) * norm.cdf(z) ** (gpus - 1)  # noqa: E731
    largest, _ = quad(density, -10, 10, limit=200)
    return 1 + spread * largest if gpus > 1 else 1.0


def lost(saves: Saves, setting: Setting) -> str:
    """The lost share of the time by formula and, in brackets, in the simulation."""
    times = setting.failure_s, setting.restart_s
    formula = 1 - useful_share(saves, *times)
    return f"{formula:.1%} ({1 - simulated_share(saves, *times, FAILURES, SEED):.1%})"


def table(setting: Setting) -> str:
    """Rows of the lost share, synchronous beside asynchronous."""
    lines = ["| save every | synchronous | asynchronous |", "|---|---|---|"]
    for minutes in INTERVALS_MIN:
        stopping = Saves(60.0 * minutes, setting.save_s)
        beside = Saves(60.0 * minutes, setting.pause_s, setting.save_s)
        lines.append(f"| {minutes} min | {lost(stopping, setting)} | {lost(beside, setting)} |")
    return "\n".join(lines)


def slowest_table(setting: Setting) -> str:
    """Rows of the time that is lost waiting for the slowest GPU."""
    lines = ["| GPUs | waiting for the slowest |", "|---|---|"]
    lines += [f"| {n:,} | {1 - 1 / slowest(n, setting.step_spread):.1%} |" for n in GPUS]
    return "\n".join(lines)


def main() -> None:
    """Prints the tables for the keys of the command line."""
    setting = given(Setting, __doc__)
    failure_s = setting.failure_s
    least = [best_interval_s(pause, failure_s) / 60 for pause in (setting.save_s, setting.pause_s)]
    print(f"a failure every {failure_s / 3600:.2f} hours")
    print(f"Young's interval: {least[0]:.0f} min synchronous, {least[1]:.0f} min asynchronous\n")
    print(table(setting), slowest_table(setting), sep="\n\n")


if __name__ == "__main__":
    sys.exit(run_and_report(main))
