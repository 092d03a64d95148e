"""Which layers are recomputed or compiled, and what Liger is asked for."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from bsmeta.config.errors import ConfigurationError
from bsmeta.models.layers import compile_layers, layers_of, recompute, use_liger

LLAMA = LlamaConfig(
    vocab_size=96,
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=32,
)


@pytest.fixture
def model() -> nn.Module:
    return AutoModelForCausalLM.from_config(LLAMA)


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [True] * 4), (2, [True, False] * 2), (3, [True, False, False, True])],
)
def test_every_so_many_layers_are_recomputed(
    model: nn.Module, every: int, expected: list[bool]
) -> None:
    recompute(model, every)
    assert [layer.gradient_checkpointing for layer in layers_of(model)] == expected


def test_each_layer_is_compiled_for_one_shape(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **named: calls.append(named))
    compile_layers(model)
    assert calls == [{"dynamic": False}] * 4


def test_a_model_of_unknown_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the layers of Linear are not known"):
        compile_layers(nn.Linear(2, 2))


def test_liger_gets_the_model_but_not_the_loss(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, dict[str, bool]]] = []
    fake: Any = ModuleType("liger_kernel.transformers.monkey_patch")
    fake.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}
    fake._apply_liger_kernel_to_instance = lambda one, **named: calls.append((one, named))
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    use_liger(model)
    assert calls == [(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})]
    shape = GPT2Config(vocab_size=96, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(ConfigurationError, match="no kernels for gpt2"):
        use_liger(AutoModelForCausalLM.from_config(shape))


def test_liger_that_is_not_installed_is_named(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(ConfigurationError, match="pip install liger-kernel"):
        use_liger(model)
