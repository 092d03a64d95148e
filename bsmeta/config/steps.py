"""Computes the steps of a run: their number, their rows, and when to log, evaluate and save.

Nothing else computes the length of a run or its global batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TypeVar

from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.core.errors import ConfigurationError

Run = TypeVar("Run", bound=RunConfig)

CHECKPOINT_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)step")
"""The name of a checkpoint's folder, with its step."""

EPOCH_KEYS = {
    "num_train_epochs": "max_train_steps",
    "evals_per_epoch": "eval_steps",
    "logs_per_epoch": "logging_steps",
    "saves_per_epoch": "save_steps",
}
"""For each key in epochs, the key in steps whose place it takes if it is set."""


@dataclass(frozen=True)
class Schedule:
    """The steps after which a run logs, evaluates, saves and ends.

    Attributes:
        max_steps: Number of steps of the run.
        logging_steps: Number of steps between two lines of the log.
        eval_steps: Number of steps between two evaluations; 0: none.
        save_steps: Number of steps between two checkpoints; 0: only one at the end.
        extra_steps: Further steps at which to evaluate and save.
    """

    max_steps: int
    logging_steps: int = 1
    eval_steps: int = 0
    save_steps: int = 0
    extra_steps: frozenset[int] = frozenset()

    @classmethod
    def of(cls, config: RunConfig, steps_per_epoch: int | None = None) -> Schedule:
        """Creates the schedule of a run.

        Args:
            steps_per_epoch: Number of steps that train on every row once; None: the task has no
                epochs; 0: the run has no steps.

        Raises:
            ConfigurationError: If the decay would begin within the warm-up, if an extra step is
                after the last step, or if an interval is given per epoch and the task has no
                epochs.
        """
        max_steps = _compute_max_steps(config, steps_per_epoch)
        if RatePlan.of(config, max_steps).decays_in_warm_up:
            raise ConfigurationError(
                f"lr_scheduler_type={WSD}: warm-up and decay are longer than the run, which has "
                f"{max_steps:,} steps; lower num_warmup_steps (warmup_share) or num_decay_steps "
                "(decay_share)"
            )

        extra_steps = frozenset(config.extra_steps_to_eval_save_at)
        if extra_steps and max(extra_steps) > max_steps:
            raise ConfigurationError(
                f"extra_steps_to_eval_save_at={sorted(extra_steps)}: the run has {max_steps:,} "
                f"steps ({config.num_train_epochs} epochs of {steps_per_epoch:,}); drop those "
                "after them"
            )

        def compute_interval(key: str, steps: int) -> int:
            """Returns an interval in steps; a key that counts times in an epoch has precedence."""
            times_per_epoch: int | None = getattr(config, key)
            if times_per_epoch is None:
                return steps
            return max(1, _require_epochs(key, steps_per_epoch) // times_per_epoch)

        return cls(
            max_steps,
            logging_steps=compute_interval("logs_per_epoch", config.logging_steps),
            eval_steps=compute_interval("evals_per_epoch", config.eval_steps),
            save_steps=compute_interval("saves_per_epoch", config.save_steps),
            extra_steps=extra_steps,
        )

    def logs(self, step: int) -> bool:
        """Whether the metrics of a step are logged; for the last step, they always are."""
        return step % self.logging_steps == 0 or step == self.max_steps

    def evaluates(self, step: int) -> bool:
        """Whether the model is evaluated after a step; with `eval_steps`, always after the last."""
        if self.eval_steps and (step % self.eval_steps == 0 or step == self.max_steps):
            return True
        return step in self.extra_steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after a step, apart from the one after the last step."""
        if self.save_steps and step % self.save_steps == 0:
            return True
        return step in self.extra_steps


def _compute_max_steps(config: RunConfig, steps_per_epoch: int | None) -> int:
    """Returns the number of steps of a run; see `Schedule.of`."""
    if steps_per_epoch == 0:
        return 0
    if config.num_train_epochs is None:
        return config.max_train_steps
    epoch_steps = _require_epochs("num_train_epochs", steps_per_epoch)
    return max(1, round(config.num_train_epochs * epoch_steps))


def exports_model(export_steps: int | None, step: int) -> bool:
    """Whether the checkpoint of a step has `model/`.

    Args:
        export_steps: The steps whose multiples have it; 0: none, None: all.
    """
    return export_steps is None or (export_steps > 0 and step % export_steps == 0)


def lacks_model(folder: Path) -> bool:
    """Whether a folder is a checkpoint without `model/`."""
    if CHECKPOINT_NAME.fullmatch(folder.resolve().name) is None:
        return False
    return (folder / "manifest.json").is_file() and not (folder / "model").exists()


def explain_export(folder: Path) -> str:
    """Explains how to get `model/` of a checkpoint that lacks it."""
    match = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    assert match is not None
    return (
        f"{folder} has no model/, which export_steps of its run has left out; name a checkpoint "
        "that has one, or resume from it with nothing left to train (train.py with the launch file "
        f"and the keys of the run, and resume_from_checkpoint_dir={folder} "
        f"max_train_steps={match[1]} out_dir=FOLDER), which writes FOLDER/model"
    )


def read_branch_step(decay_from: str | None) -> int | None:
    """Returns the step of the checkpoint that `decay_from` names; None if it names none."""
    if not decay_from:
        return None
    match = CHECKPOINT_NAME.fullmatch(Path(decay_from).resolve().name)
    return None if match is None else int(match[1])


def set_branch_length(config: Run) -> Run:
    """Sets the length of a run that only decays (`decay_from`); returns others unchanged.

    The length is the step of the checkpoint from which the run continues, plus `num_decay_steps`.
    """
    step = read_branch_step(config.decay_from)
    if step is None or config.num_decay_steps is None:
        return config
    return replace(config, max_train_steps=step + config.num_decay_steps)


def _require_epochs(key: str, steps_per_epoch: int | None) -> int:
    """Returns the number of steps of an epoch; refuses a key for a task without epochs."""
    if steps_per_epoch is None:
        raise ConfigurationError(f"{key}: this task has no epochs; expected null")
    return steps_per_epoch


@dataclass(frozen=True)
class BatchPlan:
    """The division of the rows of a step into micro-batches and processes.

    Attributes:
        micro_batch: Number of rows in a micro-batch of one process; 1 if it varies between steps.
        accumulation: Number of micro-batches of one process in a step.
        processes: Number of processes.
        key: The key that sets the number of rows of a micro-batch; None if it varies.
        is_total: Whether that key sets the number of rows of a whole step, which is then divided.
    """

    micro_batch: int
    accumulation: int
    processes: int
    key: str | None
    is_total: bool = False

    @classmethod
    def of(cls, config: RunConfig, processes: int) -> BatchPlan:
        """Creates the plan of a run.

        Args:
            processes: Number of processes.
        """
        key = config.micro_batch_key
        rows = 1 if key is None else _read_value(config, key)
        assert isinstance(rows, int)

        scope_key = config.batch_scope_key
        is_total = scope_key is not None and _read_value(config, scope_key) == "total"
        accumulation = config.gradient_accumulation_steps
        if is_total:  # the check of the launch refuses a remainder
            rows //= accumulation * processes

        return cls(rows, accumulation, processes, key, is_total)

    @property
    def global_batch(self) -> int:
        """Number of rows of a step on all processes; of its micro-batches if the rows vary."""
        return self.micro_batch * self.accumulation * self.processes

    @property
    def rows_per_step(self) -> int | None:
        """Number of rows of each step; None if it varies."""
        return None if self.key is None else self.global_batch


def _read_value(config: RunConfig, key: str) -> object:
    """Returns the value of a dotted key."""
    return reduce(getattr, key.split("."), config)
