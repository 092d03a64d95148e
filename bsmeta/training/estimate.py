"""`estimate=true`: the resources that a run will need, before it is started.

Counted on the meta device (without loading weights): parameters, and memory by engine, which is
compared with the memory of the device. Measured over a few real steps on this device: tokens per
second, MFU, memory, time to finish. The run folder is not touched, and the results of these steps
are discarded. With `estimate_card`, memory is counted for a GPU of another machine, and nothing is
measured.

Weights, gradients and optimizer states follow from the number of parameters P, the ZeRO stage and
the number of processes N (Rajbhandari et al. 2020, section 3). The tensors that autograd saves for
the backward pass are recorded in a forward pass on torch's fake tensors, which have shapes and no
values: formulas (Korthikanti et al. 2022, section 4) do not know which norms compute in float32, or
that autocast copies the input of each matrix product and all weights. All sizes are in bytes.

DeepSpeed's estimators (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_...`) return a
single number, and only for stages 2 and 3 with all weights trained in half precision. Their number
includes tensors that exist only during a step: in stage 2 the float32 copy of the gradients (4
bytes per parameter / N), in stage 3 half of it and the largest gathered layer.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.schema import OPTIMIZERS, OptimizerEntry
from bsmeta.config.startup_table import print_summary
from bsmeta.config.steps import BatchPlan, Schedule
from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.signals import StopRequest
from bsmeta.core.terminal import Console
from bsmeta.training.cuda_rules import follow_cuda_rules
from bsmeta.training.device_errors import explain_device_errors
from bsmeta.training.device_fit import Device, Need, describe_fit, find_device
from bsmeta.training.device_memory import (
    DeviceMemory,
    format_size,
    list_memory_notes,
    list_memory_rows,
)
from bsmeta.training.distributed import create_accelerator
from bsmeta.training.optimization import find_layer_matrices
from bsmeta.training.processes import Processes
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import Shape, Task, compute_flops_per_token
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

logger = logging.getLogger(__name__)

Stage = int | Literal["FSDP2"] | None
"""An engine, named for its partitioning: the ZeRO stage, FSDP2, or None: plain data parallel."""

LAUNCH_FILES: dict[Stage, str] = {
    None: "ddp.yaml",
    1: "zero1.yaml",
    2: "zero2.yaml",
    3: "zero3.yaml",
    "FSDP2": "fsdp2.yaml",
}
"""Launch file for GPUs in `experiments/accelerate/`, by engine."""

ASSUMED_MFU = (0.2, 0.4, 0.5)
"""Model FLOPs utilizations for which the time of a step on an absent card is printed."""

MASTER_WEIGHT_BYTES = 4
"""Bytes per parameter of the float32 weights to update, if the model has a lower precision."""

STAGES: tuple[Stage, ...] = (None, 0, 1, 2, 3, "FSDP2")


@dataclass(frozen=True)
class ParameterCounts:
    """The numbers of parameters of a model; shared ones count once."""

    total: int
    trainable: int
    embeddings: int


@dataclass(frozen=True)
class State:
    """Bytes of weights, gradients and optimizer states on one device."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class Activations:
    """Bytes that a micro-batch takes on one device.

    Attributes:
        layers: Tensors saved for the backward pass, in and after the layers.
        layers_recomputed: The same with gradient_checkpointing.
        loss: Logits and their gradients.
    """

    layers: float
    layers_recomputed: float
    loss: float

    def total(self, recomputing: bool) -> float:
        return (self.layers_recomputed if recomputing else self.layers) + self.loss


def count_parameters(model: nn.Module) -> ParameterCounts:
    """Counts parameters; the model may be on the meta device."""
    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    embeddings: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.update(module.parameters(recurse=False))

    return ParameterCounts(
        total=sum(map(torch.numel, parameters)),
        trainable=sum(map(torch.numel, trainable)),
        embeddings=sum(map(torch.numel, embeddings)),
    )


