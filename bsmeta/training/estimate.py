"""`estimate=true`: the resources that a run will need, before it is started.

Counted on the meta device (without loading weights): parameters, and memory by engine, which is
compared with the memory of the device. Measured over a few real steps on this device: tokens per
second, MFU, memory, time to finish. The run folder is not touched, and nothing from these steps is
kept. `estimate_card` counts for a GPU that is not here; nothing is measured then.

Weights, gradients and optimizer states follow from the number of parameters P, the ZeRO stage and
the number of processes N (Rajbhandari et al. 2020, section 3). What autograd keeps for the backward
pass is read off a forward pass on torch's fake tensors, which have shapes and no values: formulas
(Korthikanti et al. 2022, section 4) do not know which norms compute in float32, or that autocast
copies the input of each matrix product and all weights. All sizes in bytes.

DeepSpeed's estimators (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_...`) return a
single number, and only for stages 2 and 3 with all weights trained in half precision. Theirs is
larger by what exists only during a step: in stage 2 the float32 copy of the gradients (4 bytes per
parameter / N), in stage 3 half of that and the largest gathered layer.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from rich.text import Text
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from bsmeta.config.checks import CheckedRun
from bsmeta.config.schema import OPTIMIZERS, OptimizerEntry, RunConfig
from bsmeta.config.startup_table import print_summary
from bsmeta.config.steps import BatchPlan, Schedule
from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.signals import StopRequest
from bsmeta.core.terminal import Console
from bsmeta.training.cuda_rules import follow_cuda_rules
from bsmeta.training.device_errors import explaining_device_errors
from bsmeta.training.device_fit import Device, Need, describe_fit, find_device
from bsmeta.training.device_memory import DeviceMemory, amount, memory_notes, memory_rows
from bsmeta.training.distributed import start
from bsmeta.training.optimization import matrices_in_layers
from bsmeta.training.processes import Processes
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import Shape, Task, flops_per_token
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

logger = logging.getLogger(__name__)

Stage = int | Literal["FSDP2"] | None
"""An engine by what it partitions: the ZeRO stage, FSDP2, or None: nothing (data parallel)."""

LAUNCH_FILES: dict[Stage, str] = {
    None: "ddp.yaml",
    1: "zero1.yaml",
    2: "zero2.yaml",
    3: "zero3.yaml",
    "FSDP2": "fsdp2.yaml",
}
"""The engines that `experiments/accelerate/` has a launch file for on GPUs."""

ASSUMED_MFU = (0.2, 0.4, 0.5)
"""Model FLOPs utilizations for which the time of a step on a card that is not here is printed."""

MASTER = 4
"""Bytes per parameter: float32 weights to update, where the model's have a lower precision."""
STAGES: tuple[Stage, ...] = (None, 0, 1, 2, 3, "FSDP2")


@dataclass(frozen=True)
class Counts:
    """Parameters of a model, shared ones counted once."""

    total: int
    trainable: int
    embeddings: int


@dataclass(frozen=True)
class State:
    """Bytes on one device, without activations."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Activations:
    """Bytes that a micro-batch takes on one device: in and after the layers, and in the loss."""

    layers: float
    layers_recomputed: float  # with gradient_checkpointing
    loss: float

    def total(self, recomputing: bool) -> float:
        return (self.layers_recomputed if recomputing else self.layers) + self.loss


def count(model: nn.Module) -> Counts:
    """Counts parameters; the model may be on the meta device."""
    parameters = list(model.parameters())
    embedded = {
        parameter
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return Counts(*(sum(map(torch.numel, own)) for own in (parameters, trainable, embedded)))


def optimizer_bytes(model: nn.Module, entry: OptimizerEntry) -> int:
    """Computes the size of an optimizer's state, not partitioned; the model may be on `meta`."""
    apart = matrices_in_layers(model)
    return 4 * sum(
        entry.state_values(parameter.shape, parameter in apart)
        for parameter in model.parameters()
        if parameter.requires_grad
    )


