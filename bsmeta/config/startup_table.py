"""The start-up table of a run, and the notes below it.

The table shows the length of a run and its global batch, both with the arithmetic of `steps`, and
all else that the run will do. The notes name settings that are valid but probably unintended;
invalid settings are refused by the checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.table import Table

from bsmeta.config.launch import Launch
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.config.task_entry import Row, TaskEntry
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console


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