def count_optimizer_bytes(model: nn.Module, entry: OptimizerEntry) -> int:
    """Returns the bytes of an optimizer's state before partitioning; the model may be on `meta`."""
    layer_matrices = find_layer_matrices(model)
    num_values = sum(
        entry.state_values(parameter.shape, parameter in layer_matrices)
        for parameter in model.parameters()
        if parameter.requires_grad
    )
    return 4 * num_values


def count_state(
    counts: ParameterCounts, optimizer: int, stage: Stage, processes: int, half: bool
) -> State:
    """Computes the bytes of weights, gradients and optimizer states on one device.

    Args:
        optimizer: Bytes of the optimizer's state (`count_optimizer_bytes`).
        stage: The ZeRO stage, `FSDP2`, or None (plain data parallel). None and FSDP2 keep weights
            in float32.
        processes: Number of processes that share one copy of the state. ZeRO-1 divides the
            optimizer states among them, ZeRO-2 also the gradients, ZeRO-3 and FSDP2 also the
            weights.
        half: Whether DeepSpeed keeps weights and gradients in 2 bytes (bf16 or fp16).
    """
    if stage is None:
        zero_stage = 0
    elif stage == "FSDP2":
        zero_stage = 3  # partitions like ZeRO-3
    else:
        zero_stage = stage

    value_bytes = 4
    master_bytes = 0
    if isinstance(stage, int):
        value_bytes = 2 if half else 4
    if _has_master_weights(stage, half):
        master_bytes = MASTER_WEIGHT_BYTES

    optimizer_total = optimizer + master_bytes * counts.trainable
    return State(
        weights=value_bytes * counts.total / (processes if zero_stage >= 3 else 1),
        gradients=value_bytes * counts.trainable / (processes if zero_stage >= 2 else 1),
        optimizer=optimizer_total / (processes if zero_stage >= 1 else 1),
    )


def _has_master_weights(stage: Stage, half: bool) -> bool:
    """Whether an engine updates a copy of the weights; ZeRO always has its partition in float32."""
    return isinstance(stage, int) and (half or stage > 0)


def estimate_activations(
    shape: Shape, *, half: bool, copies: bool, casts: bool = True
) -> Activations:
    """Computes the memory that a micro-batch takes for the backward pass.

    Args:
        half: Whether matrix products are computed in half precision.
        copies: Whether autocast copies float32 weights to half precision and keeps the copies.
        casts: Whether autocast chooses the precision of each operation; otherwise, as under
            DeepSpeed, every operation computes in the precision of the weights.

    Raises:
        Exception: Of any type, if the model cannot be called with ids alone and without values.
    """
    # Which tensors the attention keeps depends on the device.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight_dtype = torch.bfloat16 if half and not copies else torch.float32
    with FakeTensorMode():
        state = _make_fake_state(shape.body, weight_dtype, device)
        ids = torch.zeros(shape.rows, shape.length, dtype=torch.long, device=device)
        saved_tensors = _SavedTensors(state.values())
        with (
            saved_tensors.record(shape.layers),
            torch.autocast(device, torch.bfloat16, enabled=half and casts),
        ):
            hidden = functional_call(shape.body, state, (), {"input_ids": ids}).last_hidden_state

    value_bytes = 2 if half else 4
    tokens = shape.rows * shape.length
    width = hidden.shape[-1]
    hidden_bytes = tokens * width * value_bytes  # the input of the output embedding
    layer_bytes = sum(saved_tensors.layer_bytes)
    other_bytes = saved_tensors.total_bytes - layer_bytes + hidden_bytes
    recomputed_bytes = saved_tensors.count_bytes_with_recomputation(shape.recompute_every)
    return Activations(
        layers=float(layer_bytes + other_bytes),
        layers_recomputed=float(recomputed_bytes + other_bytes),
        loss=_estimate_loss_bytes(tokens, shape.outputs, width, shape.loss_chunk, value_bytes),
    )