def state(counts: Counts, optimizer: int, stage: Stage, processes: int, half: bool) -> State:
    """Computes the size of weights, gradients and optimizer states on one device.

    Args:
        optimizer: Bytes of the optimizer's state (`optimizer_bytes`).
        stage: None and FSDP2 keep weights in float32, whatever the precision.
        processes: N; each higher ZeRO stage partitions one more of the three among them, and FSDP2
            all of them.
        half: Under DeepSpeed: bf16 or fp16, so that weights and gradients take 2 bytes.
    """
    size, master, partitioned = 4, 0, 3 if stage == "FSDP2" else 0
    if isinstance(stage, int):
        size, partitioned = 2 if half else 4, stage
        master = MASTER if half or stage > 0 else 0  # ZeRO always keeps its partition in float32
    return State(
        weights=size * counts.total / (processes if partitioned >= 3 else 1),
        gradients=size * counts.trainable / (processes if partitioned >= 2 else 1),
        optimizer=(optimizer + master * counts.trainable) / (processes if partitioned >= 1 else 1),
    )


def activations(planned: Shape, *, half: bool, copies: bool, casts: bool = True) -> Activations:
    """Computes what a micro-batch keeps for the backward pass.

    Args:
        half: Whether matrix products are computed in half precision.
        copies: Whether autocast makes their weights so, of float32 ones, and keeps the copies.
        casts: Whether autocast chooses the precision of each operation; otherwise, as under
            DeepSpeed, all compute in that of the weights.

    Raises:
        Exception: Of any kind, if the model cannot be called with ids alone and without values.
    """
    # Which tensors the attention keeps depends on the device.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if half and not copies else torch.float32
    kept: dict[StorageWeakRef, int] = {}  # bytes, but for those of the model itself
    inputs: list[int] = []  # bytes of the input of each layer
    layers: list[int] = []  # bytes that each layer adds

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=kind, device=device)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)  # its address stays taken while this exists
        if reference not in own:
            kept[reference] = storage.nbytes()
        return tensor

    def enter_layer(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs.append(arguments[0].nbytes)
        layers.append(-sum(kept.values()))

    def leave_layer(*_: object) -> None:
        layers[-1] += sum(kept.values())

    body = planned.body
    with FakeTensorMode(), ExitStack() as stack:
        state = {name: fake(value) for name, value in body.named_buffers()}
        for name, value in body.named_parameters():
            state[name] = fake(value).requires_grad_(value.requires_grad)
        own = {StorageWeakRef(tensor.untyped_storage()) for tensor in state.values()}
        ids = torch.zeros(planned.rows, planned.length, dtype=torch.long, device=device)
        for layer in planned.layers:
            stack.callback(layer.register_forward_pre_hook(enter_layer).remove)
            stack.callback(layer.register_forward_hook(leave_layer).remove)
        stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=half and casts))
        stack.enter_context(saved_tensors_hooks(keep, lambda tensor: tensor))
        hidden = functional_call(body, state, (), {"input_ids": ids}).last_hidden_state
        size = 2 if half else 4
        tokens, width = planned.rows * planned.length, hidden.shape[-1]
        rest = sum(kept.values()) - sum(layers) + tokens * width * size
    again = [number % planned.recompute_every == 0 for number in range(len(layers))]
    taken = zip(inputs, layers, again, strict=True)
    recomputed = sum(start if is_again else whole for start, whole, is_again in taken)
    return Activations(
        layers=float(sum(layers) + rest),
        layers_recomputed=float(recomputed + max(layers, default=0) + rest),
        loss=_loss(tokens, planned.outputs, width, planned.loss_chunk, size),
    )


def _loss(tokens: int, outputs: int, hidden: int, chunk: int, size: int) -> float:
    """Bytes of the logits, in the precision of the matmuls and in float32, and their gradients."""
    half = size if size < 4 else 0
    if chunk and chunk < tokens * outputs:  # the gradient takes the logits' place
        return float(chunk * (4 + half) + 4 * outputs * hidden)
    return float(tokens * outputs * (4 + 4 + 4 + 2 * half))


