"""Adapters: what they train, exact resumes, and merged exports."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.checks import find_value_problems
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.conftest import REPOSITORY, run_warm
from tests.data.helpers import write_shards
from tests.faults.conftest import RESUME, same_run
from tests.models.lora_shape import SHAPE

RANK = 4


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
    return compose_command_line(CausalLMConfig, "demo", (*own, *overrides))


def test_adapters_and_new_embeddings_are_trained(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The adapters are trained, and with new special tokens the embeddings."""
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


def test_missing_target_layers_are_refused(base: Path) -> None:
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
    (problem,) = find_value_problems(demo(base, *keys))
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
def test_a_resumed_run_equals_an_uninterrupted_run(
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