def _make_fake_state(
    body: nn.Module, weight_dtype: torch.dtype, device: str
) -> dict[str, torch.Tensor]:
    """Returns a fake tensor for each buffer and parameter of `body`, by name.

    Floating-point ones have `weight_dtype`. Call it in `FakeTensorMode`.
    """

    def make_fake(tensor: torch.Tensor) -> torch.Tensor:
        dtype = weight_dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=dtype, device=device)

    state = {name: make_fake(buffer) for name, buffer in body.named_buffers()}
    for name, parameter in body.named_parameters():
        state[name] = make_fake(parameter).requires_grad_(parameter.requires_grad)
    return state


class _SavedTensors:
    """Counts the bytes that autograd saves in a forward pass, except the weights themselves.

    Attributes:
        input_bytes: Size of the input of each layer.
        layer_bytes: Bytes saved within each layer.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        self.input_bytes: list[int] = []
        self.layer_bytes: list[int] = []
        self._weights = {StorageWeakRef(tensor.untyped_storage()) for tensor in weights}
        self._bytes_by_storage: dict[StorageWeakRef, int] = {}
        self._bytes_before_layer = 0

    @property
    def total_bytes(self) -> int:
        return sum(self._bytes_by_storage.values())

    @contextmanager
    def record(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Records the forward pass in this context."""
        with ExitStack() as hooks:
            for layer in layers:
                hooks.callback(layer.register_forward_pre_hook(self._enter_layer).remove)
                hooks.callback(layer.register_forward_hook(self._leave_layer).remove)
            hooks.enter_context(saved_tensors_hooks(self._add_tensor, lambda tensor: tensor))
            yield

    def _enter_layer(self, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.input_bytes.append(arguments[0].nbytes)
        self._bytes_before_layer = self.total_bytes

    def _leave_layer(self, *_: object) -> None:
        self.layer_bytes.append(self.total_bytes - self._bytes_before_layer)

    def _add_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)  # while it exists, the address is not reused
        if reference not in self._weights:
            self._bytes_by_storage[reference] = storage.nbytes()
        return tensor

    def count_bytes_with_recomputation(self, recompute_every: int) -> int:
        """Counts the bytes of the layers if every n-th of them, from the first, is recomputed."""
        kept_bytes = 0
        for number, layer_bytes in enumerate(self.layer_bytes):
            is_recomputed = number % recompute_every == 0
            kept_bytes += self.input_bytes[number] if is_recomputed else layer_bytes
        # One layer at a time is recomputed as a whole.
        return kept_bytes + max(self.layer_bytes, default=0)


def _estimate_loss_bytes(
    tokens: int, outputs: int, hidden: int, chunk: int, value_bytes: int
) -> float:
    """Returns the bytes of the logits, in half precision and in float32, and of their gradients.

    Args:
        outputs: Number of logits per token.
        hidden: Width of the hidden states.
        chunk: Maximum number of logits in memory at once; 0: no limit.
        value_bytes: Bytes of a value in the precision of matrix products.
    """
    half_bytes = value_bytes if value_bytes < 4 else 0  # of a copy in half precision
    if chunk and chunk < tokens * outputs:
        # The gradient overwrites the logits of a chunk; the head's gradient is a sum over chunks.
        head_gradient = 4 * outputs * hidden
        return float(chunk * (4 + half_bytes) + head_gradient)
    # Logits, log-probabilities and gradient in float32; logits and gradient in half precision.
    return float(tokens * outputs * (4 + 4 + 4 + 2 * half_bytes))


def measure_state(model: nn.Module, optimizer: Any) -> State:
    """Measures the weights, gradients and optimizer state that this rank holds."""
    optimizer_values: list[Any] = []
    while hasattr(optimizer, "optimizer"):  # Accelerate's and DeepSpeed's wrappers
        # ZeRO-3 passes its float32 weights to torch's optimizer only during a step.
        optimizer_values += getattr(optimizer, "fp32_partitioned_groups_flat", [])
        optimizer = optimizer.optimizer

    parameters = list(model.parameters())
    # This rank's partition under ZeRO-3 and FSDP2
    shards = [_make_local(getattr(parameter, "ds_tensor", parameter)) for parameter in parameters]
    weight_addresses = {shard.untyped_storage().data_ptr() for shard in shards}

    for values in optimizer.state.values():
        optimizer_values += values.values()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            address = _make_local(parameter).untyped_storage().data_ptr()
            if address not in weight_addresses:  # a copy of the weights in float32
                optimizer_values.append(parameter)

    return State(
        weights=_count_bytes(shards),
        gradients=_count_bytes(parameter.grad for parameter in parameters),
        optimizer=_count_bytes(optimizer_values),
    )