def measure_state(model: nn.Module, optimizer: Any) -> State:
    """Measures what this rank really holds: weights, gradients, and all optimizer state."""
    kept: list[Any] = []
    while hasattr(optimizer, "optimizer"):  # Accelerate's and DeepSpeed's wrappers
        # ZeRO-3 passes its float32 weights to torch's optimizer only during a step.
        kept += getattr(optimizer, "fp32_partitioned_groups_flat", [])
        optimizer = optimizer.optimizer
    own = list(model.parameters())
    # This rank's partition under ZeRO-3 and FSDP2
    shards = [_local(getattr(parameter, "ds_tensor", parameter)) for parameter in own]
    weights = {shard.untyped_storage().data_ptr() for shard in shards}
    kept += [value for values in optimizer.state.values() for value in values.values()]
    kept += [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if _local(parameter).untyped_storage().data_ptr() not in weights
    ]

    def total(tensors: Iterable[Any]) -> float:
        return float(sum(_local(own).nbytes for own in tensors if isinstance(own, torch.Tensor)))

    gradients = [parameter.grad for parameter in own]
    return State(weights=total(shards), gradients=total(gradients), optimizer=total(kept))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Forecast:
    """The counted part of an estimate."""

    def __init__(
        self, config: RunConfig, shape: Shape, checked: CheckedRun, device: Device | None
    ) -> None:
        self._config = config
        self._shape = shape
        self._flops_per_token = flops_per_token(shape.model)
        self._processes = processes = checked.launch.num_processes
        plan = replace(BatchPlan.of(config, processes), micro_batch=shape.rows)
        self.step_tokens = plan.global_batch * shape.length  # positions in its global batch
        self._device = device
        self._counts, half = count(shape.model), config.mixed_precision != "no"
        zero = (checked.deepspeed_config or {}).get("zero_optimization", {})
        # The engine of this launch.
        self.stage: Stage = zero.get("stage") if checked.launch.fsdp is None else "FSDP2"
        entry = OPTIMIZERS[config.optimizer_type]
        size = optimizer_bytes(shape.model, entry)
        able: dict[Stage, bool] = {None: True, "FSDP2": entry.takes_shards}
        stages = [stage for stage in STAGES if able.get(stage, entry.by_element)]
        self.states = {stage: state(self._counts, size, stage, processes, half) for stage in stages}
        self._half = half
        self._activations: dict[Stage, Activations] = {}
        self._row = 0.0, 0.0  # bytes of one row more in this launch: plain, recomputing
        self._uncounted = ""  # why they cannot be counted
        try:
            self._count_activations(stages)
        except Exception as error:  # whatever a model raises that needs more than ids, or values
            self._activations.clear()
            self._uncounted = f"{type(error).__name__}: {error}".splitlines()[0]

    @property
    def held(self) -> float:
        """Bytes of weights, gradients and optimizer on each device in this launch."""
        return self.states[self.stage].total

    @property
    def needed(self) -> float | None:
        """Bytes on each device in this launch; None if the activations cannot be counted."""
        live = self._activations.get(self.stage)
        if live is None:
            return None
        recomputes = getattr(self._config, "gradient_checkpointing", False)  # a key of some tasks
        return self.held + live.total(recomputes)

    def _count_activations(self, stages: list[Stage]) -> None:
        """Counts them as the planned device computes: this process's own, or `estimate_card`."""
        follows_card = self._device is not None and not torch.cuda.is_available()
        with follow_cuda_rules() if follows_card else nullcontext():
            counted: dict[tuple[bool, bool], Activations] = {}
            for stage in stages:
                precision = self._precision(stage)
                if precision not in counted:
                    copies, casts = precision
                    counted[precision] = activations(
                        self._shape, half=self._half, copies=copies, casts=casts
                    )
                self._activations[stage] = counted[precision]

            copies, casts = self._precision(self.stage)
            larger = replace(self._shape, rows=self._shape.rows + 1)
            more = activations(larger, half=self._half, copies=copies, casts=casts)
        here = self._activations[self.stage]
        self._row = (
            more.total(recomputing=False) - here.total(recomputing=False),
            more.total(recomputing=True) - here.total(recomputing=True),
        )

    def _precision(self, stage: Stage) -> tuple[bool, bool]:
        """How an engine computes in half precision: with copies of weights, in autocast.

        Without an engine of its own, a run keeps float32 weights and computes in autocast, FSDP2
        gathers weights in half precision and computes in autocast, and DeepSpeed converts the
        model.
        """
        if not self._half:
            return True, True  # no difference
        return stage is None, not isinstance(stage, int)

    def describe_fit(self) -> list[str]:
        """Says whether this launch fits on the planned device, and what else would."""
        if self._device is None or not self._activations:
            return []
        here, held = self._activations[self.stage], self.states[self.stage].total
        plain, recomputing = (
            Need(self._shape.rows, held + here.total(is_recomputed), self._row[is_recomputed])
            for is_recomputed in (False, True)
        )
        # None: the task does not have it
        recomputes: bool | None = getattr(self._config, "gradient_checkpointing", None)
        engines = {
            file: self.states[stage].total + self._activations[stage].total(bool(recomputes))
            for stage, file in LAUNCH_FILES.items()
            if stage in self.states and stage != self.stage
        }
        return describe_fit(
            self._device,
            plain,
            None if recomputes is None else recomputing,
            engines,
            recomputes=bool(recomputes),
            rows_key=self._config.micro_batch_key,
        )

    def describe_speed(self) -> list[str]:
        """The time of a step on a card that is not here, for some utilizations."""
        if self._device is None or self._device.is_here or self._device.peak_flops is None:
            return []
        flops = self._flops_per_token * self.step_tokens
        peak = self._device.peak_flops * self._processes
        times = [f"{flops / peak / share:.3f} s at {share:g}" for share in ASSUMED_MFU]
        return [f"a step by an assumed MFU (nothing was measured): {', '.join(times)}"]

    def describe_staging(self) -> list[str]:
        """The main memory that asynchronous saves take."""
        if not self._config.async_save or isinstance(self.stage, int):
            return []
        held = self.states[self.stage]
        ranks = "each rank" if self.stage == "FSDP2" else "rank 0"
        return [
            f"async_save keeps a copy of weights and optimizer in main memory: "
            f"{amount(held.weights + held.optimizer)} on {ranks}"
        ]

    def show(self, console: Console) -> None:
        """Prints it, with the formulas."""
        counts = self._counts
        numbers = (
            f"  {counts.total:,}, of which trainable {counts.trainable:,}, "
            f"in embeddings {counts.embeddings:,}"
        )
        console.print(Text.assemble("\n", ("parameters", "bold"), numbers))
        console.print(self._memory_table())
        for line in (*self.describe_fit(), *self.describe_staging(), *self.describe_speed()):
            console.print(f"  {line}")
        for line in self._notes():
            console.print(f"  {line}", style="dim")

    def _memory_table(self) -> Table:
        precision = self._config.mixed_precision
        title = f"\nMemory of each device ({self._processes}), precision {precision}; * this launch"
        table = Table(
            title=title, box=None, pad_edge=False, collapse_padding=True, title_justify="left"
        )
        heads = ("", "weights", "gradients", "optimizer", "activations", "in all", "recomputing")
        for name in heads:
            table.add_column(name, justify="right" if name else "left", no_wrap=not name)
        names: dict[Stage, str] = {None: "data parallel", "FSDP2": "FSDP2"}
        for stage, held in self.states.items():
            here = stage == self.stage
            cells = [amount(held.weights), amount(held.gradients), amount(held.optimizer)]
            live = self._activations.get(stage)
            if live is None:
                cells += ["–", f"{amount(held.total)} + activations", "–"]
            else:
                plain, recomputed = live.total(recomputing=False), live.total(recomputing=True)
                sums = (plain, held.total + plain, held.total + recomputed)
                cells += map(amount, sums)
            name = f"{'*' if here else ' '} {names.get(stage, f'ZeRO-{stage}')}"
            table.add_row(name, *cells, style="bold" * here)
        return table

    def _notes(self) -> list[str]:
        size = 4 if self._config.mixed_precision == "no" else 2
        weights = "" if size == 4 else " and, under DeepSpeed, of float32 weights"
        notes = [
            f"weights, gradients: {size} bytes a parameter (without DeepSpeed 4 each); optimizer: "
            f"4 bytes for each value of the state of {self._config.optimizer_type}{weights}; "
            "ZeRO-1 to 3 divide optimizer, gradients, weights in turn, FSDP2 all of them",
            "not counted: buckets of DeepSpeed, float32 gradients during a step, layers that "
            "ZeRO-3 and FSDP2 gather, the mask of packed documents in sdpa (with the heads that it "
            "makes it repeat), offload",
        ]
        if not self._activations:
            return [*notes, f"activations: not counted, because of {self._uncounted}"]
        live, shape = self._activations[self.stage], self._shape
        copies = (
            "" if size == 4 else ", in data parallel runs with half-precision copies of weights"
        )
        return [
            *notes,
            f"activations: what a forward pass of {shape.rows} x {shape.length} tokens keeps for "
            f"the backward pass, with the kernels of {self._kernels()}{copies}; of these, logits "
            f"{amount(live.loss)} (loss_chunk_logits)",
            "recomputing (gradient_checkpointing=true): the input of each layer, and one layer "
            "whole",
        ]

    def _kernels(self) -> str:
        return "this device" if self._device is None or self._device.is_here else "CUDA"


