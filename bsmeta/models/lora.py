"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685).

They are added by peft, and merged for export: the weight W of an adapted layer stays as it is, and
the layer computes with W + s·B·A, where only A (rank × inputs) and B (outputs × rank, 0 at first)
are trained, and s is alpha / rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError

ADAPTER = "default"
ALL_LINEAR = "all-linear"  # peft's name for all linear layers but the output layer


def add_adapters(model: PreTrainedModel, keys: LoraKeys, *, train_embeddings: bool) -> None:
    """Freezes a model, and gives its linear layers adapters.

    Args:
        train_embeddings: Also trains the embeddings, and the output layer: those of new tokens are
            random.

    Raises:
        ConfigurationError: If the model has no layer of `lora.targets`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    adapters = LoraConfig(
        r=keys.rank,
        lora_alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        lora_dropout=keys.dropout,
        target_modules=keys.targets or ALL_LINEAR,
    )
    try:
        inject_adapter_in_model(adapters, model, ADAPTER)
    except ValueError as error:
        raise ConfigurationError(
            f"lora.targets={keys.targets}: {error}", ["lora.targets"]
        ) from error
    if train_embeddings:
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.requires_grad_(True)


def merged(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a model without adapters that computes the same.

    Args:
        model: With the adapters of `add_adapters`, or without any.
        weights: Its full state dict, which is left as it is.
    """
    found = dict(weights)
    for name, layer in model.named_modules():
        scales = getattr(layer, "scaling", None)
        if not isinstance(scales, Mapping) or ADAPTER not in scales:
            continue
        low, high = (found.pop(f"{name}.lora_{part}.{ADAPTER}.weight") for part in "AB")
        change = scales[ADAPTER] * (high.float() @ low.float())
        weight = found.pop(f"{name}.base_layer.weight")
        found[f"{name}.weight"] = (
            weight.float() + (change.T if layer.fan_in_fan_out else change)
        ).to(weight.dtype)
        if (bias := found.pop(f"{name}.base_layer.bias", None)) is not None:
            found[f"{name}.bias"] = bias
    return found
