"""Misspelled keys and impossible sizes of the shape of new weights are refused before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.model_shape import find_shape_problems
from bsmeta.core.errors import Problem
from tests.conftest import REPOSITORY
from tests.models.architectures import ARCHITECTURES, GPT, Architecture
from tests.tasks.training import TRAIN, Launch

GPT2 = {"model_type": "gpt2", **GPT}
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2}


def find_problems(folder: Path, content: Any) -> list[Problem]:
    file = folder / "shape.json"
    file.write_text(json.dumps(content))
    return list(find_shape_problems(CausalLMConfig(model_config_file=str(file))))


@pytest.mark.parametrize(
    ("content", "key", "class_name", "suggestion"),
    [
        ({"model_type": "gpt2", "n_embd": 64, "n_layers": 1, "n_head": 2},
         "n_layers", "GPT2Config", "n_layer"),
        ({"model_type": "gpt2", "num_hiden_layers": 1},
         "num_hiden_layers", "GPT2Config", "num_hidden_layers"),
        ({"model_type": "llama", "hidden_sise": 8}, "hidden_sise", "LlamaConfig", "hidden_size"),
        ({"model_type": "llama", "hidden_siez": 8}, "hidden_siez", "LlamaConfig", "hidden_size"),
        ({"model_type": "llama", "Hidden-Size": 8}, "Hidden-Size", "LlamaConfig", "hidden_size"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "head_dims": 8}},
         "text_config.head_dims", "Gemma3TextConfig", "head_dim"),
        ({"model_type": "distilbert", "n_layer": 1}, "n_layer", "DistilBertConfig", "n_layers"),
    ],
)  # fmt: skip
def test_a_misspelled_key_is_refused(
    content: dict[str, Any], key: str, class_name: str, suggestion: str, tmp_path: Path
) -> None:
    (problem,) = find_problems(tmp_path, content)
    assert str(problem) == (
        f"{key} in {tmp_path / 'shape.json'}: found an unknown key, which transformers ignores, "
        f"expected a key of {class_name} (did you mean {suggestion}?).\n"
        f"   Fix: rename it to {suggestion}, or delete it"
    )


@pytest.mark.parametrize(
    "content",
    [
        {**GPT2, "n_ctx": 1024, "task_specific_params": {}, "architectures": ["GPT2LMHeadModel"],
         "_name_or_path": "gpt2", "torch_dtype": "float32", "transformers_version": "4.11.0",
         "summary_type": "cls_index", "output_past": True, "max_length": 50},
        {"model_type": "gpt2", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
        {"model_type": "bert", "directionality": "bidi", "pooler_num_attention_heads": 12,
         "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "num_labels": 2},
        {"model_type": "t5", "n_positions": 512, "output_past": True, "feed_forward_proj": "relu"},
        {"model_type": "bart", "classif_dropout": 0.1, "add_bias_logits": False, "num_beams": 4},
        {**LLAMA, "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 1e4, "mlp_bias": False,
         "eot_token_id": 5, "boi_token_id": 6, "use_cache": True},
        {**LLAMA, "hidden_sizes": [32, 32]},  # hidden_size is there, too
        {"model_type": "gpt2", "d_head": 8, "unrelated": -1},
        {"model_type": "of_another_library", "n_layers": 1},
        {"n_layers": -1},
        ["no object"],
    ],
    ids=str,
)  # fmt: skip
def test_other_unknown_keys_are_accepted(content: Any, tmp_path: Path) -> None:
    assert find_problems(tmp_path, content) == []


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda entry: entry.name)
def test_saved_configs_are_accepted(architecture: Architecture, tmp_path: Path) -> None:
    architecture.shape().save_pretrained(tmp_path)
    config = CausalLMConfig(model_config_file=str(tmp_path))
    assert list(find_shape_problems(config)) == []


def test_shipped_shapes_are_accepted() -> None:
    """`check_only` leaves them out."""
    files = [*(REPOSITORY / "hydra_configs/model").glob("*.json")]
    files += (REPOSITORY / "examples").glob("*/config.json")
    assert len(files) == 6
    for file in files:
        assert json.loads(file.read_text())["model_type"] in CONFIG_MAPPING
        assert list(find_shape_problems(CausalLMConfig(model_config_file=str(file)))) == []


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ({**GPT2, "n_layer": -1}, ["n_layer"]),
        ({**GPT2, "n_head": 0, "n_embd": 0}, ["n_head", "n_embd"]),
        ({**LLAMA, "num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"model_type": "gpt2", "num_hidden_layers": -1}, ["num_hidden_layers"]),
        ({"model_type": "bart", "encoder_layers": 0, "decoder_layers": 0},
         ["encoder_layers", "decoder_layers"]),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 0}},
         ["text_config.hidden_size"]),
    ],
)  # fmt: skip
def test_a_size_below_one_is_refused(
    content: dict[str, Any], keys: list[str], tmp_path: Path
) -> None:
    problems = find_problems(tmp_path, content)
    assert sorted(problem.key for problem in problems) == sorted(keys)
    assert {problem.expected for problem in problems} == {"1 or more"}


def test_a_check_reports_the_file_the_key_and_the_suggestion(
    launch: Launch, tmp_path: Path
) -> None:
    file = tmp_path / "foo.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_layers": 1, "n_head": 0}))
    keys = ["check_only=true", f"model_config_file={file}", f"out_dir={tmp_path}/run"]
    done = launch(TRAIN, "--config-name", "demo", *keys, check=False)
    assert done.returncode == 2
    assert f"n_layers in {file}: found an unknown key" in done.stderr
    assert "(did you mean n_layer?)" in done.stderr
    assert f"n_head in {file}: found 0, expected 1 or more" in done.stderr
