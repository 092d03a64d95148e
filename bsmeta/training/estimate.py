"""`estimate=true`: the resources that a run will need, before it is started.

Counted on the meta device (without loading weights): parameters, and memory by engine.
Measured over a few real steps on this device: tokens per second, MFU, memory, time to finish. The
run folder is not touched, and nothing from these steps is kept.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bsmeta.config.checks import CheckedRun
from bsmeta.config.optimizers import OPTIMIZERS
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan, Schedule
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.signals import StopRequest
from bsmeta.training.distributed import Processes, seed_everything, start
from bsmeta.training.memory import (
    Activations,
    Counts,
    Stage,
    State,
    activations,
    count,
    measure_state,
    optimizer_bytes,
    state,
)
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import HasEpochs, HasShape, Shape, Task
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

STAGES: tuple[Stage, ...] = (None, 0, 1, 2, 3, "FSDP2")


@dataclass(frozen=True)
class Forecast:
    """The counted part of an estimate.

    Attributes:
        shape: The model and micro-batch that are counted.
        states: Weights, gradients and optimizer of one device, by engine.
        activations: Those of a micro-batch, by engine; empty if they cannot be counted.
        uncounted: Why they cannot.
        stage: The engine of this launch.
        step_tokens: Positions in the global batch of a step.
    """

    shape: Shape
    counts: Counts
    states: dict[Stage, State]
    activations: dict[Stage, Activations]
    uncounted: str
    stage: Stage
    step_tokens: int


@dataclass(frozen=True)
class Probe:
    """The measured part of an estimate: the metrics of a step, and this rank's memory."""

    max_steps: int
    steps: int
    warm_up: int
    metrics: dict[str, Any]
    held: State


def forecast(config: RunConfig, shape: Shape, checked: CheckedRun) -> Forecast:
    """Counts what a task plans to train."""
    processes = checked.launch.num_processes
    zero = (checked.deepspeed_config or {}).get("zero_optimization", {})
    plan = replace(BatchPlan.of(config, processes), micro_batch=shape.rows)
    counts, half = count(shape.model), config.mixed_precision != "no"
    entry = OPTIMIZERS[config.optimizer_type]
    size = optimizer_bytes(shape.model, entry)
    able: dict[Stage, bool] = {None: True, "FSDP2": entry.takes_shards}
    stages = [stage for stage in STAGES if able.get(stage, entry.by_element)]
    live, uncounted = _activations(shape, stages, half)
    return Forecast(
        counts=counts,
        states={stage: state(counts, size, stage, processes, half) for stage in stages},
        shape=shape,
        activations=live,
        uncounted=uncounted,
        stage=zero.get("stage") if checked.fully_shard is None else "FSDP2",
        step_tokens=plan.global_batch * shape.length,
    )


def _activations(
    shape: Shape, stages: list[Stage], half: bool
) -> tuple[dict[Stage, Activations], str]:
    """What the engines keep of a micro-batch, or why that cannot be counted."""
    try:
        # Without an engine of its own, a run keeps float32 weights and computes in autocast.
        plain = activations(shape, half=half, copies=True)
        narrow = activations(shape, half=half, copies=False) if half else plain
    except Exception as error:  # whatever a model raises that needs more than ids, or values
        return {}, f"{type(error).__name__}: {error}".splitlines()[0]
    return {stage: plain if stage is None else narrow for stage in stages}, ""


def probe(config: RunConfig, task: Task, checked: CheckedRun) -> Probe:
    """Runs a few steps as the run would, in a temporary folder; all ranks call it."""
    launched = checked.launch.num_processes
    epoch = task.steps_per_epoch(launched) if isinstance(task, HasEpochs) else None
    schedule = Schedule.of(config, epoch)
    steps = min(config.estimate_steps, schedule.max_steps)
    # The first steps also open the data streams, fill caches, and choose kernels.
    warm_up = steps // 2
    with tempfile.TemporaryDirectory(prefix="bsmeta-estimate-") as folder:
        silent = replace(config, trackers=[], profile=False, log_documents=False, out_dir=folder)
        accelerator = start(silent, checked.deepspeed_config, checked.fully_shard)
        seed_everything(config.seed)
        processes, stop = Processes.of(accelerator), StopRequest()
        with Watchdog(processes, config.distributed_timeout_s, stop) as watchdog:
            run = RunFolder(Path(folder))
            trainer = Trainer(silent, schedule, task, accelerator, run, watchdog, stop)
            metrics = trainer.probe(warm_up, steps - warm_up)
        held_here = measure_state(trainer.model, trainer.optimizer)
        return Probe(schedule.max_steps, steps - warm_up, warm_up, metrics, held_here)


