"""The texts of requests, by one small model: their order, seeds and limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.generation.requests import Request
from bsmeta.tasks.causal_lm.generation.writer import Writer
from bsmeta.tasks.checkpoints import locate_model


@pytest.fixture
def open_writer(run_folder: Path) -> OpenedModel:
    return OpenedModel(locate_model(str(run_folder)), None, {}, device=torch.device("cpu"))


def test_texts_and_their_order_do_not_depend_on_the_batch(open_writer: OpenedModel) -> None:
    requests = [
        Request(prompt="A set", max_new_tokens=6, seed=3),
        Request(prompt="The", metadata={"title": "Sets"}, max_new_tokens=4, num_samples=2),
        Request(prompt="", max_new_tokens=5, guidance=1.5, metadata={"url": "https://a.org/"}),
    ]
    single = list(Writer(open_writer, batch_size=1).write(requests))
    assert [result.request for result in single] == requests
    assert [result.prefix for result in single] == [
        "", "Title: Sets |||", "url: https://a.org/ |||"
    ]  # fmt: skip
    assert list(Writer(open_writer, batch_size=3).write(requests)) == single


def test_a_sample_is_reproducible_by_its_seed_alone(open_writer: OpenedModel) -> None:
    writer = Writer(open_writer, batch_size=4)
    (several,) = writer.write([Request(prompt="A", max_new_tokens=8, num_samples=3, seed=5)])
    assert [sample.seed for sample in several.samples] == [5, 6, 7]
    (alone,) = writer.write([Request(prompt="A", max_new_tokens=8, seed=6)])
    assert alone.samples == [several.samples[1]]


def test_prompts_without_room_are_refused_before_generating(
    open_writer: OpenedModel,
) -> None:
    long = "word " * 70
    requests = [Request(prompt="A"), Request(prompt=long), Request(id="c", prompt=long)]
    with pytest.raises(ConfigurationError) as error:
        next(Writer(open_writer, batch_size=1).write(requests))
    first, second = str(error.value).splitlines()
    assert first.startswith("request 2: prompt: with its metadata it has ")
    assert second.startswith("request c: prompt: with its metadata it has ")
