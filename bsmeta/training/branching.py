"""Branched decays: runs that continue a run at a constant rate, and only decay (`decay_from`).

So one run at a constant rate, with kept checkpoints, yields finished models of several lengths. A
branch equals an uninterrupted run of warm-up, stable rate and decay: the same steps on the same
data. Hägele et al. 2024 (arXiv 2405.18392) compare such branches with whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bsmeta.config.compose import load_resolved
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import branch_step, decay_start, warm_up_steps
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.problems import Problem, refuse, show
from bsmeta.training.checkpoint import CONFIG, Checkpoint, named
from bsmeta.training.distributed import Processes


def branch_point(config: RunConfig, processes: Processes) -> Checkpoint:
    """The checkpoint that a run decays from; every rank gets the same result.

    Raises:
        ConfigurationError: If it is damaged, or not one of a run whose rate was constant, and this
            run's.
    """
    assert config.decay_from is not None
    saved = named(Path(config.decay_from), processes, "decay_from")
    stable = load_resolved(saved.folder / CONFIG, type(config))
    refuse([*branch_problems(saved, stable, config)])
    return saved


def branch_problems(saved: Checkpoint, stable: RunConfig, config: RunConfig) -> Iterator[Problem]:
    """Yields reasons why the learning rate cannot only decay from a checkpoint on.

    Args:
        stable: The configuration that the checkpoint was trained with.
    """
    file, step = str(saved.folder / CONFIG), saved.step
    kind, fix = stable.lr_scheduler_type, "name a checkpoint at the constant rate of a run"
    if kind not in ("constant", WSD):
        expected = f"constant or {WSD}: the rate has been falling since the warm-up"
        yield Problem("lr_scheduler_type", file, show(kind), expected, fix)
        return
    start = decay_start(stable, stable.max_train_steps)
    if start is not None and stable.num_train_epochs is not None:
        expected = "null: it does not say at which step the decay began"
        yield Problem("num_train_epochs", file, show(stable.num_train_epochs), expected, fix)
    elif start is not None and step > start:
        found = f"step {step}, in the decay from step {start} on"
        yield Problem("decay_from", file, found, f"a step up to {start}", fix)
    warm_up = warm_up_steps(stable, stable.max_train_steps)
    if step < warm_up:
        found = f"step {step}, in the warm-up"
        yield Problem("decay_from", file, found, f"a step from {warm_up} on", fix)
    if stable.learning_rate != config.learning_rate:
        expected = f"{config.learning_rate:g}, the learning_rate of this run: it would jump"
        fix = f"learning_rate={stable.learning_rate:g}"
        yield Problem("learning_rate", file, show(stable.learning_rate), expected, fix)


def check_same_branch(saved: Checkpoint, config: RunConfig) -> None:
    """Refuses to resume a branch from a checkpoint of another one.

    Raises:
        ConfigurationError: If the checkpoint's run did not decay from the same step.
    """
    if config.decay_from is None:
        return
    before = load_resolved(saved.folder / CONFIG, type(config))
    if branch_step(before) != branch_step(config):
        raise ConfigurationError(
            f"{saved.folder} is of a run with decay_from={before.decay_from}, this one has "
            f"decay_from={config.decay_from}; expected the same to resume it, or another out_dir"
        )
