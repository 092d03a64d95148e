"""The training shards of a run on this machine are told from those that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.data.io.shards import Shard, add_sample_hashes, fingerprint_shards
from bsmeta.tasks.causal_lm.evaluation.training_shards import (
    TrainingShards,
    list_training_shards,
    read_saved_fingerprint,
)
from bsmeta.tasks.checkpoints import Location
from tests.tasks.causal_lm.evaluation.conftest import documents, write_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards and the held-out file of a run."""
    for number, name in enumerate(("a", "b", "c", "test")):
        write_shard(tmp_path / f"{name}.jsonl.gz", documents()[number : number + 2])
    return tmp_path


def fingerprint(folder: Path, *names: str) -> dict[str, Any]:
    """Returns the entries of shards in a checkpoint."""
    paths = [folder / f"{name}.jsonl.gz" for name in names]
    shards = [Shard(path.name, str(path), path.stat().st_size) for path in paths]
    return fingerprint_shards(add_sample_hashes(shards))


def list_names(shards: TrainingShards) -> list[str]:
    return [local.shard.name for local in shards.local]


def configure(folder: Path, **values: Any) -> DataConfig:
    held_out = {"validation_file": "test.jsonl.gz", "cache_dir": str(folder / "cache")}
    return DataConfig(dataset_name=str(folder), **{**held_out, **values})


def test_without_a_checkpoint_the_configuration_names_the_shards(folder: Path) -> None:
    address = "s3://bucket/*.jsonl.gz"
    config = configure(folder, train_file=["a.jsonl.gz", "test.jsonl.gz", address, "gone.jsonl"])
    shards = list_training_shards(config, {})
    assert list_names(shards) == ["a.jsonl.gz"]
    assert shards.absent == {address: "remote", f"{folder}/gone.jsonl": "missing"}


def test_a_folder_without_train_file_is_read_whole(folder: Path) -> None:
    shards = list_training_shards(configure(folder), {})
    assert list_names(shards) == ["a.jsonl.gz", "b.jsonl.gz", "c.jsonl.gz"]


def test_a_model_without_the_configuration_of_its_run_has_no_known_shards() -> None:
    assert list_training_shards(DataConfig(), {}) == TrainingShards([], {})


def test_a_checkpoint_lists_the_shards_by_content(folder: Path) -> None:
    """A file that was changed or added since is not a shard of the run."""
    listed = fingerprint(folder, "a", "b")
    listed |= {"hf://datasets/owner/name": "revision", "hub.jsonl.gz": 70}
    listed |= {"object.jsonl.gz": {"bytes": 70, "etag": "1"}, "forged.jsonl.gz": [{}]}
    write_shard(folder / "b.jsonl.gz", documents()[5:])
    (folder / "a.jsonl.gz").rename(folder / "renamed.jsonl.gz")
    shards = list_training_shards(configure(folder), listed)
    assert list_names(shards) == ["renamed.jsonl.gz"]
    assert shards.absent == {
        "b.jsonl.gz": "missing or changed",
        "hub.jsonl.gz": "remote",
        "object.jsonl.gz": "remote",
        "forged.jsonl.gz": "remote",
    }


def test_each_source_has_its_columns(folder: Path) -> None:
    sources = [
        SourceConfig(name="web", train_file="a.jsonl.gz"),
        SourceConfig(name="books", train_file="b.jsonl.gz", columns={"text": "body"}),
    ]
    config = configure(folder, sources=sources, columns={"text": "content"})
    shards = list_training_shards(config, {})
    assert [(local.shard.name, local.columns) for local in shards.local] == [
        ("a.jsonl.gz", {"text": "content"}),
        ("b.jsonl.gz", {"text": "body"}),
    ]


@pytest.mark.parametrize("state", ["", "[]", '{"fingerprint": {"shards": []}}', '{"streams": 1}'])
def test_a_state_without_a_list_of_shards_is_ignored(tmp_path: Path, state: str) -> None:
    checkpoint = tmp_path / "checkpoint-8step"
    checkpoint.mkdir()
    (checkpoint / "data_state.json").write_text(state)
    location = Location(str(tmp_path), str(tmp_path / "model"), None, tmp_path)
    assert read_saved_fingerprint(location) == {}

    (tmp_path / "checkpoint-9step").mkdir()
    saved = {"fingerprint": {"shards": {}, "held_out": "1"}}
    (tmp_path / "checkpoint-9step" / "data_state.json").write_text(json.dumps(saved))
    assert read_saved_fingerprint(location) == {"shards": {}, "held_out": "1"}


def test_the_newest_checkpoint_describes_the_data_of_a_run(tmp_path: Path) -> None:
    """A run may continue with other data (`on_changed_data=warn`)."""
    for step in (8, 9, 10):
        folder = tmp_path / f"checkpoint-{step}step"
        folder.mkdir()
        saved = {"fingerprint": {"shards": {}, "held_out": str(step)}}
        (folder / "data_state.json").write_text(json.dumps(saved))
    run = Location(str(tmp_path), str(tmp_path / "model"), None, tmp_path)
    assert read_saved_fingerprint(run)["held_out"] == "10"

    model = str(tmp_path / "checkpoint-8step" / "model")
    checkpoint = Location(str(tmp_path / "checkpoint-8step"), model, None, tmp_path)
    assert read_saved_fingerprint(checkpoint)["held_out"] == "8"


def test_files_that_no_run_would_accept_are_named(folder: Path) -> None:
    (folder / "link.jsonl.gz").symlink_to(folder / "gone")
    shards = list_training_shards(configure(folder, train_file="*.jsonl.gz"), {})
    assert shards == TrainingShards([], {f"{folder}/*.jsonl.gz": "unreadable"})
