"""The layers of a model: attention between packed documents, recomputation, compilation, Liger."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MPNetConfig,
    OPTConfig,
    PreTrainedConfig,
)

from bsmeta.core.errors import ConfigurationError
from bsmeta.models import layers
from bsmeta.models.layers import (
    compile_layers,
    list_encoder_layers,
    list_layers,
    recompute_activations,
    use_liger,
)

LLAMA = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=32,
)
GPT2 = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=256)
OPT = OPTConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
    word_embed_proj_dim=32,
)  # fmt: skip


def run(model: nn.Module, ids: torch.Tensor, positions: torch.Tensor, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, use_cache=False, **more).logits


def build(shape: Any, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(shape, attn_implementation=implementation).eval()


def make_loss_function(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def losses(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = run(model, ids, positions)[:, :-1].transpose(1, 2)
        return functional.cross_entropy(logits, ids[:, 1:], reduction="none")

    return losses


@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_a_model_whose_documents_attend_to_each_other_is_detected(shape: Any) -> None:
    model = build(shape, "sdpa")
    like = torch.zeros(2, 16, dtype=torch.int64)
    layers.check_isolation(make_loss_function(model), like, 96, "sdpa")

    def leaking(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return make_loss_function(model)(ids, torch.arange(16).expand(2, -1))

    with pytest.raises(ConfigurationError, match="under sdpa the documents packed"):
        layers.check_isolation(leaking, like, 96, "sdpa")


@pytest.mark.parametrize("shape", [LLAMA, OPT], ids=["llama", "opt"])
def test_causal_models_pass_the_check(shape: Any) -> None:
    like = torch.zeros(2, 16, dtype=torch.int64)
    layers.check_causality(make_loss_function(build(shape, "sdpa")), like, 96)


def test_a_model_that_is_not_causal_is_refused() -> None:
    shape = BertConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    like = torch.zeros(2, 16, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match="tokens of this model see those after them"):
        layers.check_causality(make_loss_function(build(shape, "eager")), like, 96)


def test_another_implementation_is_only_suggested_if_it_helps() -> None:
    like = torch.zeros(2, 16, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match=r"Fix: data_config\.packing=pad, or") as caught:
        layers.check_isolation(make_loss_function(build(OPT, "sdpa")), like, 96, "sdpa")
    assert "attn_implementation=sdpa" not in str(caught.value)


FOUR_LAYERS = LlamaConfig(
    vocab_size=96,
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=32,
)


@pytest.fixture
def model() -> nn.Module:
    return AutoModelForCausalLM.from_config(FOUR_LAYERS)


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [True] * 4), (2, [True, False] * 2), (3, [True, False, False, True])],
)
def test_every_nth_layer_is_recomputed(model: nn.Module, every: int, expected: list[bool]) -> None:
    recompute_activations(model, every)
    assert [layer.gradient_checkpointing for layer in list_layers(model)] == expected


def test_each_layer_is_compiled_for_one_shape(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[object, dict[str, Any]]] = []

    def compile_forward(forward: Any, **named: Any) -> Any:
        compiled.append((forward, named))
        return forward

    monkeypatch.setattr(torch, "compile", compile_forward)
    forwards = [layer.forward for layer in list_layers(model)]
    compile_layers(model)
    assert compiled == [(forward, {"dynamic": False}) for forward in forwards]


@pytest.mark.slow
def test_all_layers_share_the_compiled_code(model: nn.Module) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ids = torch.arange(16).unsqueeze(0)
    expected = model.eval()(input_ids=ids, use_cache=False).logits
    compile_layers(model)
    logits = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_model_of_unknown_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the layers of Linear are not known"):
        compile_layers(nn.Linear(2, 2))


def test_liger_gets_the_model_but_not_the_loss(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, dict[str, bool]]] = []
    fake: Any = ModuleType("liger_kernel.transformers.monkey_patch")
    fake.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}
    fake._apply_liger_kernel_to_instance = lambda layer, **named: calls.append((layer, named))
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    use_liger(model)
    assert calls == [(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})]
    shape = GPT2Config(vocab_size=96, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(ConfigurationError, match="no kernels for gpt2"):
        use_liger(AutoModelForCausalLM.from_config(shape))


def test_a_missing_liger_kernel_is_named(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(ConfigurationError, match="pip install liger-kernel"):
        use_liger(model)


@pytest.mark.parametrize(("shape", "count"), [(BertConfig, 3), (MPNetConfig, 3), (AlbertConfig, 0)])
def test_the_layers_of_an_encoder_are_listed(shape: type[PreTrainedConfig], count: int) -> None:
    """The layers of MPNet have no class of the library; the layers of ALBERT share weights."""
    config = shape(
        vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    assert len(list_encoder_layers(AutoModel.from_config(config))) == count
