"""Memory of the tensors that autograd saves for the backward pass of a micro-batch.

They are recorded in a forward pass on torch's fake tensors, which have shapes and no values:
formulas (Korthikanti et al. 2022, section 4) do not know which norms compute in float32, or that
autocast copies the input of each matrix product and all weights. All sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from bsmeta.training.task import Shape


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


def estimate_activations(
    shape: Shape, *, half: bool, copies: bool, casts: bool = True
) -> Activations:
    """Counts the bytes that a micro-batch takes for the backward pass.

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
