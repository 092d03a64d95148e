"""The steps of a run: their number, their rows, and when to log, evaluate and save.

The length of a run and its global batch are computed only here.
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
"""The name of a checkpoint's folder."""


@dataclass(frozen=True)
class Schedule:
    """The steps after which a run ends, logs, evaluates and saves.

    Attributes:
        max_steps: Steps in all.
        logging_steps: Steps between two lines of the log.
        eval_steps: Steps between two evaluations; 0: none.
        save_steps: Steps between two checkpoints; 0: only one at the end.
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
            steps_per_epoch: Steps that train on every row once; None: the task has no epochs; 0:
                the run has no steps.

        Raises:
            ConfigurationError: If the decay would begin within the warm-up, if an extra step is
                after the last step, or if an interval is given per epoch and the task has no
                epochs.
        """
        max_steps = config.max_train_steps
        if config.num_train_epochs is not None:
            epoch = _count_epoch_steps("num_train_epochs", steps_per_epoch)
            max_steps = max(1, round(config.num_train_epochs * epoch))
        if steps_per_epoch == 0:
            max_steps = 0

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
            """Returns an interval in steps, from the number of times in an epoch if that is set."""
            times_per_epoch: int | None = getattr(config, key)
            if times_per_epoch is None:
                return steps
            return max(1, _count_epoch_steps(key, steps_per_epoch) // times_per_epoch)

        return cls(
            max_steps,
            logging_steps=compute_interval("logs_per_epoch", config.logging_steps),
            eval_steps=compute_interval("evals_per_epoch", config.eval_steps),
            save_steps=compute_interval("saves_per_epoch", config.save_steps),
            extra_steps=extra_steps,
        )

    def logs(self, step: int) -> bool:
        """Whether the metrics of a step are logged, as they always are for the last step."""
        return step % self.logging_steps == 0 or step == self.max_steps

    def evaluates(self, step: int) -> bool:
        """Whether the model is evaluated after a step; with `eval_steps`, also after the last."""
        if self.eval_steps and (step % self.eval_steps == 0 or step == self.max_steps):
            return True
        return step in self.extra_steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after a step (after the last step it is always written)."""
        if self.save_steps and step % self.save_steps == 0:
            return True
        return step in self.extra_steps


def exports_model(export_steps: int | None, step: int) -> bool:
    """Whether the checkpoint of a step has `model/`."""
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
        f"max_train_steps={match[1]} out_dir=FOLDER; under DeepSpeed also trust_checkpoint=true), "
        "which writes FOLDER/model"
    )


def read_branch_step(decay_from: str | None) -> int | None:
    """Returns the step of the checkpoint that `decay_from` names; None if it names none."""
    match = CHECKPOINT_NAME.fullmatch(Path(decay_from or "").resolve().name)
    return int(match[1]) if decay_from and match else None


def set_branch_length(config: Run) -> Run:
    """Returns a configuration with the length of a run that only decays, if it is one.

    It has the steps of the checkpoint that it begins with, and of the decay.
    """
    step = read_branch_step(config.decay_from)
    if step is None or config.num_decay_steps is None:
        return config
    return replace(config, max_train_steps=step + config.num_decay_steps)


def _count_epoch_steps(key: str, steps_per_epoch: int | None) -> int:
    """Returns the steps of an epoch, or refuses a key of a task that has none."""
    if steps_per_epoch is None:
        raise ConfigurationError(f"{key}: this task has no epochs; expected null")
    return steps_per_epoch


@dataclass(frozen=True)
class BatchPlan:
    """The split of a step's rows over micro-batches and processes.

    Attributes:
        micro_batch: Rows in a micro-batch of one process; 1 where they vary from step to step.
        accumulation: Micro-batches of one process in a step.
        key: The key that sets the rows of a micro-batch; None if they vary.
        is_total: Whether that key sets the rows of a whole step, which are then divided.
    """

    micro_batch: int
    accumulation: int
    processes: int
    key: str | None
    is_total: bool = False

    @classmethod
    def of(cls, config: RunConfig, processes: int) -> BatchPlan:
        """Creates the plan of a run with this number of processes."""
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
        """The rows of a step over all processes; where they vary, the micro-batches of a step."""
        return self.micro_batch * self.accumulation * self.processes

    @property
    def rows_per_step(self) -> int | None:
        """Rows of every step; None where they vary."""
        return None if self.key is None else self.global_batch


def _read_value(config: RunConfig, key: str) -> object:
    """Returns the value of a dotted key."""
    return reduce(getattr, key.split("."), config)