@dataclass(frozen=True)
class Probe:
    """The measured part of an estimate: the metrics of a step, and this rank's memory."""

    max_steps: int
    steps: int
    warm_up: int
    metrics: dict[str, Any]
    held: State

    def show(self, console: Console, counted: Forecast) -> None:
        """Prints it, extrapolated to the whole run."""
        metrics, held, expected = self.metrics, self.held, counted.states[counted.stage]
        mfu = "– (the peak of this device is not known)"
        if metrics["mfu"] is not None:
            mfu = f"{metrics['mfu']:.1%}"
        rows = [
            ("probe", f"{self.steps} steps, after {self.warm_up} to warm up"),
            ("a step", f"{metrics['step_s']:.3f} s, {counted.step_tokens:,} positions, of which "
             f"padding {metrics['padding']:.1%}"),
            ("tokens/s", f"{metrics['tokens_per_s']:,.0f} on all devices, without padding"),
            ("waiting for data", f"{metrics['data_wait_s']:.3f} s of these steps"),
            ("MFU", mfu),
            ("memory", f"{amount(metrics['memory_gb'] * 2**30)} at most on this device; weights "
             f"{amount(held.weights)} (counted {amount(expected.weights)}), optimizer "
             f"{amount(held.optimizer)} (counted {amount(expected.optimizer)})"),
            ("time to finish", f"{self.max_steps:,} steps x {metrics['step_s']:.3f} s = "
             f"{duration(self.max_steps * metrics['step_s'])}, without evaluations and saves"),
        ]  # fmt: skip
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def probe(config: RunConfig, task: Task, checked: CheckedRun) -> Probe:
    """Runs a few steps as the run would, in a temporary folder; all ranks call it."""
    schedule = Schedule.of(config, task.steps_per_epoch(checked.launch.num_processes))
    steps = min(config.estimate_steps, schedule.max_steps)
    # The first steps also open the data streams, fill caches, and choose kernels.
    warm_up = steps // 2
    with tempfile.TemporaryDirectory(prefix="bsmeta-estimate-") as folder:
        silent = replace(config, trackers=[], profile=False, log_documents=False, out_dir=folder)
        accelerator = start(silent, checked.deepspeed_config, checked.launch.reshards)
        processes, stop = Processes.of_group(accelerator.device), StopRequest()
        with Watchdog(processes, config.distributed_timeout_s, stop) as watchdog:
            run = RunFolder(Path(folder))
            trainer = Trainer(silent, schedule, task, accelerator, run, watchdog, stop)
            metrics = trainer.probe(warm_up, steps - warm_up)
        held_here = measure_state(trainer.engine.model, trainer.engine.optimizer)
        return Probe(schedule.max_steps, steps - warm_up, warm_up, metrics, held_here)