def _count_bytes(values: Iterable[Any]) -> float:
    """Returns the bytes that the tensors among some values take on this rank."""
    return float(
        sum(_make_local(value).nbytes for value in values if isinstance(value, torch.Tensor))
    )


def _make_local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Precision(NamedTuple):
    """How an engine computes: arguments of `estimate_activations`."""

    copies: bool
    casts: bool


class Forecast:
    """The counted part of an estimate.

    Attributes:
        step_tokens: Positions in the global batch of a step.
        stage: The engine of this launch.
        states: Weights, gradients and optimizer states by engine.

    Args:
        saves_frozen: Whether checkpoints hold the frozen weights, if there are any.
    """

    def __init__(
        self, run: CheckedRun, shape: Shape, device: Device | None, *, saves_frozen: bool
    ) -> None:
        config = run.config
        self._config = config
        self._shape = shape
        self._device = device
        self._saves_frozen = saves_frozen
        self._half = config.mixed_precision != "no"
        self._flops_per_token = compute_flops_per_token(shape.model)

        self._processes = run.launch.num_processes
        plan = replace(BatchPlan.of(config, self._processes), micro_batch=shape.rows)
        self.step_tokens = plan.global_batch * shape.length

        zero = (run.deepspeed_config or {}).get("zero_optimization", {})
        self.stage: Stage = zero.get("stage") if run.launch.fsdp is None else "FSDP2"

        entry = OPTIMIZERS[config.optimizer_type]
        optimizer_size = count_optimizer_bytes(shape.model, entry)
        is_supported: dict[Stage, bool] = {None: True, "FSDP2": entry.takes_shards}
        stages = [stage for stage in STAGES if is_supported.get(stage, entry.by_element)]
        self._counts = count_parameters(shape.model)
        self.states = {
            stage: count_state(
                self._counts, optimizer_size, stage, self._count_shards(stage), self._half
            )
            for stage in stages
        }

        self._activations: dict[Stage, Activations] = {}
        self._counting_error = ""  # why activations cannot be counted
        try:
            self._count_activations(stages)
        except Exception as error:  # any error of a model that needs more than ids, or values
            self._activations.clear()
            self._counting_error = f"{type(error).__name__}: {error}".splitlines()[0]

    @property
    def held(self) -> float:
        """Bytes of weights, gradients and optimizer on each device in this launch."""
        return self.states[self.stage].total

    @property
    def needed(self) -> float | None:
        """Bytes on each device in this launch; None if the activations cannot be counted."""
        activations = self._activations.get(self.stage)
        if activations is None:
            return None
        recomputes = getattr(self._config, "gradient_checkpointing", False)  # a key of some tasks
        return self.held + activations.total(recomputes)

    def _count_shards(self, stage: Stage) -> int:
        """Returns the number of processes that share one copy of the state."""
        shards = self._config.fsdp_shard_processes if stage == "FSDP2" else None
        return self._processes if shards is None else shards

    def _count_activations(self, stages: list[Stage]) -> None:
        """Estimates the activations of each engine."""
        activations_by_precision: dict[_Precision, Activations] = {}
        for stage in stages:
            precision = self._choose_precision(stage)
            if precision not in activations_by_precision:
                activations_by_precision[precision] = self._estimate_with_precision(
                    self._shape, precision
                )
            self._activations[stage] = activations_by_precision[precision]

    def _estimate_with_precision(self, shape: Shape, precision: _Precision) -> Activations:
        """Estimates activations with the kernels of this device, or of `estimate_card`."""
        follows_card = self._device is not None and not torch.cuda.is_available()
        with follow_cuda_rules() if follows_card else nullcontext():
            return estimate_activations(
                shape, half=self._half, copies=precision.copies, casts=precision.casts
            )

    def _choose_precision(self, stage: Stage) -> _Precision:
        """Returns how an engine computes in half precision.

        Plain data parallel keeps float32 weights and computes in autocast, FSDP2 gathers weights in
        half precision and computes in autocast, and DeepSpeed converts the model.
        """
        if not self._half:
            return _Precision(copies=True, casts=True)  # no difference
        return _Precision(copies=stage is None, casts=not isinstance(stage, int))

    def describe_fit(self) -> list[str]:
        """Describes whether this launch fits on the planned device, and alternatives that do."""
        if self._device is None or not self._activations:
            return []

        live = self._activations[self.stage]
        larger_shape = replace(self._shape, rows=self._shape.rows + 1)
        larger = self._estimate_with_precision(larger_shape, self._choose_precision(self.stage))
        plain, recomputing = (
            Need(
                self._shape.rows,
                self.held + live.total(recomputes_layers),
                per_row=larger.total(recomputes_layers) - live.total(recomputes_layers),
            )
            for recomputes_layers in (False, True)
        )
        # None: the task does not have it
        recomputes: bool | None = getattr(self._config, "gradient_checkpointing", None)

        other_engines = {
            file: self.states[stage].total + self._activations[stage].total(bool(recomputes))
            for stage, file in LAUNCH_FILES.items()
            if stage in self.states and stage != self.stage
        }
        return describe_fit(
            self._device,
            plain,
            None if recomputes is None else recomputing,
            other_engines,
            recomputes=bool(recomputes),
            rows_key=self._config.micro_batch_key,
        )

    def describe_speed(self) -> list[str]:
        """Describes the time of a step on an absent card, for some utilizations."""
        if self._device is None or self._device.is_here or self._device.peak_flops is None:
            return []
        flops = self._flops_per_token * self.step_tokens
        peak = self._device.peak_flops * self._processes
        times = [f"{flops / peak / share:.3f} s at {share:g}" for share in ASSUMED_MFU]
        return [f"a step by an assumed MFU (nothing was measured): {', '.join(times)}"]

    def describe_staging(self) -> list[str]:
        """Describes the main memory that asynchronous saves take."""
        if not self._config.async_save:
            return []

        held = self.states[self.stage]
        counts = self._counts
        trained_bytes = held.weights * counts.trainable / counts.total
        copied_bytes = held.optimizer
        if not _has_master_weights(self.stage, self._half):
            copied_bytes += trained_bytes
        if self._saves_frozen:
            copied_bytes += held.weights - trained_bytes

        weights = "weights" if self._saves_frozen else "trained weights"
        ranks = "rank 0" if self.stage in (None, 0) else "each rank"
        lines = [
            f"async_save keeps a copy of {weights} and optimizer in main memory: "
            f"{format_size(copied_bytes)} on {ranks}"
        ]
        gathers_weights = self.stage in (3, "FSDP2")
        if gathers_weights and not self._saves_frozen and self._config.export_steps != 0:
            frozen_bytes = self._trained_value_bytes * (counts.total - counts.trainable)
            lines.append(
                f"rank 0 also keeps the frozen weights there, for model/ in checkpoints: "
                f"{format_size(frozen_bytes)} (export_steps=0 does without)"
            )
        return lines

    @property
    def _trained_value_bytes(self) -> int:
        """Bytes of a weight that the model computes with."""
        return 2 if self._half and isinstance(self.stage, int) else 4

    def describe_export(self) -> list[str]:
        """Describes the size of `model/`, and the main memory of a conversion to `export_dtype`."""
        trained_bytes = self._trained_value_bytes
        export_dtype = self._config.export_dtype
        if export_dtype is None:
            size = format_size(trained_bytes * self._counts.total)
            return [f"model/ takes {size} on the disk, as trained (export_dtype)"]

        weight_bytes = getattr(torch, export_dtype).itemsize
        size = format_size(weight_bytes * self._counts.total)
        line = f"model/ takes {size} on the disk, in {export_dtype} (export_dtype)"
        if weight_bytes != trained_bytes:
            line += f"; while it is written, rank 0 also keeps {size} in main memory"
        return [line]

    def show(self, console: Console) -> None:
        """Prints the forecast, with the formulas."""
        counts = self._counts
        numbers = (
            f"  {counts.total:,}, of which trainable {counts.trainable:,}, "
            f"in embeddings {counts.embeddings:,}"
        )
        console.print(Text.assemble("\n", ("parameters", "bold"), numbers))
        console.print(self._make_memory_table())

        lines = (
            *self.describe_fit(),
            *self.describe_staging(),
            *self.describe_export(),
            *self.describe_speed(),
        )
        for line in lines:
            console.print(f"  {line}")
        for line in self._list_notes():
            console.print(f"  {line}", style="dim")

    def _make_memory_table(self) -> Table:
        precision = self._config.mixed_precision
        title = f"\nMemory of each device ({self._processes}), precision {precision}; * this launch"
        table = Table(
            title=title, box=None, pad_edge=False, collapse_padding=True, title_justify="left"
        )
        columns = ("", "weights", "gradients", "optimizer", "activations", "in all", "recomputing")
        for column in columns:
            table.add_column(column, justify="right" if column else "left", no_wrap=not column)

        names: dict[Stage, str] = {None: "data parallel", "FSDP2": "FSDP2"}
        for stage, held in self.states.items():
            cells = [
                format_size(held.weights),
                format_size(held.gradients),
                format_size(held.optimizer),
            ]
            live = self._activations.get(stage)
            if live is None:
                cells += ["–", f"{format_size(held.total)} + activations", "–"]
            else:
                plain = live.total(recomputing=False)
                recomputed = live.total(recomputing=True)
                cells += [
                    format_size(plain),
                    format_size(held.total + plain),
                    format_size(held.total + recomputed),
                ]

            is_this_launch = stage == self.stage
            mark = "*" if is_this_launch else " "
            name = names.get(stage, f"ZeRO-{stage}")
            table.add_row(f"{mark} {name}", *cells, style="bold" if is_this_launch else "")
        return table

    def _list_notes(self) -> list[str]:
        value_bytes = 2 if self._half else 4
        master_weights = " and, under DeepSpeed, of float32 weights" if self._half else ""
        notes = [
            f"weights, gradients: {value_bytes} bytes a parameter (without DeepSpeed 4 each); "
            f"optimizer: 4 bytes for each value of the state of {self._config.optimizer_type}"
            f"{master_weights}; "
            "ZeRO-1 to 3 divide optimizer, gradients, weights in turn, FSDP2 all of them",
            "not counted: buckets of DeepSpeed, float32 gradients during a step, layers that "
            "ZeRO-3 and FSDP2 gather, the mask of packed documents in sdpa (with the heads that it "
            "makes it repeat), offload",
        ]
        if not self._activations:
            return [*notes, f"activations: not counted, because of {self._counting_error}"]

        live = self._activations[self.stage]
        shape = self._shape
        copies = (
            ", in data parallel runs with half-precision copies of weights" if self._half else ""
        )
        return [
            *notes,
            f"activations: what a forward pass of {shape.rows} x {shape.length} tokens keeps for "
            f"the backward pass, with the kernels of {self._name_kernel_device()}{copies}; of "
            f"these, logits {format_size(live.loss)} (loss_chunk_logits)",
            "recomputing (gradient_checkpointing=true): the input of each layer, and one layer "
            "whole",
        ]

    def _name_kernel_device(self) -> str:
        return "this device" if self._device is None or self._device.is_here else "CUDA"


@dataclass(frozen=True)
class Probe:
    """The measured part of an estimate.

    Attributes:
        max_steps: Steps of the whole run.
        steps: Measured steps, after `warm_up`.
        metrics: Result of `Throughput.metrics`.
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


def _forecast(run: CheckedRun, task: Task, shape: Shape, device: Device | None) -> Forecast:
    """Counts what a run of a task needs."""
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
        forecast = None if shape is None else _forecast(run, task, shape, find_device(None))
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
    forecast = _forecast(run, task, shape, device) if is_main else None
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
