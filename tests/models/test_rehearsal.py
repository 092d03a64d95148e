"""The rehearsal of a model: weights without a gradient, its export, and the loss of its class."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.lora import add_adapters, merge_adapters
from bsmeta.models.rehearsal import (
    can_try_export,
    check_export,
    check_loss,
    freeze_weights,
    list_unreached_weights,
    summarize_weights,
    trace_reached_weights,
)
from tests.models.architectures import ARCHITECTURES, SMALL

SHAPES = {architecture.name: architecture for architecture in ARCHITECTURES}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(SHAPES[name].shape())
    return model


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("llama", []),
        ("mixtral", []),
        ("jetmoe", []),  # its forward pass depends on values
        ("gemma3", ["model.vision_tower", "model.multi_modal_projector"]),
        (
            "bart",
            [
                "model.decoder.layers.*.encoder_attn",
                "model.decoder.layers.*.encoder_attn_layer_norm",
            ],
        ),
    ],
)
def test_weights_without_a_gradient_are_named(name: str, parts: list[str]) -> None:
    model = build(name)
    state, before = torch.get_rng_state(), [weight.clone() for weight in model.parameters()]
    unreached = list_unreached_weights(model, trace_reached_weights(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, model.parameters()))
    assert summarize_weights(model, unreached) == parts
    model(input_ids=torch.arange(20).unsqueeze(0), use_cache=False).logits.sum().backward()
    assert unreached == [
        name
        for name, weight in model.named_parameters()
        if weight.grad is None and weight.requires_grad
    ]


def test_a_model_without_weights_has_the_same_parts() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SHAPES["gemma3"].shape())
        without_values = AutoModelForCausalLM.from_config(SHAPES["jetmoe"].shape())
    reached = trace_reached_weights(model)
    assert reached == trace_reached_weights(build("gemma3"))
    unreached = list_unreached_weights(model, reached)
    assert summarize_weights(model, unreached) == [
        "model.vision_tower",
        "model.multi_modal_projector",
    ]

    assert trace_reached_weights(without_values) is None
    assert list_unreached_weights(without_values, None) == []


def test_frozen_parts_are_named_and_their_adapters_are_frozen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = build("gemma3")
    adapt = partial(add_adapters, keys=LoraKeys(rank=2), train_embeddings=False)
    adapt(model)
    unreached = list_unreached_weights(model, trace_reached_weights(model, adapt))
    freeze_weights(model, unreached, "model_name=gemma")
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained
    assert all(".lora_" in name and "language_model" in name for name in trained)
    assert "model_name=gemma: model.vision_tower get no gradient from text alone" in caplog.text


def test_a_model_without_trainable_weights_is_refused() -> None:
    model = build("gemma3")
    keys = LoraKeys(rank=2, targets=["fc1", "fc2"])  # of the vision tower
    adapt = partial(add_adapters, keys=keys, train_embeddings=False)
    adapt(model)
    unreached = list_unreached_weights(model, trace_reached_weights(model, adapt))
    with pytest.raises(ConfigurationError, match="nothing of the model would be trained"):
        freeze_weights(model, unreached, "model_name=gemma")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("llama", []),
        ("mixtral", []),
        ("gemma3", ["model.vision_tower"]),
        ("jamba", ["model.layers.*.mamba.dt_proj"]),  # whose kernel reads the weight alone
    ],
)
def test_adapters_without_a_gradient_are_named(name: str, parts: list[str]) -> None:
    model = build(name)
    adapt = partial(add_adapters, keys=LoraKeys(rank=2), train_embeddings=False)
    adapt(model)
    unreached = list_unreached_weights(model, trace_reached_weights(model, adapt))
    assert summarize_weights(model, unreached) == parts


def write(model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    model.save_pretrained(folder, state_dict=merge_adapters(model, weights))  # type: ignore[operator]


def write_zeros(model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    write(model, {**weights, "model.norm.weight": weights["model.norm.weight"] * 2}, folder)


def write_nothing(model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    raise KeyError("model.layers.0.mlp.experts.base_layer.weight")


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3"])
def test_an_export_with_the_same_outputs_passes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(name)
    add_adapters(model, LoraKeys(rank=2), train_embeddings=False)
    assert can_try_export(model)
    check_export(model, write, "lora.targets=[]")
    assert "wholly zero" not in caplog.text


@pytest.mark.parametrize(
    ("export", "message"),
    [
        (write_zeros, "model_name=llama: the exported model would not compute what was trained"),
        (write_nothing, r"could not be exported at the first save \(KeyError\('model.layers.0"),
    ],
)
def test_an_export_with_other_outputs_is_refused(export: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_export(build("llama"), export, "model_name=llama")


def test_a_model_without_its_weights_is_not_exported() -> None:
    with torch.device("meta"):
        assert not can_try_export(AutoModelForCausalLM.from_config(SHAPES["llama"].shape()))


class WithPenalty(LlamaForCausalLM):
    """Adds the mean square of its logits to its loss, as some classes add a term."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        if outputs.loss is not None:
            outputs.loss = outputs.loss + outputs.logits.square().mean()
        return outputs


@pytest.mark.parametrize("name", ["llama", "gemma2", "rwkv", "bart"])  # BART shifts no labels
def test_a_class_with_the_plain_cross_entropy_passes(name: str) -> None:
    model = build(name).eval()
    ids = torch.randint(4096, (2, 16), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    check_loss(model, {"input_ids": ids, "use_cache": False}, loss, "model_name=x")


def test_an_additional_loss_term_of_a_class_is_refused() -> None:
    model = WithPenalty(LlamaConfig(**SMALL)).eval()
    ids = torch.randint(4096, (2, 16), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=ids).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    with pytest.raises(ConfigurationError, match=r"model_name=x: on random tokens, the loss of"):
        check_loss(model, {"input_ids": ids}, loss, "model_name=x")
