"""Fused activation functions: the same function, fewer tensors kept, and nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config
from transformers.activations import ACT2FN, NewGELUActivation

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.models.activations import fuse_activations
from bsmeta.tasks.causal_lm.task import CausalLanguageModel

WRITTEN_OUT = (
    "gelu_new",
    "gelu_fast",
    "gelu_accurate",
    "gelu_python",
    "gelu_python_tanh",
)
"""Names of transformers' activations that torch has one kernel for."""
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def fuse(module: nn.Module) -> nn.Module:
    parent = nn.Sequential(module)
    fuse_activations(parent)
    return parent[0]


def count_kept_elements(function: nn.Module, inputs: torch.Tensor) -> int:
    """Counts the elements of tensors that a forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(inputs * 1)
    return sum(kept.values())


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_values_and_gradients_equal_those_of_transformers(name: str) -> None:
    """In float64, where the functions differ only in the digits of their constants."""
    original = ACT2FN[name]
    inputs = torch.linspace(-12, 12, 20_001, dtype=torch.float64, requires_grad=True)
    expected = original(inputs)
    (gradient,) = torch.autograd.grad(expected.sum(), inputs)

    values = fuse(original)(inputs)

    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
    (fused_gradient,) = torch.autograd.grad(values.sum(), inputs)
    torch.testing.assert_close(fused_gradient, gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_only_the_input_is_kept(name: str) -> None:
    original = ACT2FN[name]
    inputs = torch.randn(1000, requires_grad=True)
    assert count_kept_elements(original, inputs) >= 2000
    assert count_kept_elements(fuse(original), inputs) == 1000


@pytest.mark.parametrize("name", sorted(set(ACT2FN) - {"prelu", "xielu"}))
def test_every_activation_of_transformers_computes_the_same_values(name: str) -> None:
    original = ACT2FN[name]
    inputs = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(fuse(original)(inputs), original(inputs), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["quick_gelu", "relu2", "laplace", "gelu_10", "silu", "mish"])
def test_functions_without_another_form_in_torch_are_unchanged(name: str) -> None:
    original = ACT2FN[name]
    assert fuse(original) is original


@pytest.mark.parametrize(
    "shape",
    [
        GPT2Config(vocab_size=96, **GPT2),
        BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=2),
    ],
    ids=["gpt2", "bloom"],
)
def test_a_model_has_the_same_losses_configuration_and_weights(shape: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape)
    ids = torch.randint(0, 96, (2, 33))
    model.eval()
    expected = model(input_ids=ids, labels=ids).loss.item()
    names, config = list(model.state_dict()), model.config.to_dict()

    fuse_activations(model)

    assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(expected, abs=1e-6)
    assert list(model.state_dict()) == names
    assert model.config.to_dict() == config
    assert sum(isinstance(module, nn.GELU) for module in model.modules()) == 2


def test_a_run_trains_the_fused_form_and_exports_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.json"
    shape = GPT2Config(vocab_size=4096, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **GPT2)
    file.write_text(json.dumps(shape.to_dict()))
    length = "data_config.metadata_config.max_seq_len=64"
    config = replace(
        compose_command_line(CausalLMConfig, "demo", [length]),
        model_config_file=str(file),
        out_dir=str(tmp_path / "run"),
    )
    task = CausalLanguageModel(config)
    model = task.build_model()
    rehearsed: list[nn.Module] = []
    export = task._export_in

    def record(
        dtype: str | None, plain: nn.Module, weights: dict[str, torch.Tensor], folder: Path
    ) -> None:
        rehearsed.append(plain)
        export(dtype, plain, weights, folder)

    monkeypatch.setattr(task, "_export_in", record)
    task.rehearse(model)

    assert sum(isinstance(module, nn.GELU) for module in model.modules()) == 2
    assert not any(isinstance(module, NewGELUActivation) for module in model.modules())
    assert sum(isinstance(module, NewGELUActivation) for module in rehearsed[0].modules()) == 2

    task.export(model, model.state_dict(), tmp_path / "model")
    exported = json.loads((tmp_path / "model" / "config.json").read_text())
    assert exported["activation_function"] == "gelu_new"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.arange(64).unsqueeze(0)
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, rtol=1e-5, atol=1e-6)


def test_the_estimate_counts_the_fused_form(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GPT2Config(vocab_size=4096, **GPT2).to_dict()))
    length = "data_config.metadata_config.max_seq_len=64"
    config = replace(
        compose_command_line(CausalLMConfig, "demo", [length]), model_config_file=str(file)
    )
    modules = list(CausalLanguageModel(config).shape().model.modules())
    assert not any(isinstance(module, NewGELUActivation) for module in modules)
    assert sum(isinstance(module, nn.GELU) for module in modules) == 2
