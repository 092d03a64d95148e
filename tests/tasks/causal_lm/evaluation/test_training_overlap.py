"""A file that the run was trained on is not held out, and neither are single documents of it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.data.io.shards import Shard, add_sample_hashes, fingerprint_shards
from bsmeta.tasks.causal_lm.evaluation.training_overlap import (
    TrainingOverlap,
    find_training_overlap,
)
from bsmeta.tasks.checkpoints import locate_model
from tests.tasks.causal_lm.evaluation.conftest import call, documents, train_on, write_shard

REPOSITORY = Path(__file__).resolve().parents[4]
SHORT = ("comparisons=[]", "controls=[]", "bootstrap_resamples=10")


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


def find_overlap(
    run_folder: Path, config: CausalLMConfig, held_out: Path, limit_gb: float = 1.0
) -> TrainingOverlap | None:
    data = replace(config.data_config, validation_file=str(held_out))
    location = locate_model(str(run_folder))
    return find_training_overlap(data, location, config, limit_gb=limit_gb)


def rename(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Returns a document with another text and URL, except for the given values."""
    other = {"text": f"other {document['text']}", "metadata_url": None}
    return document | other | {"url": None} | values


def test_a_document_of_a_training_shard_is_refused_by_its_text(
    run_folder: Path,
    tmp_path: Path,
    data_config: DataConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = documents()
    first = write_shard(tmp_path / "a.jsonl.gz", [rename(line) for line in lines[:3]])
    second = write_shard(tmp_path / "b.jsonl.gz", [*map(rename, lines[3:6]), *lines[7:9]])
    train_on(run_folder, data_config, first, second)
    other = write_shard(tmp_path / "other.jsonl.gz", [lines[2], lines[8], lines[7], lines[10]])
    assert call(monkeypatch, f"checkpoint={run_folder}", f"validation_file={other}", *SHORT) == 2
    assert (
        f"validation_file={other}: 2 of 4 documents are in training shards of the run of "
        f"checkpoint={run_folder}; the first: line 2 has the text of {second}, line 5; expected "
        "documents that the run was not trained on (evaluate.py and generate.py leave these "
        "out with on_training_overlap=drop; for a study, leave them out of "
        "measure.validation_file)"
    ) in capsys.readouterr().err
    assert not (run_folder / "evaluation-other").exists()


def test_documents_of_training_shards_are_dropped_and_counted(
    run_folder: Path,
    tmp_path: Path,
    data_config: DataConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By URL, too; a document that training kept out of a shard was not trained on."""
    lines = documents()
    shard = write_shard(
        tmp_path / "a.jsonl.gz",
        [
            rename(lines[0], url="http://site0.org/page/0/"),
            lines[6],  # also in the run's held-out file
            lines[8],
        ],
    )
    train_on(run_folder, data_config, shard, kept_out=lines[5:7])
    other = write_shard(tmp_path / "other.jsonl.gz", lines)
    arguments = (f"checkpoint={run_folder}", f"validation_file={other}", "max_documents=8")
    assert call(monkeypatch, *arguments, *SHORT, "on_training_overlap=drop") == 0

    folder = run_folder / "evaluation-other"
    (model,) = json.loads((folder / "evaluation.json").read_text())["models"]
    assert model["data"]["left_out"] == {"in_training_shards": 2}
    assert model["data"]["documents"] == 8
    scored = [json.loads(line) for line in (folder / "documents.jsonl").read_text().splitlines()]
    numbers = [1, 2, 3, 4, 5, 6, 7, 9]
    assert [line["document"] for line in scored] == [f"other.jsonl.gz:{n}" for n in numbers]
    assert model["training_overlap"] == {
        "shards": 1,
        "compared": 1,
        "not_compared": {},
        "unread_lines": 0,
    }
    sentence = "Compared with 1 of 1 training shards."
    description = "8 documents of other.jsonl.gz (left out: 2 in_training_shards); windows of 64"
    assert f"{description} tokens: sliding. {sentence}" in capsys.readouterr().out
    assert sentence in (folder / "evaluation.md").read_text()
    assert sentence in (folder / "report.html").read_text()


def test_a_file_of_training_documents_alone_cannot_be_evaluated(
    run_folder: Path,
    tmp_path: Path,
    data_config: DataConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = write_shard(tmp_path / "a.jsonl.gz", documents()[:4])
    train_on(run_folder, data_config, shard)
    other = write_shard(tmp_path / "other.jsonl.gz", documents()[1:3])
    arguments = (f"checkpoint={run_folder}", f"validation_file={other}")
    assert call(monkeypatch, *arguments, *SHORT, "on_training_overlap=drop") == 2
    message = (
        "no document to evaluate (left out: {'in_training_shards': 2}); expected at least one JSON "
        "object a line with a non-empty `text` that is in no training shard of the run"
    )
    assert message in capsys.readouterr().err


def test_the_own_held_out_file_costs_nothing(
    run_folder: Path, tmp_path: Path, data_config: DataConfig
) -> None:
    """Not even its name counts: a file that was written anew is compared."""
    shard = write_shard(tmp_path / "a.jsonl.gz", documents()[:4])
    config = train_on(run_folder, data_config, shard)
    shard.unlink()
    own = Path(str(data_config.validation_file))
    assert find_overlap(run_folder, config, own) is None
    copy = Path(shutil.copy(own, tmp_path / "copy.jsonl.gz"))
    assert find_overlap(run_folder, config, copy) is None
    assert not (run_folder / "cache").exists()

    write_shard(own, documents()[2:6])
    overlap = find_overlap(run_folder, config, own)
    assert overlap is not None
    assert overlap.describe() == (
        "Compared with 0 of 1 training shards; the others: 1 missing or changed (first: "
        "a.jsonl.gz)."
    )


def test_without_a_checkpoint_the_own_held_out_file_has_its_path(
    run_folder: Path, tmp_path: Path, data_config: DataConfig
) -> None:
    lines = documents()
    shard = write_shard(tmp_path / "a.jsonl.gz", lines[:4])
    config = train_on(run_folder, data_config, shard, kept_out=lines[1:2])
    shutil.rmtree(run_folder / "checkpoint-8step")
    own = Path(str(data_config.validation_file))
    assert find_overlap(run_folder, config, own) is None
    other = write_shard(tmp_path / "other.jsonl.gz", lines[1:3])
    overlap = find_overlap(run_folder, config, other)
    assert overlap is not None
    assert {str(position) for position in overlap.positions.values()} == {f"{shard}, line 3"}


def test_other_columns_of_the_own_file_hold_other_documents(
    run_folder: Path, tmp_path: Path, data_config: DataConfig
) -> None:
    shard = write_shard(tmp_path / "a.jsonl.gz", documents()[:4])
    config = train_on(run_folder, data_config, shard)
    data = replace(config.data_config, columns={"text": "url"})
    location = locate_model(str(run_folder))
    assert find_training_overlap(data, location, config, limit_gb=1.0) is not None


def test_shards_beyond_the_limit_are_named(
    run_folder: Path, tmp_path: Path, data_config: DataConfig
) -> None:
    lines = documents()
    shards = [write_shard(tmp_path / f"{n}.jsonl.gz", lines[n : n + 3]) for n in (0, 7, 3)]
    config = train_on(run_folder, data_config, *shards)
    other = write_shard(tmp_path / "other.jsonl.gz", [*lines[3:5], *lines[7:9]])
    first, largest, last = (shard.stat().st_size for shard in shards)
    assert largest > last
    overlap = find_overlap(run_folder, config, other, limit_gb=(first + last) / 1e9)
    assert overlap is not None
    assert overlap.describe() == (
        "Compared with 2 of 3 training shards; the others: 1 beyond overlap_check_gb (first: "
        "7.jsonl.gz)."
    )
    assert {position.path for position in overlap.positions.values()} == {str(shards[2])}

    without = find_overlap(run_folder, config, other, limit_gb=0.0)
    assert without is not None
    assert without.positions == {}
    assert without.as_dict() == {
        "shards": 3,
        "compared": 0,
        "not_compared": {"beyond overlap_check_gb": {"shards": 3, "first": "0.jsonl.gz"}},
        "unread_lines": 0,
    }


def test_damaged_shards_are_compared_as_far_as_they_can_be_read(
    run_folder: Path, tmp_path: Path, data_config: DataConfig
) -> None:
    lines = documents()
    good = "".join(f"{json.dumps(line)}\n" for line in lines[:3])
    broken = tmp_path / "broken.jsonl"
    broken.write_text(f'{good}{{"te\n{{"text": 3}}\n{json.dumps(lines[3])}\n')
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(lines[4]).encode() + b"\n" * 99_999)[:-9])
    not_parquet = tmp_path / "table.parquet"
    not_parquet.write_bytes(b"nothing")
    config = train_on(run_folder, data_config, broken, cut, not_parquet)
    other = write_shard(tmp_path / "other.jsonl.gz", lines[3:6])
    for _ in range(2):
        overlap = find_overlap(run_folder, config, other)
        assert overlap is not None
        assert overlap.describe() == (
            "Compared with 1 of 3 training shards; the others: 2 damaged, compared in part "
            "(first: cut.jsonl.gz); unreadable training lines: 2 (first: broken.jsonl, line 4)."
        )
        positions = {str(position) for position in overlap.positions.values()}
        assert positions == {f"{broken}, line 6", f"{cut}, line 1"}


def test_a_run_without_known_shards_is_reported(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = write_shard(tmp_path / "other.jsonl.gz", documents())
    assert call(monkeypatch, f"checkpoint={run_folder}", f"validation_file={other}", *SHORT) == 0
    sentence = "Not compared with training documents: the training shards are not known."
    assert sentence in capsys.readouterr().out


@pytest.mark.slow
def test_all_ranks_refuse_or_drop_the_same_documents(
    run_folder: Path,
    tmp_path: Path,
    data_config: DataConfig,
    launch: Callable[..., CompletedProcess[str]],
) -> None:
    shard = write_shard(tmp_path / "a.jsonl.gz", documents()[2:5])
    train_on(run_folder, data_config, shard)
    other = write_shard(tmp_path / "other.jsonl.gz", documents())
    program = REPOSITORY / "bsmeta" / "evaluate.py"
    keys = (f"checkpoint={run_folder}", f"validation_file={other}", *SHORT)
    refused = launch(program, *keys, processes=2, check=False)
    assert refused.returncode != 0
    assert "3 of 11 documents are in training shards of the run of checkpoint=" in refused.stderr
    launch(program, *keys, "on_training_overlap=drop", processes=2)
    folder = run_folder / "evaluation-other"
    (model,) = json.loads((folder / "evaluation.json").read_text())["models"]
    assert model["data"]["left_out"] == {"in_training_shards": 3}
    assert model["data"]["documents"] == 8
