"""A branched decay continues a run that trained at a constant rate, and only decays (`decay_from`).

So one run at a constant rate, with kept checkpoints, yields finished models of several lengths. A
branch equals an uninterrupted run of warm-up, stable rate and decay: the same steps on the same
data. Hägele et al. 2024 (arXiv 2405.18392) compare such branches with whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import read_branch_step
from bsmeta.core.errors import ConfigurationError, Problem, format_value
from bsmeta.training.checkpoints.checkpoint import CONFIG_FILE, Checkpoint


def find_branch_problems(
    saved: Checkpoint, stable: RunConfig, learning_rate: float
) -> Iterator[Problem]:
    """Yields a problem for each reason why a decay cannot branch off at a checkpoint.

    Args:
        stable: Configuration of the run that saved the checkpoint.
        learning_rate: Peak learning rate of the branch.
    """
    file = str(saved.folder / CONFIG_FILE)
    step = saved.step
    schedule = stable.lr_scheduler_type
    fix = "name a checkpoint at the constant rate of a run"
    if schedule not in ("constant", WSD):
        expected = f"constant or {WSD}: the rate has been falling since the warm-up"
        yield Problem("lr_scheduler_type", file, format_value(schedule), expected, fix)
        return

    rates = RatePlan.of(stable, stable.max_train_steps)
    decay_start = rates.decay_start
    if decay_start is not None and stable.num_train_epochs is not None:
        expected = "null: it does not say at which step the decay began"
        yield Problem(
            "num_train_epochs", file, format_value(stable.num_train_epochs), expected, fix
        )
    elif decay_start is not None and step > decay_start:
        position = f"step {step}, in the decay from step {decay_start} on"
        yield Problem("decay_from", file, position, f"a step up to {decay_start}", fix)

    if step < rates.warm_up_steps:
        position = f"step {step}, in the warm-up"
        yield Problem("decay_from", file, position, f"a step from {rates.warm_up_steps} on", fix)

    if stable.learning_rate != learning_rate:
        expected = f"{learning_rate:g}, the learning_rate of this run: it would jump"
        fix = f"learning_rate={stable.learning_rate:g}"
        yield Problem("learning_rate", file, format_value(stable.learning_rate), expected, fix)


def check_same_branch(
    saved: Checkpoint, saved_decay_from: str | None, decay_from: str | None
) -> None:
    """Refuses to resume a branch from a checkpoint of another branch."""
    if read_branch_step(saved_decay_from) != read_branch_step(decay_from):
        raise ConfigurationError(
            f"{saved.folder} is of a run with decay_from={saved_decay_from}, this one has "
            f"decay_from={decay_from}; expected the same to resume it, or another out_dir"
        )
