"""Changes to the layers of a model: recomputation, compilation, and Liger's kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from bsmeta.config.errors import ConfigurationError


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a transformers model, in order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: nn.Module, every: int) -> None:
    """Keeps no activations inside every n-th layer; the backward pass recomputes them.

    Raises:
        ConfigurationError: If the model cannot do it in some layers only.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    layers = layers_of(model)
    if every > 1 and not layers:
        raise ConfigurationError(
            f"gradient_checkpointing_every={every}: {type(model).__name__} recomputes all of its "
            "layers or none; expected 1"
        )
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0  # type: ignore[assignment]


def compile_layers(model: nn.Module) -> None:
    """Compiles each layer for the shape that it is called with.

    All layers share the compiled code, so that it takes seconds and not minutes; the rest of the
    model (embedding, output layer and loss) does not benefit from compilation.

    Raises:
        ConfigurationError: If the model's layers cannot be found.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigurationError(
            f"torch_compile: the layers of {type(model).__name__} are not known; expected false"
        )
    for layer in layers:
        layer.compile(dynamic=False)


def as_written(compiled: bool) -> AbstractContextManager[Any]:
    """A context in which compiled layers run uncompiled, for batches of other shapes."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


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
    kind = model.config.model_type  # type: ignore[union-attr]
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ConfigurationError(
            f"liger_kernel: Liger has no kernels for {kind}; expected liger_kernel=false"
        )
    # The loss is computed here in any case, not by Liger.
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