def estimate(config: RunConfig, task: Task, checked: CheckedRun, *, is_main: bool) -> None:
    """Prints the resources that the run will need (rank 0).

    Raises:
        ConfigurationError: If the task cannot describe its model without loading it.
    """
    if not isinstance(task, HasShape):
        raise ConfigurationError(f"estimate=true: task={config.task} cannot be estimated")
    counted = forecast(config, task.shape(), checked)
    console = Console(soft_wrap=False, highlight=False)
    if is_main:
        show_forecast(console, config, counted, checked)
    if config.estimate_steps == 0:
        return
    measured = probe(config, task, checked)
    if is_main:
        show_probe(console, counted, measured)


def show_forecast(
    console: Console, config: RunConfig, counted: Forecast, checked: CheckedRun
) -> None:
    """Prints the counted part, with the formulas."""
    counts = counted.counts
    console.print(
        f"\n[bold]parameters[/]  {counts.total:,}, of which trainable {counts.trainable:,}, "
        f"in embeddings {counts.embeddings:,}"
    )
    console.print(_memory_table(config, counted, checked.launch.num_processes))
    for line in _notes(counted, config):
        console.print(f"  {line}", style="dim")


def _memory_table(config: RunConfig, counted: Forecast, processes: int) -> Table:
    title = (
        f"\nMemory of each device ({processes}), precision {config.mixed_precision}; * this launch"
    )
    table = Table(
        title=title, box=None, pad_edge=False, collapse_padding=True, title_justify="left"
    )
    for name in ("", "weights", "gradients", "optimizer", "activations", "in all", "recomputing"):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    names: dict[Stage, str] = {None: "data parallel", "FSDP2": "FSDP2"}
    for stage, held_by in counted.states.items():
        name = names.get(stage, f"ZeRO-{stage}")
        here = stage == counted.stage
        cells = [amount(held_by.weights), amount(held_by.gradients), amount(held_by.optimizer)]
        live = counted.activations.get(stage)
        if live is None:
            cells += ["–", f"{amount(held_by.total)} + activations", "–"]
        else:
            plain, recomputed = live.layers + live.loss, live.layers_recomputed + live.loss
            cells += [amount(plain), amount(held_by.total + plain)]
            cells += [amount(held_by.total + recomputed)]
        table.add_row(f"{'*' if here else ' '} {name}", *cells, style="bold" * here)
    return table


def _notes(counted: Forecast, config: RunConfig) -> list[str]:
    size = 4 if config.mixed_precision == "no" else 2
    weights = "" if size == 4 else " and, under DeepSpeed, of float32 weights"
    notes = [
        f"weights, gradients: {size} bytes a parameter (without DeepSpeed 4 each); optimizer: 4 "
        f"bytes for each value of the state of {config.optimizer_type}{weights}; ZeRO-1 to 3 "
        "divide optimizer, gradients, weights in turn, FSDP2 all of them",
        "not counted: buckets of communication, float32 gradients during a step, "
        "layers that ZeRO-3 and FSDP2 gather, offload, fragmentation, the CUDA context",
    ]
    if not counted.activations:
        return [*notes, f"activations: not counted, because of {counted.uncounted}"]
    live = counted.activations[counted.stage]
    copies = "" if size == 4 else ", in data parallel runs with half-precision copies of weights"
    return [
        *notes,
        f"activations: what a forward pass of {counted.shape.rows} x {counted.shape.length} tokens "
        f"keeps for the backward pass, with the kernels of this device{copies}; of these, logits "
        f"{amount(live.loss)} (loss_chunk_logits)",
        "recomputing (gradient_checkpointing=true): the input of each layer, and one layer whole",
    ]


def show_probe(console: Console, counted: Forecast, measured: Probe) -> None:
    """Prints the measured part, extrapolated to the whole run."""
    metrics = measured.metrics
    mfu = "– (the peak of this device is not known)"
    if metrics["mfu"] is not None:
        mfu = f"{metrics['mfu']:.1%}"
    held_by, counted_state = measured.held, counted.states[counted.stage]
    rows = [
        ("probe", f"{measured.steps} steps, after {measured.warm_up} to warm up"),
        ("a step", f"{metrics['step_s']:.3f} s, {counted.step_tokens:,} positions, of which "
         f"padding {metrics['padding']:.1%}"),
        ("tokens/s", f"{metrics['tokens_per_s']:,.0f} on all devices, without padding"),
        ("waiting for data", f"{metrics['data_wait_s']:.3f} s of these steps"),
        ("MFU", mfu),
        ("memory", f"{amount(metrics['memory_gb'] * 2**30)} at most on this device; weights "
         f"{amount(held_by.weights)} (counted {amount(counted_state.weights)}), optimizer "
         f"{amount(held_by.optimizer)} (counted {amount(counted_state.optimizer)})"),
        ("time to finish", f"{measured.max_steps:,} steps x {metrics['step_s']:.3f} s = "
         f"{duration(measured.max_steps * metrics['step_s'])}, without evaluations and saves"),
    ]  # fmt: skip
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def amount(size: float) -> str:
    """Formats a number of bytes for display (powers of 1,024)."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def duration(seconds: float) -> str:
    """Formats seconds as days, hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s"
