"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685).

They are added by peft, and merged for export: the weight W of an adapted layer stays as it is, and
the layer computes with W + s·B·A, where only A (rank × inputs) and B (outputs × rank, 0 at first)
are trained, and s is alpha / rank.

The experts of a mixture are one tensor for all of them (experts × outputs × inputs, or transposed).
peft gives such a tensor one A and one B with a block for each expert, and wraps its layer once for
each of its tensors: the state dict then has the layer's weights under `base_layer.base_layer.`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.log_once import log_once

ADAPTER = "default"
ALL_LINEAR = "all-linear"  # peft's name for all linear layers but the output layer
LINEAR = (nn.Linear, Conv1D)
_WRAPPED = re.compile(r"(\.base_layer)+(?=\.|$)")

logger = logging.getLogger(__name__)


def add_adapters(model: PreTrainedModel, keys: LoraKeys, *, train_embeddings: bool) -> None:
    """Freezes a model, and gives its linear layers adapters.

    Experts that get none, because peft does not know their layer, are logged.

    Args:
        train_embeddings: Also trains the embeddings, and the output layer: those of new tokens are
            random.

    Raises:
        ConfigurationError: If the model has no layer of `lora.targets`, peft cannot adapt one of
            them, or the adapters could not be merged.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear, plain = linear_layers(model), _described(model)
    adapters = LoraConfig(
        r=keys.rank,
        lora_alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        lora_dropout=keys.dropout,
        target_modules=keys.targets or ALL_LINEAR,
    )
    try:
        inject_adapter_in_model(adapters, model, ADAPTER)
    except ValueError as error:
        raise _refusal(keys, str(error), linear) from error
    for name, layer in _uncallable_layers(model):
        reason = f"peft cannot adapt '{name}', a {type(layer).__name__} with a result of its own"
        raise _refusal(keys, reason, linear)
    try:
        is_restored = _described(model, merge=True) == plain
    except KeyError as error:
        raise _refusal(keys, f"the adapters of {error} cannot be merged", linear) from error
    if not is_restored:
        raise _refusal(keys, "merged adapters leave other weights than the model's", linear)
    if not keys.targets:
        _log_stacks_without(model)
    if train_embeddings:
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.requires_grad_(True)


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The names of linear layers but the output, as `lora.targets` takes them, in order."""
    output = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, layer in model.named_modules()
            if type(layer) in LINEAR and layer is not output
        }
    )


def _refusal(keys: LoraKeys, reason: str, linear: Collection[str]) -> ConfigurationError:
    """The error for targets that peft cannot adapt, with those that it can."""
    working = [name for name in linear if f"'{name}'" not in reason]
    fix = f"lora.targets=[{','.join(working)}]"
    if "lora_dropout" in reason:
        reason = (
            "the weights of its experts are one tensor, whose adapters work without dropout only "
            f"(lora.dropout={keys.dropout:g})"
        )
        fix = f"lora.dropout=0, or {fix}"
    return ConfigurationError(
        f"lora.targets={keys.targets}: {reason}. Expected names of layers that adapters can be "
        f"added to. Fix: {fix}",
        ["lora.targets"],
    )


def _described(model: nn.Module, *, merge: bool = False) -> dict[str, torch.Size]:
    """The names and shapes of a model's weights (merged: without adapters); copies no weight."""
    weights = {
        name: torch.empty(_whole_shape(weight), dtype=weight.dtype, device="meta")
        for name, weight in model.state_dict(keep_vars=True).items()
    }
    return {
        name: weight.shape
        for name, weight in (merged(model, weights) if merge else weights).items()
    }


def _whole_shape(weight: torch.Tensor) -> torch.Size:
    """The shape of a weight, also of one that ZeRO-3 has partitioned already."""
    shape: torch.Size = getattr(weight, "ds_shape", weight.shape)
    return shape


def _uncallable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields adapted layers that can be called without their adapters only.

    The router of Phi-3.5-MoE is a linear layer that returns a tuple.
    """
    for _, name, layer in _adapted_weights(model):
        base = layer.get_base_layer()
        if type(base) in LINEAR or not isinstance(base, LINEAR) or hasattr(base.weight, "ds_shape"):
            continue
        inputs = torch.zeros(1, layer.in_features, device=base.weight.device)
        if _can_call(base, inputs) and not _can_call(layer, inputs):
            yield name.rpartition(".")[2], base


@torch.no_grad()
def _can_call(layer: nn.Module, inputs: torch.Tensor) -> bool:
    try:
        layer(inputs)
    except Exception:  # whatever a class raises
        return False
    return True


def _log_stacks_without(model: nn.Module) -> None:
    """Logs stacks of matrices, such as experts, that stay as they are, and their share."""
    adapted = {name for name, _, _ in _adapted_weights(model)}
    sizes = {name: _whole_shape(weight).numel() for name, weight in model.named_parameters()}
    left = {
        name: sizes[name]
        for name, weight in model.named_parameters()
        if _is_stack(_whole_shape(weight)) and name not in adapted and "conv" not in name
    }
    if left:
        names = sorted({name.rpartition(".")[2] for name in left})
        log_once(
            logger,
            logging.WARNING,
            f"lora: no adapters on {', '.join(names)}, which are no linear layers (but experts in "
            f"one tensor, for example): they stay as they are ({sum(left.values()):,} of "
            f"{sum(sizes.values()):,} parameters)",
        )


def _is_stack(shape: torch.Size) -> bool:
    return len(shape) == 3 and min(shape) > 1


def _adapted_weights(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yields each weight with an adapter: its name in the state dict, and the adapted layer's."""
    for name, layer in model.named_modules():
        scales = getattr(layer, "scaling", None)
        if not isinstance(scales, Mapping) or ADAPTER not in scales:
            continue
        weight, inner = f"{name}.base_layer", layer.base_layer
        while hasattr(inner, "base_layer"):  # of a layer with several adapted tensors
            weight, inner = f"{weight}.base_layer", inner.base_layer
        yield f"{weight}.{getattr(layer, 'parameter_name', 'weight')}", name, layer


def plain_name(name: str) -> str:
    """The name that a weight or a layer has without adapters."""
    return _WRAPPED.sub("", name)


def merged(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a model without adapters that computes the same.

    Args:
        model: With the adapters of `add_adapters`, or without any.
        weights: Its full state dict, which is left as it is.
    """
    found = dict(weights)
    for weight, name, layer in _adapted_weights(model):
        low, high = (found.pop(f"{name}.lora_{part}.{ADAPTER}.weight") for part in "AB")
        change = layer.scaling[ADAPTER] * _product(low.float(), high.float(), found[weight], layer)
        found[weight] = (found[weight].float() + change).to(found[weight].dtype)
    return {plain_name(name): weight for name, weight in found.items()}


def _product(
    low: torch.Tensor, high: torch.Tensor, weight: torch.Tensor, layer: Any
) -> torch.Tensor:
    """B·A in the shape of the weight.

    Args:
        low: [rank, inputs]; for n experts [n·rank, inputs], expert by expert.
        high: [outputs, rank]; for n experts [outputs, rank·n], the experts of a rank side by side.
    """
    if weight.ndim < 3:
        change = high @ low
        return change.T if layer.fan_in_fan_out else change
    blocks = low.unflatten(0, (len(weight), -1))
    is_transposed = getattr(layer.get_base_layer(), "is_transposed", False)
    form = "eio" if is_transposed else "eoi"
    return torch.einsum(f"ore,eri->{form}", high.unflatten(1, (-1, len(weight))), blocks)
