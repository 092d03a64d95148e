"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685).

They are added by peft, and merged for export: the weight W of an adapted layer stays unchanged, and
the layer computes with W + s·B·A. Only A (rank × inputs) and B (outputs × rank, 0 at first) are
trained; s is alpha / rank.

The experts of a mixture share one tensor (experts × outputs × inputs, or transposed). peft gives
such a tensor one A and one B with a block for each expert, and wraps its layer once for each of its
tensors: the state dict then has the layer's weights under `base_layer.base_layer.`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.log_once import log_once

ADAPTER = "default"
"""Name of the adapter in peft."""

ALL_LINEAR = "all-linear"  # peft's name for all linear layers except the output layer
LINEAR = (nn.Linear, Conv1D)
_BASE_LAYER_PARTS = re.compile(r"(\.base_layer)+(?=\.|$)")

logger = logging.getLogger(__name__)


def add_adapters(model: PreTrainedModel, keys: LoraKeys, *, train_embeddings: bool) -> None:
    """Freezes a model, and adds adapters to its linear layers.

    Logs experts that remain without adapters because peft does not support their layer.

    Args:
        train_embeddings: Whether to also train the embeddings and the output layer, which new
            tokens require because all of them begin with the same weights.

    Raises:
        ConfigurationError: If the model has no layer of `lora.targets`, peft cannot adapt one of
            them, or the adapters could not be merged.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear_names = list_linear_layers(model)
    original_shapes = _read_weight_shapes(model)
    adapters = LoraConfig(
        r=keys.rank,
        lora_alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        lora_dropout=keys.dropout,
        target_modules=keys.targets or ALL_LINEAR,
    )
    try:
        inject_adapter_in_model(adapters, model, ADAPTER)
    except ValueError as error:
        raise _make_target_error(keys, str(error), linear_names) from error

    fault = _find_adapter_fault(model, original_shapes)
    if fault is not None:
        raise _make_target_error(keys, fault, linear_names)

    if not keys.targets:
        _log_unadapted_stacks(model)
    if train_embeddings:
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.requires_grad_(True)


def list_linear_layers(model: PreTrainedModel) -> list[str]:
    """Lists the names of linear layers as `lora.targets` expects them, sorted.

    Only the last part of a name counts, such as `q_proj`. The output layer is not listed.
    """
    output_layer = model.get_output_embeddings()
    names = set()
    for path, layer in model.named_modules():
        if type(layer) in LINEAR and layer is not output_layer:
            names.add(path.rpartition(".")[2])
    return sorted(names)


def _make_target_error(
    keys: LoraKeys, reason: str, linear_names: Collection[str]
) -> ConfigurationError:
    """Builds the error for targets that peft cannot adapt; it suggests all other linear layers."""
    usable = [name for name in linear_names if f"'{name}'" not in reason]
    fix = f"lora.targets=[{','.join(usable)}]"
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


def _read_weight_shapes(model: nn.Module, *, merge: bool = False) -> dict[str, torch.Size]:
    """Returns the shapes of a model's weights by name.

    Args:
        merge: Whether to return the shapes after the adapters are merged.
    """
    weights = {
        name: torch.empty(_read_full_shape(weight), dtype=weight.dtype, device="meta")
        for name, weight in model.state_dict(keep_vars=True).items()
    }
    if merge:
        weights = merge_adapters(model, weights)
    return {name: weight.shape for name, weight in weights.items()}


def _read_full_shape(weight: torch.Tensor) -> torch.Size:
    """Returns the shape of a weight, even if ZeRO-3 has partitioned it already."""
    shape: torch.Size = getattr(weight, "ds_shape", weight.shape)
    return shape


def _find_adapter_fault(model: nn.Module, original_shapes: Mapping[str, Any]) -> str | None:
    """Describes why adapted layers cannot be called or merged; None if they can.

    Args:
        original_shapes: Shapes of the model's weights before adapters were added, by name.
    """
    uncallable = next(_find_uncallable_layers(model), None)
    if uncallable is not None:
        name, layer = uncallable
        return f"peft cannot adapt '{name}', a {type(layer).__name__} with a result of its own"

    try:
        merged_shapes = _read_weight_shapes(model, merge=True)
    except KeyError as error:
        return f"the adapters of {error} cannot be merged"
    if merged_shapes != original_shapes:
        return "merging the adapters changes the names or shapes of the model's weights"
    return None


def _find_uncallable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the names and base layers of adapted layers that only work without their adapters.

    The router of Phi-3.5-MoE is a linear layer that returns a tuple.
    """
    for adapted in _iterate_adapted_weights(model):
        base = adapted.layer.get_base_layer()
        if type(base) in LINEAR or not isinstance(base, LINEAR) or hasattr(base.weight, "ds_shape"):
            continue

        inputs = torch.zeros(1, adapted.layer.in_features, device=base.weight.device)
        if _can_call(base, inputs) and not _can_call(adapted.layer, inputs):
            yield adapted.layer_name.rpartition(".")[2], base


