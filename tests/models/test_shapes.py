"""Sizes of the language model in a config, nested or not; and that all code reads them there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from transformers import GPT2Config, LlamaConfig, MusicgenConfig

from bsmeta.models.shapes import (
    count_head_groups,
    count_layers,
    count_positions,
    find_text_shape,
    read_hidden_size,
)
from tests.models.architectures import SMALL, make_shape

PACKAGE = Path(__file__).resolve().parents[2] / "bsmeta"
NESTED = make_shape("gemma3")
SIZES = {
    "hidden_size",
    "max_position_embeddings",
    "n_positions",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
}
READERS = {
    "config/model_file.py",
    "models/shapes.py",
    "quick/sizes.py",  # a shape of its own
    "tasks/causal_lm/gguf_file.py",  # GPT-2 and Llama alone, whose configs are flat
}


def test_sizes_are_read_from_nested_and_flat_configs() -> None:
    for shape in (NESTED, LlamaConfig(**SMALL)):
        assert count_positions(shape) == 128
        assert read_hidden_size(shape) == 32
        assert count_layers(shape) == 2
        assert count_head_groups(shape) == (4, 2)
    assert count_positions(GPT2Config(n_positions=77)) == 77
    assert find_text_shape(NESTED) is NESTED.text_config


def test_the_sizes_of_an_encoder_decoder_are_those_of_its_decoder() -> None:
    decoder = {"model_type": "musicgen_decoder", "hidden_size": 24}
    shape = MusicgenConfig(
        text_encoder={"model_type": "t5"}, audio_encoder={"model_type": "encodec"}, decoder=decoder
    )
    assert read_hidden_size(shape) == 24


def test_no_other_module_reads_a_size_from_a_config() -> None:
    """A nested config has no such attributes, so the code would fail for its models only."""
    readers = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in READERS
        for node in ast.walk(ast.parse(path.read_text()))
        if reads_size(node)
    }
    assert readers == set()


def reads_size(node: ast.AST) -> bool:
    """Whether code reads a size as `x.config.size`, `shape.size`, or by `getattr`."""
    if isinstance(node, ast.Attribute) and node.attr in SIZES:
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        return isinstance(node.ctx, ast.Load) and name in ("config", "shape")
    is_getattr = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr"
    return is_getattr and isinstance(node.args[1], ast.Constant) and node.args[1].value in SIZES


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("model.config.vocab_size", True),
        ("shape.max_position_embeddings", True),
        ("getattr(shape, 'num_hidden_layers', None)", True),
        ("text.vocab_size", False),
        ("tokenizer.vocab_size", False),
    ],
)
def test_the_search_finds_readers(code: str, expected: bool) -> None:
    assert any(reads_size(node) for node in ast.walk(ast.parse(code))) is expected
