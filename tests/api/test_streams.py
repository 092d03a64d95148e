"""The batches of a stream are those of training, also after its state was saved and loaded."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import IterableDataset
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.data.batch import MicroBatch
from bsmeta.tasks import BUILT_IN, TASKS
from bsmeta.tasks.classification.config import ClassificationConfig
from tests.api.conftest import read_lines
from tests.tasks.classification.conftest import encoder  # noqa: F401 (a fixture)
from tests.tasks.classification.helpers import data_config, write_leanings

ACCUMULATION = 2


@pytest.fixture
def config(demo_run: Path) -> CausalLMConfig:
    found = bsmeta.open_run(demo_run).config
    assert isinstance(found, CausalLMConfig)
    assert found.gradient_accumulation_steps == ACCUMULATION
    return found


def take_batches(stream: Iterable[MicroBatch], count: int) -> list[MicroBatch]:
    return list(itertools.islice(stream, count))


def list_names(batches: Iterable[MicroBatch]) -> list[str]:
    return sorted({name for batch in batches for name in batch.documents})


def assert_equal(first: list[MicroBatch], second: list[MicroBatch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)


def test_batches_equal_those_of_training(demo_run: Path, config: CausalLMConfig) -> None:
    stream = bsmeta.stream(config)
    for line in read_lines(demo_run / "documents-rank0.jsonl"):
        step = take_batches(stream, ACCUMULATION)
        assert stream.step == line["step"]
        assert list_names(step) == sorted(line["documents"])
        assert [batch.targets for batch in step] == line["targets"]


@pytest.mark.long
@pytest.mark.parametrize("position", [0, 2, 3])
def test_a_loaded_state_continues_exactly(config: CausalLMConfig, position: int) -> None:
    """At the start, after a step, and in the middle of a step; loaded twice, via JSON."""
    expected = take_batches(bsmeta.stream(config), 9)
    stream = bsmeta.stream(config)
    assert_equal(take_batches(stream, position), expected[:position])
    for begin in (position, position + 3):
        saved = json.loads(json.dumps(stream.state_dict()))
        stream = bsmeta.stream(config)
        take_batches(stream, 1)
        stream.load_state_dict(saved)
        assert stream.step == begin // ACCUMULATION
        again = json.loads(json.dumps(stream.state_dict()))
        stream.load_state_dict(again)
        assert_equal(take_batches(stream, 3), expected[begin : begin + 3])


def test_two_processes_share_a_step_and_one_process_can_continue(config: CausalLMConfig) -> None:
    halved = replace(config, gradient_accumulation_steps=1)
    expected = take_batches(bsmeta.stream(config), 6)
    ranks = [bsmeta.stream(halved, rank=rank, world_size=2) for rank in (0, 1)]
    for step in (0, 1):
        shared = [next(rank) for rank in ranks]
        assert list_names(shared) == list_names(expected[2 * step : 2 * step + 2])
        states = [rank.state_dict() for rank in ranks]
        for rank in ranks:
            rank.load_state_dict(states)
    alone = bsmeta.stream(config)
    alone.load_state_dict(states)
    assert_equal(take_batches(alone, 2), expected[4:])
    with pytest.raises(bsmeta.UserError, match=r"processes \[0\]; expected .* of the 2 processes"):
        alone.load_state_dict(states[0])


def test_a_table_can_be_streamed(encoder: Path, tmp_path: Path) -> None:  # noqa: F811
    data = replace(data_config(write_leanings(tmp_path)), num_workers=0)
    table = ClassificationConfig(data_config=data, model_name=str(encoder))
    stream = bsmeta.stream(table)
    expected = take_batches(stream, 5)
    assert expected[0].documents[0].startswith("leanings.csv:")
    stream = bsmeta.stream(table)
    take_batches(stream, 2)
    other = bsmeta.stream(table)
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert_equal(take_batches(other, 3), expected[2:])


def test_a_loader_of_torch_yields_the_batches(config: CausalLMConfig) -> None:
    """In this process and in a worker process, also after the data was opened here."""
    expected = take_batches(bsmeta.stream(config), 5)
    assert_equal(take_batches(DataLoader(bsmeta.stream(config), batch_size=None), 5), expected)

    stream = bsmeta.stream(config, {"data_config.num_workers": 2})
    assert_equal(take_batches(stream, 2), expected[:2])
    assert_equal(take_batches(DataLoader(stream, batch_size=None, num_workers=1), 3), expected[2:])
    assert_equal(take_batches(stream, 1), expected[2:3])

    with pytest.raises(bsmeta.UserError, match=r"num_workers=2\): each worker would yield all"):
        take_batches(DataLoader(stream, batch_size=None, num_workers=2), 1)


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stateful_loader_saves_and_loads_the_position(
    config: CausalLMConfig, num_workers: int
) -> None:
    expected = take_batches(bsmeta.stream(config), 6)

    def open_loader() -> StatefulDataLoader:
        stream = bsmeta.stream(config)
        return StatefulDataLoader(stream, batch_size=None, num_workers=num_workers)

    loader = open_loader()
    assert_equal(take_batches(loader, 3), expected[:3])
    state = loader.state_dict()
    loader = open_loader()
    loader.load_state_dict(state)
    assert_equal(take_batches(loader, 3), expected[3:])


@pytest.mark.parametrize("count", [0, 3])
def test_a_pickled_stream_continues(config: CausalLMConfig, count: int) -> None:
    """As a single process, in the middle of a step, and as one of two processes."""
    expected = take_batches(bsmeta.stream(config), count + 3)
    stream = bsmeta.stream(config)
    take_batches(stream, count)
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.step == stream.step
    assert_equal(take_batches(copy, 3), expected[count:])
    assert_equal(take_batches(stream, 3), expected[count:])

    halved = {"gradient_accumulation_steps": 1}
    second = bsmeta.stream(config, halved, rank=1, world_size=2)
    take_batches(second, count)
    copy = pickle.loads(pickle.dumps(second))
    assert_equal(take_batches(copy, 2), take_batches(second, 2))


def test_a_library_of_data_sets_can_read_the_rows(config: CausalLMConfig) -> None:
    table = IterableDataset.from_generator(bsmeta.stream(config).rows)
    (batch,) = take_batches(bsmeta.stream(config), 1)
    rows = list(table.take(len(batch.tensors["input_ids"])))
    for name, tensor in batch.tensors.items():
        assert torch.equal(torch.stack([torch.as_tensor(row[name]) for row in rows]), tensor)


def test_a_missing_library_is_named_with_its_extra(
    config: CausalLMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(_: object) -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setitem(BUILT_IN, "causal_lm", replace(TASKS["causal_lm"], make=make))
    with pytest.raises(bsmeta.UserError, match=r"pip install 'bsmeta\[tables\]'"):
        bsmeta.stream(config)


def test_a_configuration_is_found_by_name_and_wrong_calls_are_refused(
    config: CausalLMConfig,
) -> None:
    short = {"data_config.metadata_config.max_seq_len": 64}
    (batch,) = take_batches(bsmeta.stream("demo", short), 1)
    assert batch.tensors["input_ids"].shape == (2, 64)
    assert batch.weight == batch.tensors["loss_mask"].sum()
    with pytest.raises(bsmeta.UserError, match="train_file"):
        bsmeta.stream("demo", {"data_config": {"train_file": "missing/*.jsonl"}})
    with pytest.raises(bsmeta.UserError, match=r"learning_rate .* expected"):
        bsmeta.stream(replace(config, learning_rate=-1.0))
    with pytest.raises(bsmeta.UserError, match="Key 'sed' not in 'CausalLMConfig'"):
        bsmeta.stream(config, {"sed": 1})
    with pytest.raises(bsmeta.UserError, match="rank=2, world_size=2"):
        bsmeta.stream(config, rank=2, world_size=2)
    stream = bsmeta.stream(config)
    with pytest.raises(bsmeta.UserError, match="expected what state_dict"):
        stream.load_state_dict({"step": 3})
    other = bsmeta.stream(replace(config, seed=7))
    with pytest.raises(bsmeta.UserError, match="seed"):
        other.load_state_dict(stream.state_dict())
