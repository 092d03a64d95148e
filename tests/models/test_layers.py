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
from transformers.utils import is_flash_attn_2_available

from bsmeta.core.errors import ConfigurationError
from bsmeta.models import layers
from bsmeta.models.layers import compile_layers, encoder_layers, layers_of, recompute, use_liger

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
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 0, 1, 2, 3, 4]])


def run(model: nn.Module, ids: torch.Tensor, positions: torch.Tensor, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, use_cache=False, **more).logits


def built(shape: Any, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(shape, attn_implementation=implementation).eval()


def packed_as_alone(model: nn.Module, implementation: str) -> None:
    """Two rows, each of two documents, against each document on its own."""
    parts = [torch.randint(0, 96, (2, n)) for n in (70, 58)]
    positions = torch.cat([torch.arange(70), torch.arange(58)]).expand(2, -1)
    arguments = layers.attention_arguments(implementation, positions, layers.borders_of(positions))
    packed = run(model, torch.cat(parts, 1), positions, **arguments)
    alone = [run(model, one, torch.arange(one.shape[1]).expand(2, -1)) for one in parts]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "implementation"),
    [
        (LLAMA, "eager"),
        (GPT2, "eager"),
        (LLAMA, "sdpa"),
        (GPT2, "sdpa"),
        pytest.param(LLAMA, "flex_attention", marks=pytest.mark.slow),  # compiles
    ],
)
def test_packed_documents_do_not_see_each_other(shape: Any, implementation: str) -> None:
    packed_as_alone(built(shape, implementation), implementation)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_flash_attn_2_available()),
    reason="flash attention needs a GPU and the package flash-attn",
)
@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_packed_documents_do_not_see_each_other_in_flash_attention(shape: Any) -> None:
    model = built(shape, layers.FLASH).to("cuda", torch.bfloat16)
    ids, positions = torch.randint(0, 96, (2, 128)).cuda(), torch.arange(64).repeat(2, 2).cuda()
    arguments = layers.attention_arguments(layers.FLASH, positions, layers.borders_of(positions))
    packed = run(model, ids, positions, **arguments)
    second = run(model, ids[:, 64:].contiguous(), positions[:, :64])
    torch.testing.assert_close(packed[:, 64:], second, rtol=2e-2, atol=2e-2)


def test_borders_of_documents() -> None:
    borders = layers.borders_of(POSITIONS)
    assert borders.dtype == torch.int32
    assert borders.tolist() == [0, 5, 8, 10, 11, 16]


def varlen_by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, **_: Any
) -> torch.Tensor:
    """What flash-attn's function of this name computes, one document after the other."""
    out = []
    for begin, end in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True):
        one = (x[begin:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        done = functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)
        out.append(done.squeeze(0).transpose(0, 1))
    return torch.cat(out)


def test_flash_attention_gets_the_documents_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through transformers' own code, with flash-attn's function computed by hand."""
    from transformers import modeling_flash_attention_utils as flash

    seen: list[dict[str, Any]] = []

    def varlen(*tensors: torch.Tensor, **named: Any) -> torch.Tensor:
        seen.append(named)
        return varlen_by_hand(*tensors, **named)

    def taken(*_: Any, **__: Any) -> Any:
        return (None, varlen, None, None, None), (process, process)

    def process(**named: Any) -> dict[str, Any]:
        return {"max_seqlen_q": named["max_seqlen_q"], "max_seqlen_k": named["max_seqlen_k"]}

    monkeypatch.setattr(flash, "lazy_import_flash_attention", taken)
    model = built(LLAMA, "sdpa")
    ids = torch.randint(0, 96, (2, 8))
    expected = run(model, ids, POSITIONS)
    model.config._attn_implementation = layers.FLASH
    arguments = layers.attention_arguments(layers.FLASH, POSITIONS, layers.borders_of(POSITIONS))
    found = run(model, ids, POSITIONS, **arguments)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert [one["max_seqlen_q"] for one in seen] == [8, 8]  # a layer each; a bound


def test_the_mask_of_packed_documents() -> None:
    mask = layers.packed_mask(torch.tensor([[1, 1, 2]]))
    assert mask.tolist() == [[[[True, False, False], [True, True, False], [False, False, True]]]]


def test_sdpa_computes_the_same_with_our_mask_as_with_that_of_transformers() -> None:
    """On a GPU the mask is made without asking the device anything."""
    model, ids = built(GPT2, "sdpa"), torch.randint(0, 96, (2, 8))
    mask = layers.packed_mask((POSITIONS == 0).cumsum(1))
    found = run(model, ids, POSITIONS, attention_mask=mask)
    torch.testing.assert_close(found, run(model, ids, POSITIONS), rtol=1e-5, atol=1e-6)


def losses_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def losses(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = run(model, ids, positions)[:, :-1].transpose(1, 2)
        return functional.cross_entropy(logits, ids[:, 1:], reduction="none")

    return losses


@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_a_model_whose_documents_see_each_other_is_found(shape: Any) -> None:
    model = built(shape, "sdpa")
    like = torch.zeros(2, 16, dtype=torch.int64)
    layers.check_isolation(losses_of(model), like, 96, "sdpa")

    def leaking(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return losses_of(model)(ids, torch.arange(16).expand(2, -1))

    with pytest.raises(ConfigurationError, match="under sdpa the documents packed"):
        layers.check_isolation(leaking, like, 96, "sdpa")


@pytest.mark.parametrize("shape", [LLAMA, OPT], ids=["llama", "opt"])
def test_tokens_that_see_none_after_them_pass(shape: Any) -> None:
    like = torch.zeros(2, 16, dtype=torch.int64)
    layers.check_causality(losses_of(built(shape, "sdpa")), like, 96)


def test_a_model_whose_tokens_see_those_after_them_is_refused() -> None:
    shape = BertConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    like = torch.zeros(2, 16, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match="tokens of this model see those after them"):
        layers.check_causality(losses_of(built(shape, "eager")), like, 96)


def test_no_other_implementation_is_advised_where_it_would_not_help() -> None:
    like = torch.zeros(2, 16, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match=r"Fix: data_config\.packing=pad, or") as caught:
        layers.check_isolation(losses_of(built(OPT, "sdpa")), like, 96, "sdpa")
    assert "attn_implementation=sdpa" not in str(caught.value)


def test_auto_takes_flash_attention_only_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "is_flash_attn_2_available", lambda: True)
    assert layers.choose_attention("auto", LLAMA, half=True, compiled=False) is None  # no GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert layers.choose_attention("auto", LLAMA, half=True, compiled=False) == "flash_attention_2"
    assert layers.choose_attention("auto", LLAMA, half=False, compiled=False) is None
    assert layers.choose_attention("auto", LLAMA, half=True, compiled=True) is None
    assert layers.choose_attention("eager", LLAMA, half=True, compiled=False) == "eager"
    with pytest.raises(ConfigurationError, match="expected one of auto, eager, flash_attention_2"):
        layers.choose_attention("flex_attention", GPT2, half=True, compiled=False)


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


@pytest.mark.parametrize(("shape", "count"), [(BertConfig, 3), (MPNetConfig, 3), (AlbertConfig, 0)])
def test_the_layers_of_an_encoder(shape: type[PreTrainedConfig], count: int) -> None:
    """MPNet's are of no class of the library; ALBERT's share their weights."""
    config = shape(
        vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    assert len(encoder_layers(AutoModel.from_config(config))) == count
