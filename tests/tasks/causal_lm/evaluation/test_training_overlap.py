"""A file that the run was trained on is not held out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.data.io.shards import Shard, add_sample_hashes, fingerprint_shards
from tests.tasks.causal_lm.evaluation.conftest import call, documents, write_shard


@pytest.mark.long
@pytest.mark.parametrize(
    "listed", ["in a checkpoint", "by the configuration", "under another name"]
)
def test_a_training_shard_of_the_run_is_refused_as_held_out_file(
    listed: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = write_shard(tmp_path / "train-000.jsonl.gz", documents()[2:5])
    size, name = shard.stat().st_size, shard
    if listed == "in a checkpoint":
        (run_folder / "checkpoint-8step").mkdir()
        listed_shards = fingerprint_shards(
            add_sample_hashes([Shard("train-000.jsonl.gz", str(shard), size)])
        )
        state = {"fingerprint": {"shards": listed_shards}, "streams": {}}
        (run_folder / "checkpoint-8step" / "data_state.json").write_text(json.dumps(state))
    else:
        config = (run_folder / "config.yaml").read_text()
        config = config.replace("train_file: null", f"train_file: {shard}")
        (run_folder / "config.yaml").write_text(config)
    if listed == "under another name":
        name = tmp_path / "other.jsonl.gz"
        shutil.copy(shard, name)
    assert call(monkeypatch, f"checkpoint={run_folder}", f"validation_file={name}") == 2
    message = capsys.readouterr().err
    assert (
        f"validation_file={name}: the run of checkpoint={run_folder} was trained on it" in message
    )
    assert "expected a file that it was not trained on, such as validation_file=" in message


def test_a_run_without_a_held_out_file_is_not_suggested(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = write_shard(tmp_path / "train-000.jsonl.gz", documents()[2:5])
    data = DataConfig(train_file=str(shard))
    (run_folder / "config.yaml").write_text(format_yaml(CausalLMConfig(data_config=data)))
    assert call(monkeypatch, f"checkpoint={run_folder}", f"validation_file={shard}") == 2
    assert "expected a file that it was not trained on\n" in capsys.readouterr().err
