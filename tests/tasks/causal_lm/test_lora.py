"""Adapters: what they train, exact resumes, and merged exports."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config

from bsmeta.config.causal_lm import CausalLMConfig, LoraKeys
from bsmeta.config.compose import compose
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.lora import ADAPTER, add_adapters, merged
from bsmeta.tasks.causal_lm.checks import value_problems
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.conftest import REPOSITORY, run_warm
from tests.data.helpers import write_shards
from tests.faults.conftest import RESUME, same_run
from tests.models.architectures import shape_of

RANK = 4
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a small model and its tokenizer."""
    shape = AutoConfig.from_pretrained(REPOSITORY / "examples/model/config.json", **SHAPE)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer").save_pretrained(
        tmp_path / "base"
    )
    return tmp_path / "base"


def demo(base: Path, *overrides: str) -> CausalLMConfig:
    own = ("model_config_file=null", "tokenizer_name=null", f"model_name={base}")
    return compose(CausalLMConfig, "demo", (*own, *overrides))


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
    model.save_pretrained(tmp_path, state_dict=merged(model, weights))
    assert all(torch.equal(copies[name], value) for name, value in model.state_dict().items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert not any("lora" in name for name in loaded.state_dict())
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(loaded(ids).logits, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_adapters_of_fused_experts_are_merged_exactly(name: str, tmp_path: Path) -> None:
    """The experts of a layer are one tensor, which peft wraps once for each of its weights."""
    shape = shape_of(name)
    model = AutoModelForCausalLM.from_config(shape).eval()
    plain = {name: weight.shape for name, weight in model.state_dict().items()}
    ids = torch.arange(40).reshape(2, 20)
    before = model(ids).logits
    add_adapters(model, LoraKeys(rank=RANK, alpha=3), train_embeddings=False)
    for weight, parameter in model.named_parameters():
        if "experts" in weight and "lora_B" in weight:
            nn.init.normal_(parameter)
    after, weights = model(ids).logits, merged(model, model.state_dict())
    assert {name: weight.shape for name, weight in weights.items()} == plain
    model.save_pretrained(tmp_path, state_dict=weights)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(loaded(ids).logits, after, rtol=1e-4, atol=1e-4)


def test_transposed_experts_are_merged_exactly() -> None:
    """GPT-OSS keeps its experts as inputs x outputs; peft adapts them only by their full names."""
    shape = shape_of("gpt_oss")
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
    copy.load_state_dict(merged(model, model.state_dict()))
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(copy(ids).logits, after, rtol=1e-4, atol=1e-4)


def test_experts_without_adapters_are_named(caplog: pytest.LogCaptureFixture) -> None:
    shape = shape_of("gpt_oss")
    add_adapters(
        AutoModelForCausalLM.from_config(shape), LoraKeys(rank=RANK), train_embeddings=False
    )
    assert (
        "lora: no adapters on down_proj, gate_up_proj, which are no linear layers (but experts in "
        "one tensor, for example): they stay as they are (36,864 of "
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
    """With the targets that it can, and which work."""
    shape = shape_of(name)
    with pytest.raises(ConfigurationError, match=message) as error:
        add_adapters(AutoModelForCausalLM.from_config(shape), keys, train_embeddings=False)
    targets = str(error.value).rpartition("lora.targets=[")[2].rstrip("]").split(",")
    model = AutoModelForCausalLM.from_config(shape)
    add_adapters(model, replace(keys, targets=targets), train_embeddings=False)
    model(torch.arange(8).unsqueeze(0), use_cache=False)


def test_adapters_and_new_embeddings_are_trained(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The adapters, and with new special tokens the embeddings."""
    caplog.set_level(logging.INFO)
    keys = ("lora.rank=4", "lora.targets=[q_proj,v_proj]")
    model = CausalLanguageModel(demo(base, *keys)).build_model()
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {
        f"model.layers.{layer}.self_attn.{name}.lora_{part}.default.weight"
        for layer in (0, 1)
        for name in ("q_proj", "v_proj")
        for part in "AB"
    }
    assert "embeddings are trained" not in caplog.text
    more = "+recipes=beyond_urls_meta_tokens"
    model = CausalLanguageModel(demo(base, *keys, more)).build_model()
    more_trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert more_trained == trained | {"model.embed_tokens.weight"}
    assert "the embeddings are trained, too, because 5 special tokens" in caplog.text


def test_layers_that_are_not_there(base: Path) -> None:
    config = demo(base, "lora.rank=4", "lora.targets=[c_attn]")
    with pytest.raises(ConfigurationError, match=r"lora.targets=\['c_attn'\]"):
        CausalLanguageModel(config).build_model()


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        (["lora.dropout=0.1"], "lora.dropout", "there are no adapters"),
        (["lora.targets=[q_proj]"], "lora.targets", "there are no adapters"),
        (
            ["lora.rank=4", "model_config_file=${repo:examples/model/config.json}"],
            "lora.rank",
            "a model whose weights are random",
        ),
    ],
)
def test_keys_without_effect_are_refused(
    base: Path, keys: list[str], key: str, expected: str
) -> None:
    (problem,) = value_problems(demo(base, *keys))
    assert problem.key == key
    assert expected in problem.expected


@pytest.mark.parametrize(
    "launch_file",
    [
        "cpu.yaml",
        pytest.param("cpu_zero2.yaml", marks=pytest.mark.slow),
        pytest.param("cpu_fsdp2.yaml", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    base: Path, tmp_path: Path, launch_file: str
) -> None:
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", [10, 14, 9, 12])
    keys = [
        "max_train_steps=8",
        "num_warmup_steps=2",
        "save_steps=1",
        "keep_last_checkpoints=0",
        "eval_steps=0",
        "learning_rate=0.01",
        "trackers=[]",
        "model_config_file=null",
        "tokenizer_name=null",
        f"model_name={base}",
        f"lora.rank={RANK}",
        "lora.dropout=0.1",
        f"data_config.train_file={tmp_path}/shards",
        "data_config.validation_file=null",
        "data_config.num_streams=4",
        "data_config.window_documents=4",
        "data_config.metadata_config.max_seq_len=64",
    ]

    def train(out_dir: Path, *more: str) -> None:
        launch = ("-m", "accelerate.commands.launch", "--config_file")
        file = REPOSITORY / "experiments/accelerate" / launch_file
        train = (REPOSITORY / "bsmeta/train.py", "--config-name", "demo", f"out_dir={out_dir}")
        command = [sys.executable, *launch, file, *train, *keys, *more]
        done = run_warm(command)
        assert done.returncode == 0, done.stderr[-4000:]

    train(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for step in range(4, 9):
        shutil.rmtree(tmp_path / f"again/checkpoint-{step}step")
    train(tmp_path / "again", RESUME)
    assert same_run(tmp_path / "again", tmp_path / "whole")

    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/model").state_dict()
    assert before.keys() == after.keys()
    ranks = {name: int(torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-4))
             for name in after if before[name].ndim == 2}  # fmt: skip
    adapted = {name for name, rank in ranks.items() if rank}
    assert adapted == {name for name in ranks if "_proj." in name}
    assert max(ranks.values()) == RANK
    manifest = json.loads((tmp_path / "whole/model/config.json").read_text())
    assert manifest["architectures"] == ["LlamaForCausalLM"]
