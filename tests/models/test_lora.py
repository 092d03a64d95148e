"""Adapters: which layers take them, and models into which they are merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.lora import ADAPTER, add_adapters, merge_adapters
from tests.conftest import REPOSITORY
from tests.models.architectures import make_shape
from tests.models.lora_shape import SHAPE

RANK = 4


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_merged_model_computes_the_same(kind: str, tmp_path: Path) -> None:
    """GPT-2 has biases, and the weights of its layers are transposed."""
    if kind == "llama":
        shape = AutoConfig.from_pretrained(REPOSITORY / "examples/model/config.json", **SHAPE)
    else:
        shape = GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=4096, bos_token_id=0, eos_token_id=0
        )
    model = AutoModelForCausalLM.from_config(shape).eval()
    ids = torch.arange(40).reshape(2, 20)
    before = model(ids).logits
    add_adapters(model, LoraKeys(rank=RANK, alpha=3), train_embeddings=False)
    torch.testing.assert_close(model(ids).logits, before)  # B is 0 at first
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    after, weights = model(ids).logits, model.state_dict()
    copies = {name: value.clone() for name, value in weights.items()}
    model.save_pretrained(tmp_path, state_dict=merge_adapters(model, weights))
    assert all(torch.equal(copies[name], value) for name, value in model.state_dict().items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert not any("lora" in name for name in loaded.state_dict())
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(loaded(ids).logits, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_adapters_of_fused_experts_are_merged_exactly(name: str, tmp_path: Path) -> None:
    """The experts of a layer form one tensor, which peft wraps once for each of its weights."""
    shape = make_shape(name)
    model = AutoModelForCausalLM.from_config(shape).eval()
    plain = {name: weight.shape for name, weight in model.state_dict().items()}
    ids = torch.arange(40).reshape(2, 20)
    before = model(ids).logits
    add_adapters(model, LoraKeys(rank=RANK, alpha=3), train_embeddings=False)
    for weight, parameter in model.named_parameters():
        if "experts" in weight and "lora_B" in weight:
            nn.init.normal_(parameter)
    after, weights = model(ids).logits, merge_adapters(model, model.state_dict())
    assert {name: weight.shape for name, weight in weights.items()} == plain
    model.save_pretrained(tmp_path, state_dict=weights)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(loaded(ids).logits, after, rtol=1e-4, atol=1e-4)


def test_transposed_experts_are_merged_exactly() -> None:
    """GPT-OSS keeps its experts as inputs x outputs; peft adapts them only by their full names."""
    shape = make_shape("gpt_oss")
    model = AutoModelForCausalLM.from_config(shape).eval()
    copy = AutoModelForCausalLM.from_config(shape).eval()
    ids = torch.arange(40).reshape(2, 20)
    before = model(ids).logits
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapters = LoraConfig(r=RANK, target_modules=[], target_parameters=names)
    inject_adapter_in_model(adapters, model, ADAPTER)
    for weight, parameter in model.named_parameters():
        if "lora_B" in weight:
            nn.init.normal_(parameter)
    after = model(ids).logits
    copy.load_state_dict(merge_adapters(model, model.state_dict()))
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(copy(ids).logits, after, rtol=1e-4, atol=1e-4)


def test_experts_without_adapters_are_named(caplog: pytest.LogCaptureFixture) -> None:
    shape = make_shape("gpt_oss")
    add_adapters(
        AutoModelForCausalLM.from_config(shape), LoraKeys(rank=RANK), train_embeddings=False
    )
    assert (
        "lora: no adapters on down_proj, gate_up_proj, which are not linear layers (but experts "
        "in one tensor, for example): they stay frozen (36,864 of "
    ) in caplog.text


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "mixtral",
            LoraKeys(rank=RANK, dropout=0.1),
            r"one tensor, whose adapters work without dropout only \(lora.dropout=0.1\).*"
            r"Fix: lora.dropout=0, or lora.targets=\[k_proj,o_proj,q_proj,v_proj\]",
        ),
        (
            "phimoe",
            LoraKeys(rank=RANK),
            r"peft cannot adapt 'router', a \w+ with a result of its own.*"
            r"Fix: lora.targets=\[k_proj,o_proj,q_proj,v_proj\]",
        ),
        ("mamba", LoraKeys(rank=RANK), r"Fix: lora.targets=\[dt_proj,in_proj,x_proj\]"),
    ],
)
def test_layers_that_peft_cannot_adapt_are_refused(name: str, keys: LoraKeys, message: str) -> None:
    """The message names targets that peft can adapt, and these work."""
    shape = make_shape(name)
    with pytest.raises(ConfigurationError, match=message) as error:
        add_adapters(AutoModelForCausalLM.from_config(shape), keys, train_embeddings=False)
    targets = str(error.value).rpartition("lora.targets=[")[2].rstrip("]").split(",")
    model = AutoModelForCausalLM.from_config(shape)
    add_adapters(model, replace(keys, targets=targets), train_embeddings=False)
    model(torch.arange(8).unsqueeze(0), use_cache=False)
