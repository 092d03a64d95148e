"""Memory of weights, gradients and optimizer states on one device, counted or measured.

It follows from the number of parameters P, the ZeRO stage and the number of processes N
(Rajbhandari et al. 2020, section 3). All sizes are in bytes.

DeepSpeed's estimators (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_...`) return a
single number, and only for stages 2 and 3 with all weights trained in half precision. Their number
includes tensors that exist only during a step: in stage 2 the float32 copy of the gradients (4
bytes per parameter / N), in stage 3 half of it and the largest gathered layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.config.schema import OptimizerEntry
from bsmeta.training.optimization import find_layer_matrices

Stage = int | Literal["FSDP2"] | None
"""An engine, named for its partitioning: the ZeRO stage, FSDP2, or None: plain data parallel."""

STAGES: tuple[Stage, ...] = (None, 0, 1, 2, 3, "FSDP2")

MASTER_WEIGHT_BYTES = 4
"""Bytes per parameter of the float32 weights to update, if the model has a lower precision."""


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
    counts: ParameterCounts, optimizer_bytes: int, stage: Stage, processes: int, half: bool
) -> State:
    """Computes the bytes of weights, gradients and optimizer states on one device.

    Args:
        optimizer_bytes: Size of the optimizer's state (`count_optimizer_bytes`).
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
    if has_master_weights(stage, half):
        master_bytes = MASTER_WEIGHT_BYTES

    optimizer_total = optimizer_bytes + master_bytes * counts.trainable
    return State(
        weights=value_bytes * counts.total / (processes if zero_stage >= 3 else 1),
        gradients=value_bytes * counts.trainable / (processes if zero_stage >= 2 else 1),
        optimizer=optimizer_total / (processes if zero_stage >= 1 else 1),
    )


def has_master_weights(stage: Stage, half: bool) -> bool:
    """Whether an engine updates a copy of the weights; ZeRO always has its partition in float32."""
    return isinstance(stage, int) and (half or stage > 0)


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
    """Returns this rank's shard of a DTensor, or another tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