def print_memory(config: RunConfig, task: Task, checked: CheckedRun) -> None:
    """Prints the memory that a run needs beside that of the device, before it begins (rank 0).

    Nothing is printed for a model that cannot be counted, nor for a task whose data it depends on.

    Raises:
        UserError: If the model cannot be loaded, which would end the run later, and with a model of
            the Hub only after it has been looked up again.
    """
    if not task.shape_needs_no_data:
        return
    try:
        shape = task.shape()
        counted = None if shape is None else Forecast(config, shape, checked, find_device(None))
    except UserError:
        raise
    except Exception as error:  # whatever a model raises while it is counted
        logger.info("the memory of the run cannot be counted: %s", error)
        return
    if counted is not None:
        memory = DeviceMemory.of_launch(checked.launch)
        print_summary(memory_rows(counted, memory), [*memory_notes(counted, memory, config)])


def estimate(config: RunConfig, task: Task, checked: CheckedRun, *, is_main: bool) -> None:
    """Prints the resources that the run will need (rank 0).

    Raises:
        ConfigurationError: If the task cannot describe its model without loading it.
    """
    shape = task.shape()
    if shape is None:
        raise ConfigurationError(
            f"estimate=true: task={config.task} does not describe its model before loading it "
            "(Task.shape); expected a task that does, or a short run, which logs its memory"
        )
    device = find_device(config.estimate_card)
    console = Console(soft_wrap=False, highlight=False)
    counted = Forecast(config, shape, checked, device) if is_main else None
    if counted is not None:
        counted.show(console)
        if device is None:  # otherwise its memory is in the lines above
            memory = DeviceMemory.of_launch(checked.launch)
            print_summary(memory_rows(counted, memory), [*memory_notes(counted, memory, config)])

    is_here = config.estimate_card is None or (device is not None and device.is_here)
    if config.estimate_steps and is_here:
        with explaining_device_errors(config):
            measured = probe(config, task, checked)
        if counted is not None:
            measured.show(console, counted)


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
