"""`estimate=true`: the resources that a run will need, before it is started.

Counted without loading weights (`forecast`): parameters, and memory by engine, which is compared
with the memory of the device. Measured over a few real steps on this device: tokens per second,
MFU, memory, time to finish. The run folder is not touched, and the results of these steps are
discarded. With `estimate_card`, memory is counted for a GPU of another machine, and nothing is
measured.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.startup_table import print_summary
from bsmeta.config.steps import Schedule
from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.signals import StopRequest
from bsmeta.core.terminal import Console
from bsmeta.training.device_errors import explain_device_errors
from bsmeta.training.memory.device import (
    DeviceMemory,
    format_size,
    list_memory_notes,
    list_memory_rows,
)
from bsmeta.training.memory.device_fit import Device, find_device
from bsmeta.training.memory.forecast import Forecast
from bsmeta.training.memory.states import State, measure_state
from bsmeta.training.ranks.distributed import create_accelerator
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.task import Shape, Task
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probe:
    """The measured part of an estimate.

    Attributes:
        max_steps: Steps of the whole run.
        steps: Measured steps, after `warm_up`.
        metrics: Result of `Throughput.take_metrics`.
        held: Memory of this rank.
    """

    max_steps: int
    steps: int
    warm_up: int
    metrics: dict[str, Any]
    held: State

    def show(self, console: Console, forecast: Forecast) -> None:
        """Prints the measurements, extrapolated to the whole run."""
        metrics = self.metrics
        held = self.held
        expected = forecast.states[forecast.stage]
        mfu = "– (the peak of this device is not known)"
        if metrics["mfu"] is not None:
            mfu = f"{metrics['mfu']:.1%}"
        rows = [
            ("probe", f"{self.steps} steps, after {self.warm_up} to warm up"),
            ("a step", f"{metrics['step_s']:.3f} s, {forecast.step_tokens:,} positions, of which "
             f"padding {metrics['padding']:.1%}"),
            ("tokens/s", f"{metrics['tokens_per_s']:,.0f} on all devices, without padding"),
            ("waiting for data", f"{metrics['data_wait_s']:.3f} s of these steps"),
            ("MFU", mfu),
            ("memory", f"{format_size(metrics['memory_gb'] * 2**30)} at most on this device; "
             f"weights {format_size(held.weights)} (counted {format_size(expected.weights)}), "
             f"optimizer {format_size(held.optimizer)} "
             f"(counted {format_size(expected.optimizer)})"),
            ("time to finish", f"{self.max_steps:,} steps x {metrics['step_s']:.3f} s = "
             f"{format_duration(self.max_steps * metrics['step_s'])}, without evaluations and "
             "saves"),
        ]  # fmt: skip

        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def probe_run(run: CheckedRun, task: Task) -> Probe:
    """Runs a few steps as the run would, in a temporary folder; all ranks call it."""
    config = run.config
    schedule = Schedule.of(config, task.steps_per_epoch(run.launch.num_processes))
    steps = min(config.estimate_steps, schedule.max_steps)
    # The first steps also open the data streams, fill caches, and choose kernels.
    warm_up = steps // 2

    with tempfile.TemporaryDirectory(prefix="bsmeta-estimate-") as folder:
        silent = replace(config, trackers=[], profile=False, log_documents=False, out_dir=folder)
        accelerator = create_accelerator(silent, run.deepspeed_config, run.launch.reshards)
        processes = Processes.of_group(accelerator.device)
        stop = StopRequest()
        with Watchdog(processes, config.distributed_timeout_s, stop) as watchdog:
            run_folder = RunFolder(Path(folder))
            trainer = Trainer(silent, schedule, task, accelerator, run_folder, watchdog, stop)
            metrics = trainer.probe(warm_up, steps - warm_up)
        held = measure_state(trainer.engine.model, trainer.engine.optimizer)
        return Probe(schedule.max_steps, steps - warm_up, warm_up, metrics, held)


def _make_forecast(run: CheckedRun, task: Task, shape: Shape, device: Device | None) -> Forecast:
    """Counts the memory that a run of a task needs."""
    return Forecast(run, shape, device, saves_frozen=task.base_model(shape.model) is None)


def print_memory(run: CheckedRun, task: Task) -> None:
    """Prints the memory that a run needs and the memory of the device, before it begins (rank 0).

    Nothing is printed for a model that cannot be counted, or whose shape depends on the data.

    Raises:
        UserError: If the model cannot be loaded. The run would fail later for the same reason, with
            a model of the Hub only after it has been looked up again.
    """
    if not task.shape_needs_no_data:
        return

    try:
        shape = task.shape()
        forecast = None if shape is None else _make_forecast(run, task, shape, find_device(None))
    except UserError:
        raise
    except Exception as error:  # any error of a model while it is counted
        logger.info("the memory of the run cannot be counted: %s", error)
        return

    if forecast is not None:
        _print_device_memory(forecast, run)


def _print_device_memory(forecast: Forecast, run: CheckedRun) -> None:
    """Prints the memory that a run needs beside the memory of this device."""
    memory = DeviceMemory.of_launch(run.launch)
    rows = list_memory_rows(forecast, memory)
    print_summary(rows, [*list_memory_notes(forecast, memory, run.config)])


def estimate_run(run: CheckedRun, task: Task, *, is_main: bool) -> None:
    """Prints the resources that the run will need (rank 0).

    Raises:
        ConfigurationError: If the task cannot describe its model without loading it.
    """
    config = run.config
    shape = task.shape()
    if shape is None:
        raise ConfigurationError(
            f"estimate=true: task={config.task} does not describe its model before loading it "
            "(Task.shape); expected a task that does, or a short run, which logs its memory"
        )

    device = find_device(config.estimate_card)
    console = Console(soft_wrap=False, highlight=False)
    forecast = _make_forecast(run, task, shape, device) if is_main else None
    if forecast is not None:
        forecast.show(console)
        if device is None:  # otherwise its memory is in the lines above
            _print_device_memory(forecast, run)

    is_here = config.estimate_card is None or (device is not None and device.is_here)
    if config.estimate_steps and is_here:
        with explain_device_errors(config):
            measured = probe_run(run, task)
        if forecast is not None:
            measured.show(console, forecast)


def format_duration(seconds: float) -> str:
    """Formats seconds as days, hours and minutes."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds_left} s"
