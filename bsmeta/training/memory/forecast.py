"""The counted part of an estimate: parameters, memory by engine, and whether a launch fits.

Counted on the meta device, without loading weights; nothing is run on a real device.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.schema import OPTIMIZERS
from bsmeta.config.steps import BatchPlan
from bsmeta.core.terminal import Console
from bsmeta.training.memory.activations import Activations, estimate_activations
from bsmeta.training.memory.cuda_rules import follow_cuda_rules
from bsmeta.training.memory.device import format_size
from bsmeta.training.memory.device_fit import Device, Need, describe_fit
from bsmeta.training.memory.states import (
    STAGES,
    Stage,
    count_optimizer_bytes,
    count_parameters,
    count_state,
    has_master_weights,
)
from bsmeta.training.task import Shape, compute_flops_per_token

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
        plain = self._compute_need(live, larger, recomputing=False)
        recomputing = self._compute_need(live, larger, recomputing=True)
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

    def _compute_need(self, live: Activations, larger: Activations, *, recomputing: bool) -> Need:
        """Computes the need of this launch from the activations of a micro-batch.

        Args:
            larger: The activations with one more row.
        """
        activation_bytes = live.total(recomputing)
        return Need(
            self._shape.rows,
            self.held + activation_bytes,
            per_row=larger.total(recomputing) - activation_bytes,
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
        if not has_master_weights(self.stage, self._half):
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
        """Makes the table of memory, with a row for each engine."""
        precision = self._config.mixed_precision
        title = f"\nMemory of each device ({self._processes}), precision {precision}; * this launch"
        table = Table(
            title=title, box=None, pad_edge=False, collapse_padding=True, title_justify="left"
        )
        columns = ("", "weights", "gradients", "optimizer", "activations", "in all", "recomputing")
        for column in columns:
            table.add_column(column, justify="right" if column else "left", no_wrap=not column)

        names: dict[Stage, str] = {None: "data parallel", "FSDP2": "FSDP2"}
        for stage in self.states:
            is_this_launch = stage == self.stage
            mark = "*" if is_this_launch else " "
            name = names.get(stage, f"ZeRO-{stage}")
            cells = self._format_memory_cells(stage)
            table.add_row(f"{mark} {name}", *cells, style="bold" if is_this_launch else "")
        return table

    def _format_memory_cells(self, stage: Stage) -> list[str]:
        """Formats the bytes of an engine, in the order of the table's columns."""
        held = self.states[stage]
        cells = [
            format_size(held.weights),
            format_size(held.gradients),
            format_size(held.optimizer),
        ]
        live = self._activations.get(stage)
        if live is None:
            return [*cells, "–", f"{format_size(held.total)} + activations", "–"]

        plain = live.total(recomputing=False)
        recomputed = live.total(recomputing=True)
        return [
            *cells,
            format_size(plain),
            format_size(held.total + plain),
            format_size(held.total + recomputed),
        ]

    def _list_notes(self) -> list[str]:
        """Lists the formulas, and the memory that is not counted."""
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
        """Names the device whose kernels decide which tensors a forward pass keeps."""
        return "this device" if self._device is None or self._device.is_here else "CUDA"
