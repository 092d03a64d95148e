"""Cross-entropy in chunks of rows, so that the logits of a micro-batch never exist at once.

With a vocabulary of 50,257, the logits of 8,192 tokens take 1.6 GB in float32, and their gradient
takes the same again. `ChunkedCrossEntropy` computes the gradients of hidden states and output layer
chunk by chunk in the forward pass, while the chunk's logits exist (as in Liger, Hsu et al. 2024,
section 3.2), so nothing is computed twice; the backward pass only scales them. `ChunkedLoss` makes
a model do this inside its own forward pass, in place of its output layer. It therefore works under
every engine: hooks on the model and on the output layer (gathering its weight under ZeRO-3,
averaging its gradient under DDP) run as usual, and the weight may be tied to the embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.rounding import round_up_to_multiple

IGNORED_TARGET = -100
"""A target that is excluded from the loss."""

CLASS_STEP = 64
"""The number of classes is padded to a multiple of this: 128 bytes of bf16."""

ROW_STEP = 128
"""The rows of a chunk are a multiple of this: the tile of a matmul on tensor cores."""


class ChunkedCrossEntropy(torch.autograd.Function):
    """The autograd function of `compute_chunked_cross_entropy`, which documents its arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        rows: int,
        with_gradient: bool,
    ) -> torch.Tensor:
        device = hidden.device.type
        dtype = hidden.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)  # as for any other matmul
        cast_hidden = hidden.to(dtype)
        matrix = pad_matrix(weight, dtype)
        classes = len(weight)

        losses = torch.empty(len(targets) + 1, dtype=torch.float32, device=hidden.device)
        gradients = _Gradients(hidden, weight, bias, len(matrix)) if with_gradient else None
        with torch.autocast(device, enabled=False):
            for start in range(0, len(targets), rows):
                chunk = slice(start, min(start + rows, len(targets)))
                logits = _compute_logits(cast_hidden[chunk], matrix, bias, classes)

                is_counted = targets[chunk] != IGNORED_TARGET
                index = targets[chunk].clamp(min=0).unsqueeze(1)
                log_normalizer = logits.logsumexp(1)
                target_logits = logits.gather(1, index).squeeze(1)
                losses[chunk] = (log_normalizer - target_logits) * is_counted

                if gradients is not None:
                    # The gradient of the loss over the logits: softmax minus one-hot targets. It is
                    # computed in place of the logits.
                    slope = logits.sub_(log_normalizer.unsqueeze(1)).exp_()
                    slope.scatter_add_(1, index, -torch.ones_like(slope[:, :1]))
                    slope.mul_(is_counted.unsqueeze(1))
                    gradients.add(chunk, slope, cast_hidden[chunk], matrix)

        losses[-1] = losses[:-1].sum()
        ctx.gradients = gradients
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, output_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = ctx.gradients
        ctx.gradients = None  # frees their memory
        return (*gradients.scale(output_gradient[-1]), None, None, None)


def _compute_logits(
    hidden: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, classes: int
) -> torch.Tensor:
    """Computes logits in float32, -inf for the classes that only pad the matrix."""
    logits = functional.linear(hidden, matrix).float()
    if bias is not None:
        logits[:, :classes] += bias
    logits[:, classes:] = -torch.inf
    return logits


def pad_classes(classes: int) -> int:
    """Rounds the number of classes up to a multiple of `CLASS_STEP`."""
    return round_up_to_multiple(classes, CLASS_STEP)


