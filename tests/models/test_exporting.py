"""The weights of exported models: tied ones once, and in the dtype of `export_dtype`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from bsmeta.core.errors import ConfigurationError
from bsmeta.models.exporting import cast_weights, record_dtype, write_model
from tests.models.architectures import ARCHITECTURES

SHAPES = {architecture.name: architecture for architecture in ARCHITECTURES}


def make_model(name: str, **changes: Any) -> PreTrainedModel:
    """Returns a tiny model with random weights."""
    torch.manual_seed(1)
    if name == "t5":
        shape = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
        return T5ForConditionalGeneration(shape)
    shape = SHAPES[name].shape()
    for key, value in changes.items():
        setattr(shape, key, value)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    return model


def copy_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Returns a copy of each weight under each of its names, as DeepSpeed's engine does."""
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "changes", "left_out"),
    [
        ("gpt2", {}, {"lm_head.weight"}),
        ("cohere", {}, {"lm_head.weight"}),
        ("gemma3_text", {}, {"lm_head.weight"}),
        ("bloom", {}, {"lm_head.weight"}),
        ("llama", {}, set()),
        ("gpt2", {"tie_word_embeddings": False}, set()),
        (
            "t5",
            {},
            {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"},
        ),
    ],
)
def test_copies_of_tied_weights_are_written_once(
    tmp_path: Path, name: str, changes: dict[str, Any], left_out: set[str]
) -> None:
    model = make_model(name, **changes)
    write_model(model, copy_weights(model), tmp_path / "copies", None)
    write_model(model, model.state_dict(), tmp_path / "shared", None)
    copies = load_file(tmp_path / "copies" / "model.safetensors")
    shared = load_file(tmp_path / "shared" / "model.safetensors")
    assert copies.keys() == shared.keys()
    assert all(torch.equal(copies[key], shared[key]) for key in copies)
    assert set(model.state_dict()) - copies.keys() == left_out


def test_tied_weights_with_other_values_are_both_written(tmp_path: Path) -> None:
    """Such as an output layer that adapters have changed: the file shows that it is not tied."""
    model = make_model("gpt2")
    weights = copy_weights(model)
    weights["lm_head.weight"] += 1
    write_model(model, weights, tmp_path, None)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("export_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gpt_neox", "gemma3_text", "opt", "bloom", "mixtral", "mamba"]
)
def test_exported_models_load_in_their_dtype(tmp_path: Path, name: str, export_dtype: str) -> None:
    model = make_model(name)
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    write_model(model, copy_weights(model), tmp_path, export_dtype)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == export_dtype

    dtype = getattr(torch, export_dtype)
    stored = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {dtype}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == dtype
    for key, weight in loaded.state_dict().items():
        assert torch.equal(weight.to(dtype), before[key].to(dtype)), key

    # The model that continues to train is unchanged.
    assert model.dtype == torch.float32
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())


def test_values_beyond_the_dtype_are_refused() -> None:
    weights = {
        "a.weight": torch.tensor([1.0, -65_504.0]),
        "b.weight": torch.tensor([70_000.0, -1e5]),
    }
    with pytest.raises(ConfigurationError) as caught:
        cast_weights(weights, "float16")
    assert str(caught.value) == (
        "export_dtype=float16: b.weight has values of up to 100,000, which would be infinite "
        "(2 of 2); expected at most 65,504. Fix: export_dtype=bfloat16, whose range is that of "
        "float32, or null (a run resumes with another one)"
    )
    assert caught.value.keys == {"export_dtype"}
    assert cast_weights(weights, "bfloat16")["b.weight"].tolist() == [70_144.0, -99_840.0]


def test_other_values_keep_their_dtype() -> None:
    """Counters are not rounded, and trained values that are not finite are not an overflow."""
    weights = {"count": torch.tensor([70_001]), "a": torch.tensor([float("inf"), 0.1])}
    cast = cast_weights(weights, "float16")
    assert cast["count"].tolist() == [70_001]
    assert cast["a"].tolist() == [float("inf"), 0.0999755859375]
    assert cast_weights(weights, None) == weights


def test_the_dtype_of_nested_configs_is_recorded(tmp_path: Path) -> None:
    content = {"dtype": "float32", "text_config": {"dtype": "float32"}, "vision_config": {"n": 1}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    record_dtype(tmp_path, None)
    assert json.loads((tmp_path / "config.json").read_text()) == content
    record_dtype(tmp_path, "bfloat16")
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16"},
        "vision_config": {"n": 1},
    }
