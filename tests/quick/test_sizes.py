"""The sizes of models for amounts of text and devices."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bsmeta.core.errors import ConfigurationError
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.sizes import (
    Device,
    Shape,
    Sizes,
    choose_sizes,
    choose_vocabulary_size,
    count_weights,
    find_device,
    list_size_rows,
)

CPU = Device("2 CPU cores", 30e9, 16)
GPU = Device("a GPU", 10e12, 64, "bf16")


@pytest.mark.parametrize(
    ("text_tokens", "vocabulary", "device", "expected"),
    [
        (20_000, 4096, CPU, (64, 2, 256, 1, 312)),
        (400_000, 2048, CPU, (96, 3, 256, 8, 416)),
        (30_000_000, 4096, CPU, (64, 2, 256, 16, 303)),
        (400_000, 2048, GPU, (192, 5, 256, 16, 391)),
        (30_000_000, 16_384, GPU, (192, 5, 512, 64, 854)),
    ],
)
def test_sizes_follow_from_the_text_and_the_device(
    text_tokens: int, vocabulary: int, device: Device, expected: tuple[int, ...]
) -> None:
    sizes = choose_sizes(text_tokens, vocabulary, device, QuickConfig())
    assert (
        sizes.hidden_size, sizes.num_layers, sizes.max_seq_len, sizes.rows, sizes.steps
    ) == expected  # fmt: skip
    assert sizes.epochs < 4.01
    assert sizes.seconds <= 60 * 3 + 1


def test_every_size_can_be_chosen() -> None:
    config = QuickConfig(
        hidden_size=64, num_layers=1, max_seq_len=128, batch_size=3, max_train_steps=7,
        learning_rate=0.01,
    )  # fmt: skip
    assert choose_sizes(100_000, 1024, CPU, config) == Sizes(
        vocabulary_size=1024, hidden_size=64, num_layers=1, max_seq_len=128, rows=3, steps=7,
        learning_rate=0.01, text_tokens=100_000, seconds=pytest.approx(0.1244, abs=0.0001),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="hidden_size=100: expected a multiple of 32, suc"):
        choose_sizes(100_000, 1024, CPU, QuickConfig(hidden_size=100))


def test_more_minutes_train_a_larger_model_for_longer() -> None:
    short = choose_sizes(400_000, 2048, CPU, QuickConfig(minutes=1))
    long = choose_sizes(400_000, 2048, CPU, QuickConfig(minutes=30))
    assert (short.hidden_size, long.hidden_size) == (64, 192)
    assert long.learning_rate == pytest.approx(0.004 * 128 / 192, abs=1e-6)


@pytest.mark.parametrize(
    ("text_bytes", "device", "expected"),
    [
        (99_999, CPU, None), (100_000, CPU, 1024), (1_024_000, CPU, 2048),
        (100_000_000, CPU, 4096), (100_000_000, GPU, 16_384),
    ],
)  # fmt: skip
def test_the_vocabulary_grows_with_the_text(
    text_bytes: int, device: Device, expected: int | None
) -> None:
    assert choose_vocabulary_size(text_bytes, device) == expected


def test_the_estimated_weights_equal_those_of_the_model() -> None:
    sizes = choose_sizes(400_000, 2048, CPU, QuickConfig())
    config = sizes.make_model_config()
    with torch.device("meta"):
        shape = AutoConfig.for_model(**config)
        model = AutoModelForCausalLM.from_config(shape)
    norms = (2 * sizes.num_layers + 1) * sizes.hidden_size
    assert model.num_parameters() == sizes.weights + norms
    assert count_weights(Shape(96, 3), 2048) == sizes.weights == 528_384


def test_sizes_are_shown_with_the_keys_that_change_them() -> None:
    rows = list_size_rows(choose_sizes(400_000, 2048, CPU, QuickConfig()), CPU, 3.0)
    assert rows == [
        ("device", "2 CPU cores"),
        ("tokenizer", "2,048 tokens (tokenizer, vocabulary_size)"),
        ("model", "0.53 M weights: 3 layers of width 96 (num_layers, hidden_size)"),
        ("window", "256 tokens of text, and room for metadata (max_seq_len)"),
        ("step", "8 sequences = 2,048 tokens (batch_size)"),
        ("steps", "416 of each model = 2.1 epochs of 400,000 tokens (max_train_steps)"),
        ("learning rate", "0.004 (learning_rate)"),
        ("time", "about 3.0 minutes for training both models, of at most 3 (minutes)"),
    ]


def test_the_device_is_detected() -> None:
    device = find_device()
    assert device.flops > 0
    assert (device.precision == "bf16") == (
        torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    )
