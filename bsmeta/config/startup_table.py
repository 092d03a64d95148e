"""Prints the start-up table of a run, and the notes below it.

The table shows the length of a run and its global batch, as `steps` computes them, and the other
settings that matter most. The notes are about settings that are valid but probably unintended; the
checks refuse invalid settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.table import Table

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.launch import Launch
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.config.task_entry import Row
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console


def list_table_rows(
    run: CheckedRun, files: Sequence[str] = (), sampled: Sequence[Row] = ()
) -> list[Row]:
    """Lists the rows of the table: names and values, with batch sizes in rows, lengths in steps.

    The run's task adds rows, and replaces rows of the same name.

    Args:
        files: The files from which the configuration was composed.
        sampled: Rows about the data (`TaskEntry.sample_rows`).
    """
    config = run.config
    launch = run.launch
    first_rows = {
        "configuration": ", ".join(files) or "–",
        "run folder": config.out_dir,
        "resume from": config.resume_from_checkpoint_dir or "– (a fresh start)",
    }
    last_rows = {
        "launch": _describe_launch(launch, config.mixed_precision),
        "global batch": _describe_batch(BatchPlan.of(config, launch.num_processes)),
        "steps": _describe_length(config.max_train_steps, config.num_train_epochs),
        "learning rate": _describe_schedule(config),
        "evaluation": describe_evaluations(config),
        "checkpoints": _describe_checkpoints(config),
    }

    # A row of the task replaces the row of the same name, and takes its position.
    task_rows = dict([*run.entry.summary(config, launch), *sampled])
    added_rows = {name: value for name, value in task_rows.items() if name not in last_rows}
    rows = first_rows | added_rows | last_rows | task_rows
    return list(rows.items())


def print_summary(rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """Prints the table on standard output, and the notes below it.

    In a file or a pipe, which have no width, each row is one line, so that no path is wrapped.
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
        table.add_row(name, redact(value))  # before the table wraps it
    console.print(table, highlight=False)
    _print_notes(console, notes)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    """Prints each note on a line."""
    for note in notes:
        console.print(f"note: {redact(note)}", style="yellow", highlight=False, soft_wrap=True)


def _describe_batch(plan: BatchPlan) -> str:
    """Describes the global batch as a product of micro-batch, accumulation and processes."""
    factors = f"{plan.accumulation} (accumulation) x {plan.processes} (processes)"
    if plan.key is None:
        return f"rows vary; {factors} = {plan.global_batch:,} micro-batches"
    return f"{plan.micro_batch} (micro-batch) x {factors} = {plan.global_batch:,} rows"


def _describe_length(max_steps: int, epochs: float | None) -> str:
    """Describes the number of steps, or of epochs if these determine it."""
    if epochs is None:
        return f"{max_steps:,}"
    return "those of 1 epoch" if epochs == 1 else f"those of {epochs:g} epochs"


def describe_evaluations(config: RunConfig) -> str:
    """Describes the steps at which a run evaluates."""
    extra_steps = config.extra_steps_to_eval_save_at
    occasions = _describe_occasions(config.eval_steps, config.evals_per_epoch, extra_steps)
    return ", ".join(occasions) or "–"


def _describe_occasions(steps: int, per_epoch: int | None, extra_steps: Sequence[int]) -> list[str]:
    """Describes when a run evaluates or saves.

    Args:
        steps: Number of steps between two times; 0: never.
        per_epoch: Number of times in an epoch, instead of `steps`; None if it is not set.
        extra_steps: Further steps.

    Returns:
        The interval and the extra steps; an empty list if there is neither.
    """
    occasions: list[str] = []
    if per_epoch is not None:
        occasions.append(f"{per_epoch:,} an epoch")
    elif steps:
        occasions.append(f"every {steps:,} steps")
    if extra_steps:
        occasions.append(f"at {extra_steps}")
    return occasions


def _describe_launch(launch: Launch, mixed_precision: str) -> str:
    """Describes the processes, their engine and their precision."""
    parts = ["1 process" if launch.num_processes == 1 else f"{launch.num_processes} processes"]
    if launch.deepspeed:
        parts.append(f"DeepSpeed with {launch.deepspeed_config_file}")
    elif launch.distributed_type != "NO":
        names = {"MULTI_GPU": "data parallel", "FSDP": "FSDP2"}
        parts.append(names.get(launch.distributed_type, launch.distributed_type))
    return ", ".join([*parts, f"precision {mixed_precision}"])


def _describe_schedule(config: RunConfig) -> str:
    """Describes the learning rate over the run: its peak, warm-up, shape and end."""
    peak = f"{config.learning_rate:g}"
    warm_up = f"{config.num_warmup_steps:,} steps"
    if config.warmup_share is not None:
        warm_up = f"{config.warmup_share:.0%} of the steps"
    elif config.num_train_epochs is None and config.num_warmup_steps >= config.max_train_steps:
        return f"rising for the whole run: the warm-up of {warm_up} is longer (peak: {peak})"

    shape = config.lr_scheduler_type
    if shape == WSD:
        decay = f"{config.decay_share:.0%} of the"
        if config.num_decay_steps is not None:
            decay = f"{config.num_decay_steps:,}"
        shape = f"constant; in the last {decay} steps {config.decay_shape}"

    end = ""
    if config.lr_scheduler_type != "constant":
        end = f" to {config.learning_rate * config.min_learning_rate_ratio:g}"
    origin = "" if config.decay_from is None else f", from {config.decay_from}"
    return f"{peak} after {warm_up}, then {shape}{end}{origin}"


def _describe_checkpoints(config: RunConfig) -> str:
    """Describes when checkpoints are written, how many are kept, and which have `model/`."""
    extra_steps = config.extra_steps_to_eval_save_at
    occasions = _describe_occasions(config.save_steps, config.saves_per_epoch, extra_steps)
    occasions.append("and at the end" if occasions else "at the end")

    count = config.keep_last_checkpoints
    retained = {0: "all are", 1: "the last is"}.get(count, f"the last {count} are")

    exports = ""
    if config.export_steps is not None:
        interval = f"every {config.export_steps:,} steps" if config.export_steps else "in none"
        exports = f"; model/ {interval}"
    if config.export_dtype is not None:
        exports += f"; model/ in {config.export_dtype}"

    return f"{', '.join(occasions)}; {retained} kept{exports}"


def list_launch_notes(launch: Launch) -> Iterator[str]:
    """Yields a note for each option of `accelerate launch` that has no effect."""
    if launch.use_cpu:
        yield (
            "accelerate launch --cpu (use_cpu: true) starts one process on the CPU, and no "
            "DeepSpeed, whatever else its file says"
        )
    if launch.zero_options and not launch.deepspeed:
        yield f"{', '.join(launch.zero_options)} in the environment: this is not a DeepSpeed launch"
