"""The steps of a run: how many there are, what happens after which, and the rows of each.

The only place that computes the length of a run and the global batch. The start-up table shows
both, with the arithmetic, and all else that the run will do. The notes below it name settings that
are valid but probably unintended; invalid settings are refused by the checks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from bsmeta.config.schema import WSD, RunConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console

if TYPE_CHECKING:
    from bsmeta.config.checks import Row, TaskEntry
    from bsmeta.config.launch import Launch

CHECKPOINT_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)step")
"""The name of a checkpoint's folder."""


@dataclass(frozen=True)
class Schedule:
    """When a run ends, logs, evaluates and saves.

    Attributes:
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
            ConfigurationError: If an extra step is after the last step, or an interval is given
                per epoch and the task has no epochs.
        """
        max_steps = config.max_train_steps
        if config.num_train_epochs is not None:
            epoch = _epoch("num_train_epochs", steps_per_epoch)
            max_steps = max(1, round(config.num_train_epochs * epoch))
        if steps_per_epoch == 0:
            max_steps = 0

        def interval(key: str, steps: int) -> int:
            times: int | None = getattr(config, key)
            return steps if times is None else max(1, _epoch(key, steps_per_epoch) // times)

        if decays_in_warm_up(config, max_steps):
            raise ConfigurationError(
                f"lr_scheduler_type={WSD}: warm-up and decay are longer than the run, which has "
                f"{max_steps:,} steps; lower num_warmup_steps (warmup_share) or num_decay_steps "
                "(decay_share)"
            )
        extra = frozenset(config.extra_steps_to_eval_save_at)
        if extra and max(extra) > max_steps:
            raise ConfigurationError(
                f"extra_steps_to_eval_save_at={sorted(extra)}: the run has {max_steps:,} steps "
                f"({config.num_train_epochs} epochs of {steps_per_epoch:,}); drop those after them"
            )
        return cls(
            max_steps,
            logging_steps=interval("logs_per_epoch", config.logging_steps),
            eval_steps=interval("evals_per_epoch", config.eval_steps),
            save_steps=interval("saves_per_epoch", config.save_steps),
            extra_steps=extra,
        )

    def logs(self, step: int) -> bool:
        """Whether the metrics of a step are logged; those of the last step always are."""
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


def exports_model(config: RunConfig, step: int) -> bool:
    """Whether the checkpoint of a step has `model/`."""
    every = config.export_steps
    return every is None or (every > 0 and step % every == 0)


def lacks_model(folder: Path) -> bool:
    """Whether a folder is a checkpoint without `model/`."""
    if CHECKPOINT_NAME.fullmatch(folder.resolve().name) is None:
        return False
    return (folder / "manifest.json").is_file() and not (folder / "model").exists()


def how_to_export(folder: Path) -> str:
    """What to do about a checkpoint that lacks `model/`."""
    match = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    assert match is not None
    return (
        f"{folder} has no model/, which export_steps of its run has left out; name a checkpoint "
        "that has one, or resume from it with nothing left to train (train.py with the launch file "
        f"and the keys of the run, and resume_from_checkpoint_dir={folder} "
        f"max_train_steps={match[1]} out_dir=FOLDER; under DeepSpeed also trust_checkpoint=true), "
        "which writes FOLDER/model"
    )


def warm_up_steps(config: RunConfig, max_steps: int) -> int:
    """Steps in which the learning rate rises."""
    share = config.warmup_share
    return config.num_warmup_steps if share is None else round(share * max_steps)


def decay_start(config: RunConfig, max_steps: int) -> int | None:
    """The last step before the decay of `lr_scheduler_type=wsd`; None under other schedules."""
    if config.lr_scheduler_type != WSD:
        return None
    steps = config.num_decay_steps
    return max_steps - (max(1, round(config.decay_share * max_steps)) if steps is None else steps)


def decays_in_warm_up(config: RunConfig, max_steps: int) -> bool:
    """Whether the decay would begin before the warm-up ends."""
    start = decay_start(config, max_steps)
    return start is not None and start < warm_up_steps(config, max_steps)


def branch_step(config: RunConfig) -> int | None:
    """The step of the checkpoint that `decay_from` names; None if it names none."""
    match = CHECKPOINT_NAME.fullmatch(Path(config.decay_from or "").resolve().name)
    return int(match[1]) if config.decay_from and match else None


def set_branch_length(config: RunConfig) -> None:
    """Sets the length of a run that only decays: the steps before it, and those of the decay."""
    step = branch_step(config)
    if step is not None and config.num_decay_steps is not None:
        config.max_train_steps = step + config.num_decay_steps


def _epoch(key: str, steps_per_epoch: int | None) -> int:
    if steps_per_epoch is None:
        raise ConfigurationError(f"{key}: this task has no epochs; expected null")
    return steps_per_epoch


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of a step are split.

    Attributes:
        micro_batch: Rows in a micro-batch of one process; 1 where they vary from step to step.
        accumulation: Micro-batches of one process in a step.
        key: The key that sets the rows of a micro-batch; None if they vary.
        is_total: Whether that key sets the rows of a whole step, which are divided.
    """

    micro_batch: int
    accumulation: int
    processes: int
    key: str | None
    is_total: bool = False

    @classmethod
    def of(cls, config: RunConfig, processes: int) -> BatchPlan:
        """The plan of a run with this number of processes."""
        name, scope = config.micro_batch_key, config.batch_scope_key
        rows = 1 if name is None else reduce(getattr, name.split("."), config)
        assert isinstance(rows, int)
        accumulation = config.gradient_accumulation_steps
        is_total = scope is not None and reduce(getattr, scope.split("."), config) == "total"
        if is_total:  # the check of the launch refuses a remainder
            rows //= accumulation * processes
        return cls(rows, accumulation, processes, name, is_total)

    @property
    def global_batch(self) -> int:
        """Rows of a step over all processes; where they vary, its micro-batches."""
        return self.micro_batch * self.accumulation * self.processes

    @property
    def rows_per_step(self) -> int | None:
        """Rows of every step; None where they vary."""
        return None if self.key is None else self.global_batch


def summary(
    config: RunConfig,
    launch: Launch,
    entry: TaskEntry,
    files: Sequence[str] = (),
    sampled: Sequence[Row] = (),
) -> list[Row]:
    """Rows of name and value; batch sizes in rows, lengths in steps.

    Args:
        entry: Its task, which adds rows or replaces rows of the same name.
        files: The files that the configuration was composed from.
        sampled: Rows about the data (`TaskEntry.sample_rows`).
    """
    first = {
        "configuration": ", ".join(files) or "–",
        "run folder": config.out_dir,
        "resume from": config.resume_from_checkpoint_dir or "– (a fresh start)",
    }
    last = {
        "launch": _launch(config, launch),
        "global batch": _batch(BatchPlan.of(config, launch.num_processes)),
        "steps": _length(config),
        "learning rate": _schedule(config),
        "evaluation": evaluations(config),
        "checkpoints": _checkpoints(config),
    }
    own = dict([*entry.summary(config, launch), *sampled])
    added = {name: value for name, value in own.items() if name not in last}
    return [*(first | added | last | own).items()]


def print_summary(rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """Prints the table on standard output, and the notes below it.

    A file or a pipe has no width: there each row is one line, so that no path is broken.
    """
    console = Console(soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            line = f"{name:<{width}}  {redact(value)}"
            console.print(line, highlight=False, soft_wrap=True)
        _print_notes(console, notes)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, redact(value))  # before it is folded to the width of the terminal
    console.print(table, highlight=False)
    _print_notes(console, notes)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"note: {redact(note)}", style="yellow", highlight=False, soft_wrap=True)


def _batch(plan: BatchPlan) -> str:
    split = f"{plan.accumulation} (accumulation) x {plan.processes} (processes)"
    if plan.key is None:
        return f"rows vary; {split} = {plan.global_batch:,} micro-batches"
    return f"{plan.micro_batch} (micro-batch) x {split} = {plan.global_batch:,} rows"


def _length(config: RunConfig) -> str:
    if config.num_train_epochs is None:
        return f"{config.max_train_steps:,}"
    if config.num_train_epochs == 1:
        return "those of 1 epoch"
    return f"those of {config.num_train_epochs:g} epochs"


def evaluations(config: RunConfig) -> str:
    """The steps at which a run evaluates, as the table shows them."""
    return ", ".join(_often(config, config.eval_steps, config.evals_per_epoch)) or "–"


def _often(config: RunConfig, steps: int, per_epoch: int | None) -> list[str]:
    """How often something happens, and at which further steps; [] if never."""
    extra = config.extra_steps_to_eval_save_at
    regular = f"every {steps:,} steps" if steps else ""
    if per_epoch is not None:
        regular = f"{per_epoch:,} an epoch"
    return [*filter(None, (regular, f"at {extra}" if extra else ""))]


def _launch(config: RunConfig, launch: Launch) -> str:
    parts = ["1 process" if launch.num_processes == 1 else f"{launch.num_processes} processes"]
    if launch.deepspeed:
        parts.append(f"DeepSpeed with {launch.deepspeed_config_file}")
    elif launch.distributed_type != "NO":
        names = {"MULTI_GPU": "data parallel", "FSDP": "FSDP2"}
        parts.append(names.get(launch.distributed_type, launch.distributed_type))
    return ", ".join([*parts, f"precision {config.mixed_precision}"])


def _schedule(config: RunConfig) -> str:
    peak, warm_up = f"{config.learning_rate:g}", f"{config.num_warmup_steps:,} steps"
    share = config.warmup_share
    if share is not None:
        warm_up = f"{share:.0%} of the steps"
    elif config.num_train_epochs is None and config.num_warmup_steps >= config.max_train_steps:
        return f"rising for the whole run: the warm-up of {warm_up} is longer (peak: {peak})"
    end = ""
    if config.lr_scheduler_type != "constant":
        end = f" to {config.learning_rate * config.min_learning_rate_ratio:g}"
    kind = config.lr_scheduler_type
    if kind == WSD:
        steps = config.num_decay_steps
        last = f"{config.decay_share:.0%} of the" if steps is None else f"{steps:,}"
        kind = f"constant; in the last {last} steps {config.decay_shape}"
    branch = "" if config.decay_from is None else f", from {config.decay_from}"
    return f"{peak} after {warm_up}, then {kind}{end}{branch}"


def _checkpoints(config: RunConfig) -> str:
    kept = config.keep_last_checkpoints
    often = _often(config, config.save_steps, config.saves_per_epoch)
    last = "and at the end" if often else "at the end"
    which = {0: "all are", 1: "the last is"}.get(kept, f"the last {kept} are")
    exports = ""
    if config.export_steps is not None:
        every = f"every {config.export_steps:,} steps" if config.export_steps else "in none"
        exports = f"; model/ {every}"
    return f"{', '.join([*often, last])}; {which} kept{exports}"


def launch_notes(launch: Launch) -> Iterator[str]:
    """Yields the options of `accelerate launch` that have no effect."""
    if launch.use_cpu:
        yield (
            "accelerate launch --cpu (use_cpu: true) starts one process on the CPU, and no "
            "DeepSpeed, whatever else its file says"
        )
    if launch.zero_options and not launch.deepspeed:
        yield f"{', '.join(launch.zero_options)} in the environment: this is no DeepSpeed launch"
