"""Sizes of the language model in a config.json, nested or not."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import EncoderDecoderConfig, LlamaConfig

from bsmeta.config.model_file import find_language_part, read_max_positions
from tests.models.architectures import SMALL


@pytest.mark.parametrize(
    ("content", "positions"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 512}, "vision_config": {}}, 512),
        ({"decoder": {"n_positions": 256}}, 256),
        ({"text_config": {}}, None),
        ({"text_config": None, "max_position_embeddings": 64}, 64),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
    ],
)
def test_the_number_of_positions_is_read_from_a_config_file(
    content: dict[str, Any], positions: int | None
) -> None:
    assert read_max_positions(content) == positions


def test_the_language_section_of_a_file_is_not_copied() -> None:
    content: dict[str, Any] = {"model_type": "gemma3", "text_config": {"vocab_size": 4096}}
    assert find_language_part(content).pop("vocab_size") == 4096
    assert content == {"model_type": "gemma3", "text_config": {}}
    assert find_language_part(EncoderDecoderConfig.from_encoder_decoder_configs(
        LlamaConfig(**SMALL), LlamaConfig(**SMALL)
    ).to_dict())["vocab_size"] == 4096  # fmt: skip
