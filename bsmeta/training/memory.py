"""How much memory a model takes in training, computed before it is built.

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

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

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
