"""Which held-out documents count."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.hub_fixtures import hub
from tests.data.hub_server import COMMIT, TOKEN, Hub, failing

__all__ = ["hub"]


def shard(path: Path, *lines: str) -> DataConfig:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return DataConfig(validation_file=str(path), bad_documents="skip")


def text(value: str) -> str:
    return json.dumps({"text": value})


def read(config: DataConfig, **settings: int | bool) -> HeldOutDocuments:
    return HeldOutDocuments(
        config, **{"max_documents": None, "deduplicate": True, "training_overlap": None, **settings}
    )


def test_bad_empty_and_repeated_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    beyond = {"key": "html", "type": "local", "value": "b", "char_start_idx": 2, "char_end_idx": 9}
    bad_html = json.dumps({"text": "tag", "metadata_html": [beyond]})
    config = shard(
        tmp_path / "a.jsonl.gz", text("one"), "{", text(""), text("one"), bad_html, text("été")
    )
    documents = read(config)
    assert [documents[i].text for i in range(len(documents))] == ["one", "été"]
    assert list(documents.sizes) == [3, 3]
    assert documents.name(1) == "a.jsonl.gz:5"
    assert dict(documents.left_out) == {
        "not_json": 1,
        "empty_text": 1,
        "duplicate_text": 1,
        "position_beyond_text": 1,
    }


def test_a_document_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("x" * 101), text("x" * 100))
    documents = read(replace(config, max_document_chars=100))
    assert documents.name(0) == "a.jsonl.gz:1"
    assert dict(documents.left_out) == {"document_too_long": 1}


def test_repeated_texts_can_be_kept(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("one"), text("one"))
    assert len(read(config, deduplicate=False, training_overlap=None)) == 2


def test_the_maximum_counts_only_kept_documents(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("one"), text("one"), text("two"), text("three"))
    documents = read(config, max_documents=2)
    assert [documents.name(i) for i in range(len(documents))] == ["a.jsonl.gz:0", "a.jsonl.gz:2"]


def test_strict_names_file_line_and_reason(tmp_path: Path) -> None:
    config = replace(shard(tmp_path / "a.jsonl.gz", text("one"), "{"), bad_documents="strict")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 2: not_json"):
        read(config)


def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    config = shard(path, *(text(f"text number {i * i}") for i in range(5000)))
    path.write_bytes(path.read_bytes()[:-2000])
    documents = read(config)
    assert 0 < len(documents) < 5000
    assert documents.left_out["damaged_file"] == 1


def test_a_missing_file_and_an_unset_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"validation_file=.*none\.gz does not exist"):
        read(DataConfig(validation_file=str(tmp_path / "none.gz")))
    with pytest.raises(DataError, match=f"validation_file={tmp_path} is a folder; expected"):
        read(DataConfig(validation_file=str(tmp_path)))
    with pytest.raises(ConfigurationError, match="validation_file is not set"):
        read(DataConfig())


def test_a_file_without_a_usable_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document to evaluate"):
        read(shard(tmp_path / "a.jsonl.gz", text("")))


def test_documents_of_a_file_on_the_hub_are_read_and_named_like_local_ones(
    hub: Hub, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(300)]
    hub.files = hub.listed = {"test.jsonl": "\n".join(lines).encode()}
    hub.token = TOKEN
    hub.faults = [failing(500, 2)]
    config = DataConfig(
        dataset_name="owner/name", validation_file="test.jsonl", cache_dir=str(tmp_path)
    )
    documents = HeldOutDocuments(
        config, max_documents=None, deduplicate=False, training_overlap=None
    )
    assert str(documents.path) == f"hf://datasets/owner/name@{COMMIT}/test.jsonl"
    assert len(documents) == 300
    assert documents[299].text == "text 299"
    assert documents.name(299) == "test.jsonl:299"
