"""Checks how a model attends to packed documents, and makes it faster or smaller in memory.

Nothing here changes a model's results. Documents packed into one sequence must not attend to each
other, under any implementation of attention (`models.attention`); `check_isolation` tests for this.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import report_opaque_work
from bsmeta.models.attention import EAGER, SDPA
from bsmeta.models.shapes import count_layers

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the loss of each token but the first, float [b, L - 1], for ids and positions [b, L]."""


@torch.no_grad()
def check_isolation(
    compute_losses: LossFunction, like: torch.Tensor, vocabulary: int, implementation: str
) -> None:
    """Checks that changing a document does not change the losses of the one packed after it.

    Args:
        like: A batch of ids [b, L]; only its shape and device matter. All ranks have the same
            shape.
        vocabulary: Number of token ids to draw from.
        implementation: Name of the attention implementation.

    Raises:
        ConfigurationError: If packed documents attend to each other.
    """
    rows, length = like.shape
    half = length // 2
    if half < 2:
        return

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (2, rows, length), generator=generator)
    ids[1, :, half:] = ids[0, :, half:]
    positions = torch.cat([torch.arange(half), torch.arange(length - half)]).expand(rows, -1)
    positions = positions.to(like.device)
    losses = compute_losses(ids[0].to(like.device), positions)
    changed_losses = compute_losses(ids[1].to(like.device), positions)

    # As tight as for causality: BLOOM's random weights change losses of 8.3 by less than 0.001.
    if not torch.allclose(losses[:, half:], changed_losses[:, half:], rtol=0, atol=1e-4):
        other_fix = "" if implementation in (SDPA, EAGER) else "attn_implementation=sdpa, or "
        raise ConfigurationError(
            f"attn_implementation: under {implementation} the documents packed into a sequence see "
            "each other with this model, which does not restart its attention where position_ids "
            f"restart (as OPT and BERT); expected a model that does. Fix: {other_fix}"
            "data_config.packing=pad, or data_config.cross_document_attention=true"
        )


@torch.no_grad()
def check_positions(compute_losses: LossFunction, like: torch.Tensor, vocabulary: int) -> None:
    """Checks that a document has the same losses at any position in a packed sequence.

    Call it in float32 only: in other dtypes, rounding in attention depends on the position. The
    model must have passed `check_isolation`.

    Args:
        like: A batch of ids [b, L]; only its shape and device matter.
        vocabulary: Number of token ids to draw from.

    Raises:
        ConfigurationError: If the model ignores position_ids.
    """
    rows, length = like.shape
    half = length // 2
    if half < 2:
        return

    generator = torch.Generator().manual_seed(0)
    documents = torch.randint(vocabulary, (2, rows, half), generator=generator).to(like.device)
    padding = documents.new_zeros(rows, length - 2 * half)
    positions = torch.arange(half, device=like.device).repeat(3)[:length].expand(rows, -1)

    # The first document, once before and once after the second.
    original = compute_losses(torch.cat([*documents, padding], 1), positions)
    swapped = compute_losses(torch.cat([*documents.flip(0), padding], 1), positions)
    leading = original[:, : half - 1]
    following = swapped[:, half : 2 * half - 1]
    if not torch.allclose(leading, following, rtol=0, atol=1e-3):
        raise ConfigurationError(
            "model_name (or model_config_file): this model counts the positions of a packed "
            "document from the start of its row and ignores position_ids (as Pegasus); expected a "
            "model that takes position_ids. Fix: data_config.packing=pad, or "
            "data_config.cross_document_attention=true"
        )


@torch.no_grad()
def check_causality(compute_losses: LossFunction, like: torch.Tensor, vocabulary: int) -> None:
    """Checks that changing the second half of a sequence does not change the losses before it.

    Args:
        like: A batch of ids [b, L]; only its shape and device matter.
        vocabulary: Number of token ids to draw from.

    Raises:
        ConfigurationError: If tokens attend to later tokens.
    """
    rows, length = like.shape
    half = length // 2
    if half < 2:
        return

    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    changed_ids = ids.clone()
    changed_ids[:, half:] = (changed_ids[:, half:] + 1) % vocabulary
    positions = torch.arange(length).expand(rows, -1).to(like.device)
    losses = compute_losses(ids.to(like.device), positions)
    changed_losses = compute_losses(changed_ids.to(like.device), positions)

    # The first changed token has the loss at half - 1. Earlier losses are equal to the last digit;
    # the tolerance is tight because small random weights cause only small differences.
    if not torch.allclose(losses[:, : half - 1], changed_losses[:, : half - 1], rtol=0, atol=1e-4):
        raise ConfigurationError(
            "model_name (or model_config_file): tokens of this model see those after them, which "
            "they are to predict (as BERT's do without is_decoder); expected a causal language "
            "model. Fix: name another model"
        )


def list_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated layers of a transformers model, in order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def list_encoder_layers(encoder: PreTrainedModel) -> list[nn.Module]:
    """Returns the layers of an encoder, in order; none if they share weights, as in ALBERT."""
    layers = list_layers(encoder)
    if layers:
        return layers

    # Layers of MPNet and some other models are not instances of `GradientCheckpointingLayer`.
    count = count_layers(encoder.config)
    for module in encoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def recompute_activations(model: nn.Module, every: int) -> None:
    """Enables activation checkpointing in every `every`-th layer, starting with the first.

    The activations inside these layers are not kept; the backward pass computes them again.

    Raises:
        ConfigurationError: If `every` is above 1 and the model's layers cannot be found.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    layers = list_layers(model)
    if every > 1 and not layers:
        raise ConfigurationError(
            f"gradient_checkpointing_every={every}: {type(model).__name__} recomputes all of its "
            "layers or none; expected 1"
        )
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0  # type: ignore[assignment]


def compile_layers(model: nn.Module) -> None:
    """Compiles each layer for the shape of its inputs.

    All layers share the compiled code, so compilation takes seconds and not minutes; embedding,
    output layer and loss do not benefit from it. Only the forward pass is compiled, not the hooks
    of a layer, in which FSDP2 gathers its weights beforehand.

    Raises:
        ConfigurationError: If the model's layers cannot be found.
    """
    layers = list_layers(model)
    if not layers:
        raise ConfigurationError(
            f"torch_compile: the layers of {type(model).__name__} are not known; expected false"
        )
    _report_compilation()
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=False)


@cache
def _report_compilation() -> None:
    """Makes compilations count as progress for the watchdog, in whichever step they happen."""
    from torch._dynamo.callback import callback_handler

    running = ExitStack()  # torch calls both callbacks in pairs
    callback_handler.register_start_callback(lambda _: running.enter_context(report_opaque_work()))
    callback_handler.register_end_callback(lambda _: running.close())


def run_uncompiled(*, is_compiled: bool) -> AbstractContextManager[Any]:
    """Returns a context in which compiled layers run uncompiled, for batches of other shapes.

    Args:
        is_compiled: Whether the model has compiled layers.
    """
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()


def use_liger(model: nn.Module) -> None:
    """Patches the layers with Liger's kernels for norms, rotary positions and MLP.

    Raises:
        ConfigurationError: If Liger is not installed, or does not support the model type.
    """
    try:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"liger_kernel: Liger cannot be imported ({error}); pip install liger-kernel, or "
            "liger_kernel=false"
        ) from error

    model_type = model.config.model_type  # type: ignore[union-attr]
    if model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ConfigurationError(
            f"liger_kernel: Liger has no kernels for {model_type}; expected liger_kernel=false"
        )

    # The loss is always computed by this package.
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
