"""Held-out documents are compared with the shards of the runs that trained the initial model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GPT2LMHeadModel

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import DataError
from bsmeta.tasks.causal_lm.checkpoints import read_run_config
from bsmeta.tasks.causal_lm.evaluation.earlier_runs import RunChain, follow_initial_models
from bsmeta.tasks.causal_lm.evaluation.training_overlap import (
    TrainingOverlap,
    find_training_overlap,
)
from bsmeta.tasks.checkpoints import RECIPE, locate_model
from tests.tasks.causal_lm.evaluation.conftest import documents, train_on, write_shard


def start_from(run_folder: Path, model_name: str) -> None:
    """Makes a model the initial model of a run."""
    config = locate_config(run_folder)
    config = replace(config, model_config_file=None, model_name=model_name)
    (run_folder / "config.yaml").write_text(format_yaml(config))


def locate_config(run_folder: Path) -> CausalLMConfig:
    return read_run_config(locate_model(str(run_folder)), None, {})


def follow(run_folder: Path) -> RunChain:
    return follow_initial_models(locate_model(str(run_folder)), locate_config(run_folder))


def list_folders(chain: RunChain) -> list[str]:
    return [run.location.name for run in chain.runs]


def find_overlap(run_folder: Path, held_out: Path, limit_gb: float = 1.0) -> TrainingOverlap | None:
    config = locate_config(run_folder)
    data = replace(config.data_config, validation_file=str(held_out))
    return find_training_overlap(data, locate_model(str(run_folder)), config, limit_gb=limit_gb)


@pytest.fixture
def earlier_run(tmp_path: Path, run_folder: Path, data_config: DataConfig) -> Path:
    """A run on documents 0 to 3, of which its held-out file has document 3."""
    folder = tmp_path / "earlier"
    shutil.copytree(run_folder, folder)
    held_out = str(tmp_path / "earlier-held-out.jsonl.gz")
    shard = write_shard(tmp_path / "earlier.jsonl.gz", documents()[:4])
    train_on(
        folder, replace(data_config, validation_file=held_out), shard, kept_out=documents()[3:4]
    )
    return folder


def test_the_shards_of_the_earlier_run_are_compared(
    tmp_path: Path, run_folder: Path, earlier_run: Path, data_config: DataConfig
) -> None:
    lines = documents()
    shard = write_shard(tmp_path / "later.jsonl.gz", lines[4:6])
    train_on(run_folder, data_config, shard, kept_out=lines[8:9])
    other = write_shard(tmp_path / "other.jsonl.gz", lines[2:5])
    alone = find_overlap(run_folder, other)
    assert alone is not None
    assert alone.describe() == "Compared with 1 of 1 training shards."

    start_from(run_folder, f"{earlier_run}/model")
    overlap = find_overlap(run_folder, other)
    assert overlap is not None
    assert overlap.describe() == "Compared with 2 of 2 training shards."
    earlier_shard = tmp_path / "earlier.jsonl.gz"
    # Line 4 of the earlier shard was kept out by the earlier run.
    assert {str(position) for position in overlap.positions.values()} == {
        f"{shard}, line 1", f"{earlier_shard}, line 3",
    }  # fmt: skip

    # The limit is one for both runs.
    limited = find_overlap(run_folder, other, limit_gb=shard.stat().st_size / 1e9)
    assert limited is not None
    assert limited.describe() == (
        "Compared with 1 of 2 training shards; the others: 1 beyond overlap_check_gb (first: "
        "earlier.jsonl.gz)."
    )


def test_each_run_keeps_out_its_own_file(
    tmp_path: Path, run_folder: Path, earlier_run: Path, data_config: DataConfig
) -> None:
    lines = documents()
    shard = write_shard(tmp_path / "later.jsonl.gz", lines[4:6])
    train_on(run_folder, data_config, shard, kept_out=lines[1:3])
    own = Path(str(data_config.validation_file))
    assert find_overlap(run_folder, own) is None

    start_from(run_folder, f"{earlier_run}/model")
    overlap = find_overlap(run_folder, own)
    assert overlap is not None
    assert overlap.describe() == "Compared with 1 of 1 training shards."
    positions = {str(position) for position in overlap.positions.values()}
    assert positions == {f"{tmp_path}/earlier.jsonl.gz, line {number}" for number in (2, 3)}

    start_from(run_folder, "gpt2")  # trained by nobody here
    assert find_overlap(run_folder, own) is None


def test_a_training_shard_of_the_earlier_run_is_refused(
    tmp_path: Path, run_folder: Path, earlier_run: Path, data_config: DataConfig
) -> None:
    train_on(run_folder, data_config, write_shard(tmp_path / "later.jsonl.gz", documents()[4:6]))
    start_from(run_folder, f"{earlier_run}/model")
    expected = f"the run of checkpoint={earlier_run}/model was trained on it"
    with pytest.raises(DataError, match=expected):
        find_overlap(run_folder, tmp_path / "earlier.jsonl.gz")


def test_a_run_that_cannot_be_read_is_reported(
    tmp_path: Path, run_folder: Path, data_config: DataConfig
) -> None:
    shard = write_shard(tmp_path / "later.jsonl.gz", documents()[4:6])
    train_on(run_folder, data_config, shard)
    other = write_shard(tmp_path / "other.jsonl.gz", documents()[:3])
    absent = tmp_path / "gone" / "model"
    start_from(run_folder, str(absent))
    expected = (
        "Compared with 1 of 2 training shards; the others: 1 initial model whose run cannot be "
        f"read (first: {absent})."
    )
    overlap = find_overlap(run_folder, other)
    assert overlap is not None
    assert overlap.describe() == expected
    own = find_overlap(run_folder, Path(str(data_config.validation_file)))
    assert own is not None
    assert own.as_dict()["not_compared"] == {
        "initial model whose run cannot be read": {"shards": 1, "first": str(absent)}
    }

    shutil.copytree(run_folder / "model", absent)
    (absent / RECIPE).write_text("data_config: {}\n")  # exported, without its run
    overlap = find_overlap(run_folder, other)
    assert overlap is not None
    assert overlap.describe() == expected


def test_a_model_of_another_program_ends_the_chain(
    tmp_path: Path, run_folder: Path, model: GPT2LMHeadModel
) -> None:
    model.save_pretrained(tmp_path / "foreign")
    start_from(run_folder, str(tmp_path / "foreign"))
    chain = follow(run_folder)
    assert (list_folders(chain), chain.unread) == ([str(run_folder)], None)


def test_all_earlier_runs_are_listed_once(
    tmp_path: Path, run_folder: Path, earlier_run: Path
) -> None:
    first = tmp_path / "first"
    shutil.copytree(earlier_run, first)
    start_from(earlier_run, f"{first}/model")
    start_from(run_folder, f"{earlier_run}/model")
    folders = [str(run_folder), f"{earlier_run}/model", f"{first}/model"]
    chain = follow(run_folder)
    assert (list_folders(chain), chain.unread) == (folders, None)

    start_from(first, f"{run_folder}/model")  # the folders were overwritten in a circle
    chain = follow(run_folder)
    assert (list_folders(chain), chain.unread) == (folders, None)
