"""How much memory a model takes in training, computed before it is built.

Weights, gradients and optimizer states follow from the number of parameters P, the ZeRO stage and
the number of processes N (Rajbhandari et al. 2020, section 3); activations from the shape of the
model and the micro-batch (after Korthikanti et al. 2022, section 4). All sizes in bytes.

DeepSpeed's estimators (`estimate_zero2_model_states_mem_needs`, `estimate_zero3_...`) are not used:
they return a single number, and only for stages 2 and 3 with all weights trained in half precision.
A run also needs stages 0 and 1, no DeepSpeed, float32 and frozen weights, and the share of each of
the three. The sizes here are compared with those of real optimizers. Only DeepSpeed's estimators
count the float32 copy of the gradients that a step makes in stage 2 (4 bytes per parameter / N),
the largest gathered layer in stage 3, and the host memory for offload in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.config.optimizers import OptimizerEntry
from bsmeta.training.optimizers import matrices_in_layers
from bsmeta.training.task import Shape

Stage = int | Literal["FSDP2"] | None
"""An engine by what it partitions: the ZeRO stage, FSDP2, or None: nothing (data parallel)."""

MASTER = 4
"""Bytes per parameter: float32 weights to update, where the model's have a lower precision."""


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

    numbers: int  # values that are kept per token and layer
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


def activations(planned: Shape, half: bool) -> Activations | None:
    """Computes what a micro-batch keeps for the backward pass; None for a model of unknown shape.

    Per token and layer, with the hidden size h, the size k of the keys (and of the values) and the
    size f of the MLP, these are 8 h + 2 k + n f values: twice the input of each norm and of each
    matrix product over h; queries, keys, values; the output of attention; and the intermediate
    values of the MLP, where n is 2 with a fused activation function, 4 with a gated MLP, and 5
    with transformers' own tanh form of GELU. Eager attention keeps 3 values for every score. With
    recomputation, only the input of each layer (h) is kept, and one whole layer while it is
    recomputed. 3 h are kept after the layers.
    """
    model = planned.model
    shape: Any = getattr(model, "config", None)
    hidden, layers = (getattr(shape, key, None) for key in ("hidden_size", "num_hidden_layers"))
    heads = getattr(shape, "num_attention_heads", None)
    if not hidden or not layers or not heads:
        return None
    keys = hidden * (getattr(shape, "num_key_value_heads", None) or heads) // heads
    inner = getattr(shape, "intermediate_size", None) or getattr(shape, "n_inner", None)
    functions = {"gelu_new": 5, "gelu_fast": 5, "gelu_pytorch_tanh": 2}
    gated = any(name.endswith("gate_proj") for name, _ in model.named_modules())
    function = getattr(shape, "activation_function", None) or getattr(shape, "hidden_act", None)
    factor = 4 if gated else functions.get(str(function), 2)
    numbers = 8 * hidden + 2 * keys + factor * (inner or 4 * hidden)
    if planned.keeps_scores:
        numbers += 3 * heads * planned.length
    size = 2 if half else 4
    tokens = planned.rows * planned.length
    layer, rest = size * numbers * tokens, 3 * size * hidden * tokens
    kept = -(-layers // planned.recompute_every)
    recomputed = kept * size * hidden * tokens + (layers - kept) * layer + layer
    return Activations(
        numbers=numbers,
        layers=float(layers * layer + rest),
        layers_recomputed=float(recomputed + rest),
        loss=_loss(tokens, int(shape.vocab_size), hidden, planned.loss_chunk, size),
    )


def _loss(tokens: int, vocabulary: int, hidden: int, chunk: int, size: int) -> float:
    """Bytes of the logits, in the precision of the matmuls and in float32, and their gradients."""
    half = size if size < 4 else 0
    if chunk and chunk < tokens * vocabulary:  # the gradient takes the logits' place
        return float(chunk * (4 + half) + 4 * vocabulary * hidden)
    return float(tokens * vocabulary * (4 + 4 + 4 + 2 * half))


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
