"""Whole runs of models that once failed after their first steps, started as users start them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import REPOSITORY, run_warm
from tests.models.architectures import ARCHITECTURES

SHAPES = {architecture.name: architecture for architecture in ARCHITECTURES}
KEYS = [
    "data_config.metadata_config.max_seq_len=64",
    "data_config.window_documents=8",
    "max_train_steps=3",
    "num_warmup_steps=0",
    "eval_steps=0",
    "save_steps=2",
    "trackers=[]",
    "gradient_accumulation_steps=1",
]
TRAIN = (REPOSITORY / "bsmeta/train.py", "--config-name", "demo")


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """The config of a model with a nested language model."""
    file = tmp_path / "nested.json"
    file.write_text(json.dumps(SHAPES["gemma3"].shape().to_dict()))
    return file


@pytest.mark.long
def test_two_processes_train_a_model_with_a_vision_tower(nested: Path, tmp_path: Path) -> None:
    launch = REPOSITORY / "experiments/accelerate/cpu.yaml"
    keys = [*KEYS, f"model_config_file={nested}", f"out_dir={tmp_path}/run"]
    done = run_warm(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", launch, *TRAIN, *keys]
    )
    assert done.returncode == 0, done.stderr[-4000:]
    message = "model.vision_tower, model.multi_modal_projector get no gradient from text alone"
    assert message in done.stderr
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model")
    assert type(loaded).__name__ == "Gemma3ForConditionalGeneration"


def test_the_resources_of_a_nested_model_are_estimated(nested: Path, tmp_path: Path) -> None:
    keys = [f"model_config_file={nested}", "estimate=true", "estimate_steps=0"]
    done = run_warm([sys.executable, *TRAIN, *KEYS, *keys, f"out_dir={tmp_path}/run"])
    assert done.returncode == 0, done.stderr[-4000:]
    assert "of which trainable" in done.stdout


@pytest.mark.parametrize("mode", ["check_only=true", "estimate=true"])
def test_more_tokens_than_positions_of_a_nested_model_are_refused(
    mode: str, nested: Path, tmp_path: Path
) -> None:
    keys = ["data_config.metadata_config.max_seq_len=256", f"model_config_file={nested}", mode]
    done = run_warm([sys.executable, *TRAIN, *KEYS, *keys, f"out_dir={tmp_path}/run"])
    assert done.returncode == 2
    assert "max_seq_len in Hydra configuration: found 256, expected at most 128" in done.stderr


def test_adapters_of_a_mixture_of_experts_are_saved(tmp_path: Path) -> None:
    base = tmp_path / "base"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(SHAPES["mixtral"].shape()).save_pretrained(base)
    AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer").save_pretrained(base)
    keys = ["model_config_file=null", "tokenizer_name=null", f"model_name={base}", "lora.rank=4"]
    keys += ["learning_rate=0.01", f"out_dir={tmp_path}/run"]
    done = run_warm([sys.executable, *TRAIN, *KEYS, *keys])
    assert done.returncode == 0, done.stderr[-4000:]
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoint-2step/model")
    changed = {
        name for name, weight in after.state_dict().items() if not torch.equal(weight, before[name])
    }
    assert changed == {
        f"model.layers.{layer}.{part}"
        for layer in (0, 1)
        for part in (
            *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
            "mlp.gate.weight",
            "mlp.experts.gate_up_proj",
            "mlp.experts.down_proj",
        )
    }
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    parts = next(step["parts"] for step in map(json.loads, lines) if step["event"] == "step")
    assert parts["router"] > 0
    assert sum(parts[f"expert_{number}_load"] for number in range(4)) == pytest.approx(1)