def pad_matrix(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Casts a weight [V, d], and appends rows of zeros up to `pad_classes(V)`.

    Tensor cores need aligned rows: with 50,257 classes, the three matmuls of a chunk are expected
    to take 1.5 to 3 times as long as with 50,304 (calculated). A cast copies the weight anyway.
    """
    classes, size = weight.shape
    width = pad_classes(classes)
    if width == classes:
        return weight.to(dtype)
    matrix = weight.new_zeros((width, size), dtype=dtype)
    matrix[:classes] = weight
    return matrix


class _Gradients:
    """Gradients of hidden states, weight and bias, accumulated chunk by chunk.

    Weight and bias are accumulated in float32, regardless of the dtype of the matmuls.

    Args:
        width: Number of classes, padding included.
    """

    def __init__(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, width: int
    ) -> None:
        self._dtype = weight.dtype
        self._classes = len(weight)
        self._hidden = torch.empty_like(hidden)
        self._weight = self._allocate_sum(weight, width)
        self._bias = self._allocate_sum(bias, width)

    @staticmethod
    def _allocate_sum(parameter: torch.Tensor | None, width: int) -> torch.Tensor | None:
        """Returns zeros for the sum of a parameter's gradients; None if it is not trained."""
        if parameter is None or not parameter.requires_grad:
            return None
        return parameter.new_zeros((width, *parameter.shape[1:]), dtype=torch.float32)

    def add(
        self, chunk: slice, slope: torch.Tensor, hidden: torch.Tensor, matrix: torch.Tensor
    ) -> None:
        """Adds the gradients of a chunk of rows.

        Args:
            slope: Gradient of the loss over the chunk's logits, float32 [rows, width].
            hidden: Hidden states of the chunk, [rows, d].
            matrix: The padded weight, [width, d].
        """
        if self._bias is not None:
            self._bias += slope.sum(0)

        cast_slope = slope.to(hidden.dtype)
        self._hidden[chunk] = cast_slope @ matrix
        if self._weight is not None:
            if hidden.dtype == torch.float32:
                self._weight.addmm_(cast_slope.t(), hidden)
            else:
                self._weight += cast_slope.t() @ hidden

    def scale(self, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Multiplies the gradients by a factor, in place; may be called only once.

        Returns:
            The gradients of hidden states, weight and bias; None if weight or bias is not trained.
        """
        return (
            self._hidden.mul_(factor),
            self._scale_sum(self._weight, factor),
            self._scale_sum(self._bias, factor),
        )

    def _scale_sum(self, total: torch.Tensor | None, factor: torch.Tensor) -> torch.Tensor | None:
        if total is None:
            return None
        return total[: self._classes].mul_(factor).to(self._dtype)


def compute_chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """Computes the cross-entropy of n targets under a linear layer with d inputs and V outputs.

    Args:
        hidden: [n, d].
        weight: [V, d].
        bias: [V], or None.
        targets: int64 [n], each a class, or `IGNORED_TARGET`.
        rows: Number of targets in a chunk, whose logits exist at once.

    Returns:
        float32 [n + 1]: the losses (0 for ignored targets), then their sum. Gradients flow only
        through the sum.
    """
    with_gradient = torch.is_grad_enabled()
    return ChunkedCrossEntropy.apply(hidden, weight, bias, targets, rows, with_gradient)


def compute_chunk_rows(max_logits: int, classes: int) -> int:
    """Computes the rows of a chunk with at most `max_logits` logits, padding included.

    The result is a multiple of `ROW_STEP`, so that matmuls fill their tiles, unless fewer rows fit.
    """
    rows = max(1, max_logits // pad_classes(classes))
    return rows if rows < ROW_STEP else rows - rows % ROW_STEP


class ChunkedLoss:
    """Runs a causal language model that returns losses in place of logits.

    Called directly, the model still returns logits.

    Args:
        model: The model; its output layer is changed in place, its weights and their names are not.
        max_logits: Maximum number of logits that exist at once.
    """

    def __init__(self, model: nn.Module, max_logits: int) -> None:
        head = model.get_output_embeddings()  # type: ignore[operator]
        self._head = head
        classes = int(head.out_features)
        self._max_unchunked_rows = max(1, max_logits // classes)
        self._chunk_rows = compute_chunk_rows(max_logits, classes)
        self._model_class = type(model).__name__
        self._targets: torch.Tensor | None = None  # of the forward pass in progress
        self._head_output: torch.Tensor | None = None  # kept until it has been checked
        self._is_checked = False
        head.forward = self._forward

    @staticmethod
    def can_wrap(model: nn.Module) -> bool:
        """Whether the model's output layer is a linear layer."""
        get_head = getattr(model, "get_output_embeddings", None)
        return callable(get_head) and type(get_head()) is nn.Linear

    def exceeds_limit(self, rows: int) -> bool:
        """Whether the logits of `rows` targets exceed the maximum number of logits."""
        return rows > self._max_unchunked_rows

    def __call__(
        self, model: nn.Module, targets: torch.Tensor, **inputs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the losses of a batch in a forward pass of the model.

        Args:
            model: The model, or an engine's wrapper of it.
            targets: int64 [b, L]: the next token at each position, or `IGNORED_TARGET`.
            inputs: Arguments of the model.

        Returns:
            The sum of losses (a scalar with a gradient), and each loss (float32 [b, L], without a
            gradient).

        Raises:
            ConfigurationError: If the model does not return the output of its output layer.
        """
        self._targets = targets
        try:
            losses = model(**inputs).logits
        finally:
            self._targets = None

        head_output = self._head_output
        self._head_output = None
        if not self._is_checked:  # only once, because it waits for the device
            self._is_checked = True
            self._refuse_changed_output(losses, head_output)

        # The last value is the sum of the others, see `ChunkedCrossEntropy`.
        flat = losses.view(-1)
        return flat[-1], flat[:-1].detach().view(targets.shape)

    def _refuse_changed_output(
        self, losses: torch.Tensor, head_output: torch.Tensor | None
    ) -> None:
        """Refuses a model that returns something other than the output of its output layer."""
        is_unchanged = (
            head_output is not None
            and losses.shape == head_output.shape
            and torch.equal(losses, head_output)
        )
        if not is_unchanged:
            raise ConfigurationError(
                f"loss_chunk_logits: {self._model_class} scales or cuts its logits after the "
                "output layer, so their loss cannot be computed in chunks; expected "
                "loss_chunk_logits=0 for this model"
            )

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Replaces the forward of the output layer; hooks have already gathered its weight."""
        weight = self._head.weight
        bias = self._head.bias
        if self._targets is None:
            return functional.linear(hidden, weight, bias)
        losses = compute_chunked_cross_entropy(
            hidden.flatten(0, -2), weight, bias, self._targets.flatten(), self._chunk_rows
        )
        if not self._is_checked:
            self._head_output = losses.detach()
        return losses
