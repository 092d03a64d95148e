"""`estimate=true`: the resources that a run will need, before it is started.

Counted on the meta device (without loading weights): parameters, and memory by engine.
Measured over a few real steps on this device: tokens per second, MFU, memory, time to finish. The
run folder is not touched, and nothing from these steps is kept.

Weights, gradients and optimizer states follow from the number of parameters P, the ZeRO stage and
the number of processes N (Rajbhandari et al. 2020, section 3). What autograd keeps for the backward
pass is read off a forward pass on torch's fake tensors, which have shapes and no values: formulas
(Korthikanti et al. 2022, section 4) do not know which norms compute in float32, or that autocast
copies the input of each matrix product and all weights. All sizes in bytes.

DeepSpeed's estimators (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_...`) are not used:
they return a single number, and only for stages 2 and 3 with all weights trained in half precision.
A run also needs stages 0 and 1, no DeepSpeed, float32 and frozen weights, and the share of each of
the three. Theirs is larger by what exists only during a step: in stage 2 the float32 copy of the
gradients (4 bytes per parameter / N), in stage 3 half of that and the largest gathered layer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from bsmeta.config.checks import CheckedRun
from bsmeta.config.schema import OPTIMIZERS, OptimizerEntry, RunConfig
from bsmeta.config.steps import BatchPlan, Schedule
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.process import StopRequest
from bsmeta.training.distributed import Processes, seed_everything, start
from bsmeta.training.engines import matrices_in_layers
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import HasEpochs, HasShape, Shape, Task
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

Stage = int | Literal["FSDP2"] | None
"""An engine by what it partitions: the ZeRO stage, FSDP2, or None: nothing (data parallel)."""

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


def count(model: nn.Module) -> Counts:
    """Counts parameters; the model may be on the meta device."""
    parameters = list(model.parameters())
    embedded = {
        id(parameter): parameter.numel()
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return Counts(
        total=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in trainable),
        embeddings=sum(embedded.values()),
    )


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
    if stage is None:
        return State(4.0 * counts.total, 4.0 * counts.trainable, float(optimizer))
    if stage == "FSDP2":
        whole = state(counts, optimizer, None, processes, half)
        parts = (whole.weights, whole.gradients, whole.optimizer)
        return State(*(part / processes for part in parts))
    size = 2 if half else 4
    master = MASTER if half or stage > 0 else 0  # ZeRO always keeps its partition in float32
    weights, gradients = float(size * counts.total), float(size * counts.trainable)
    updated = float(optimizer + master * counts.trainable)
    return State(
        weights=weights / (processes if stage >= 3 else 1),
        gradients=gradients / (processes if stage >= 2 else 1),
        optimizer=updated / (processes if stage >= 1 else 1),
    )


def activations(planned: Shape, *, half: bool, copies: bool) -> Activations:
    """Computes what a micro-batch keeps for the backward pass.

    Args:
        half: Whether matrix products are computed in half precision.
        copies: Whether autocast makes their weights so, of float32 ones, and keeps the copies.

    Raises:
        Exception: Of any kind, if the model cannot be called with ids alone and without values.
    """
    # Which tensors the attention keeps depends on the device.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if half and not copies else torch.float32

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=kind, device=device)

    body = planned.body
    with FakeTensorMode(), ExitStack() as stack:
        state = {name: fake(value) for name, value in body.named_buffers()}
        for name, value in body.named_parameters():
            state[name] = fake(value).requires_grad_(value.requires_grad)
        ids = torch.zeros(planned.rows, planned.length, dtype=torch.long, device=device)
        stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=half))
        kept = stack.enter_context(_Kept(state.values(), planned.layers))
        hidden = functional_call(body, state, (), {"input_ids": ids}).last_hidden_state
        size = 2 if half else 4
        tokens, width = planned.rows * planned.length, hidden.shape[-1]
        rest = kept.total - sum(kept.layers) + tokens * width * size
    again = [number % planned.recompute_every == 0 for number in range(len(kept.layers))]
    layers = zip(kept.inputs, kept.layers, again, strict=True)
    recomputed = sum(taken if is_again else whole for taken, whole, is_again in layers)
    return Activations(
        layers=float(sum(kept.layers) + rest),
        layers_recomputed=float(recomputed + max(kept.layers, default=0) + rest),
        loss=_loss(tokens, planned.outputs, width, planned.loss_chunk, size),
    )


class _Kept(AbstractContextManager["_Kept"]):
    """What autograd keeps of the forward passes in this context, but for `own`.

    Attributes:
        total: Bytes.
        layers: Those that each layer adds.
        inputs: Those of its input.
    """

    def __init__(self, own: Iterable[torch.Tensor], layers: list[nn.Module]) -> None:
        self._own = {StorageWeakRef(tensor.untyped_storage()) for tensor in own}
        self._sizes: dict[StorageWeakRef, int] = {}
        self._modules = layers
        self._stack = ExitStack()
        self.layers: list[int] = []
        self.inputs: list[int] = []

    @property
    def total(self) -> int:
        return sum(self._sizes.values())

    def __enter__(self) -> _Kept:
        hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._stack.enter_context(hooks)
        for module in self._modules:
            before = module.register_forward_pre_hook(self._enter_layer)
            after = module.register_forward_hook(self._leave_layer)
            self._stack.callback(before.remove)
            self._stack.callback(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)  # its address stays taken while this exists
        if reference not in self._own:
            self._sizes[reference] = storage.nbytes()
        return tensor

    def _enter_layer(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inputs.append(inputs[0].nbytes)
        self.layers.append(-self.total)

    def _leave_layer(self, *_: object) -> None:
        self.layers[-1] += self.total


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
    return State(
        weights=float(sum(map(_bytes, shards))),
        gradients=float(
            sum(_bytes(parameter.grad) for parameter in own if parameter.grad is not None)
        ),
        optimizer=float(
            sum(_bytes(parameter) for parameter in kept if isinstance(parameter, torch.Tensor))
        ),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return _local(tensor).numel() * tensor.element_size()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