@torch.no_grad()
def _can_call(layer: nn.Module, inputs: torch.Tensor) -> bool:
    try:
        layer(inputs)
    except Exception:  # any error of a class
        return False
    return True


def _log_unadapted_stacks(model: nn.Module) -> None:
    """Logs stacks of matrices, such as experts, that have no adapters, and their share."""
    adapted_names = {adapted.weight_name for adapted in _iterate_adapted_weights(model)}
    sizes: dict[str, int] = {}
    unadapted: list[str] = []
    for name, weight in model.named_parameters():
        shape = _read_full_shape(weight)
        sizes[name] = shape.numel()
        if _is_stack(shape) and name not in adapted_names and "conv" not in name:
            unadapted.append(name)
    if not unadapted:
        return

    last_names = sorted({name.rpartition(".")[2] for name in unadapted})
    log_once(
        logger,
        logging.WARNING,
        f"lora: no adapters on {', '.join(last_names)}, which are not linear layers (but experts "
        f"in one tensor, for example): they stay frozen "
        f"({sum(sizes[name] for name in unadapted):,} of {sum(sizes.values()):,} parameters)",
    )


def _is_stack(shape: torch.Size) -> bool:
    return len(shape) == 3 and min(shape) > 1


class _AdaptedWeight(NamedTuple):
    """A weight with an adapter.

    Attributes:
        weight_name: Its name in the state dict.
        layer_name: Name of the adapted layer.
        layer: The layer of peft.
    """

    weight_name: str
    layer_name: str
    layer: Any


def _iterate_adapted_weights(model: nn.Module) -> Iterator[_AdaptedWeight]:
    """Yields each weight of a model that has an adapter."""
    for layer_name, layer in model.named_modules():
        scales = getattr(layer, "scaling", None)
        if not isinstance(scales, Mapping) or ADAPTER not in scales:
            continue

        base_name = f"{layer_name}.base_layer"
        base = layer.base_layer
        while hasattr(base, "base_layer"):  # of a layer with several adapted tensors
            base_name = f"{base_name}.base_layer"
            base = base.base_layer
        parameter_name = getattr(layer, "parameter_name", "weight")
        yield _AdaptedWeight(f"{base_name}.{parameter_name}", layer_name, layer)


def strip_adapter_parts(name: str) -> str:
    """Returns the name that a weight or layer of an adapted model has in the original model."""
    return _BASE_LAYER_PARTS.sub("", name)


def merge_adapters(
    model: nn.Module, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Merges the adapters of a model into its weights.

    Args:
        model: A model with the adapters of `add_adapters`, or without any.
        weights: The full state dict of the model; not modified.

    Returns:
        The state dict of an equivalent model without adapters.
    """
    merged = dict(weights)
    for weight_name, layer_name, layer in _iterate_adapted_weights(model):
        a = merged.pop(f"{layer_name}.lora_A.{ADAPTER}.weight").float()
        b = merged.pop(f"{layer_name}.lora_B.{ADAPTER}.weight").float()
        weight = merged[weight_name]
        change = layer.scaling[ADAPTER] * _multiply_factors(a, b, weight, layer)
        merged[weight_name] = (weight.float() + change).to(weight.dtype)
    return {strip_adapter_parts(name): weight for name, weight in merged.items()}


def _multiply_factors(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, layer: Any
) -> torch.Tensor:
    """Computes B·A in the shape of the weight.

    Args:
        a: [rank, inputs]; for n experts [n·rank, inputs], expert by expert.
        b: [outputs, rank]; for n experts [outputs, rank·n], the experts of a rank side by side.
    """
    if weight.ndim < 3:
        change = b @ a
        return change.T if layer.fan_in_fan_out else change

    num_experts = len(weight)
    a_by_expert = a.unflatten(0, (num_experts, -1))  # [experts, rank, inputs]
    b_by_expert = b.unflatten(1, (-1, num_experts))  # [outputs, rank, experts]
    is_transposed = getattr(layer.get_base_layer(), "is_transposed", False)
    result_axes = "eio" if is_transposed else "eoi"
    return torch.einsum(f"ore,eri->{result_axes}", b_by_expert, a_by_expert)
