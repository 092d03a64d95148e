"""Which held-out documents count, and slices of them by site, length and time."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.evaluating import SliceConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments, make_slices
from tests.tasks.causal_lm.evaluation.conftest import write_shard


def shard(path: Path, *lines: str) -> DataConfig:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return DataConfig(validation_file=str(path), bad_documents="skip")


def text(value: str) -> str:
    return json.dumps({"text": value})


def read(config: DataConfig, **settings: int | bool) -> HeldOutDocuments:
    return HeldOutDocuments(config, **{"max_documents": None, "deduplicate": True, **settings})


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


def test_a_document_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("x" * 101), text("x" * 100))
    documents = read(replace(config, max_document_chars=100))
    assert documents.name(0) == "a.jsonl.gz:1"
    assert dict(documents.left_out) == {"document_too_long": 1}


def test_repeated_texts_may_stay(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("one"), text("one"))
    assert len(read(config, deduplicate=False)) == 2


def test_the_maximum_counts_the_documents_that_are_kept(tmp_path: Path) -> None:
    config = shard(tmp_path / "a.jsonl.gz", text("one"), text("one"), text("two"), text("three"))
    documents = read(config, max_documents=2)
    assert [documents.name(i) for i in range(len(documents))] == ["a.jsonl.gz:0", "a.jsonl.gz:2"]


def test_strict_names_file_line_and_reason(tmp_path: Path) -> None:
    config = replace(shard(tmp_path / "a.jsonl.gz", text("one"), "{"), bad_documents="strict")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 2: not_json"):
        read(config)


def test_a_cut_file_is_read_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    config = shard(path, *(text(f"text number {i * i}") for i in range(5000)))
    path.write_bytes(path.read_bytes()[:-2000])
    documents = read(config)
    assert 0 < len(documents) < 5000
    assert documents.left_out["damaged_file"] == 1


def test_a_missing_file_and_an_unset_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"validation_file=.*none\.gz does not exist"):
        read(DataConfig(validation_file=str(tmp_path / "none.gz")))
    with pytest.raises(ConfigurationError, match="validation_file is not set"):
        read(DataConfig())


def test_a_file_without_a_usable_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document to evaluate"):
        read(shard(tmp_path / "a.jsonl.gz", text("")))


METADATA = MetadataConfig(metadata_list=["title"])


@pytest.fixture
def documents(tmp_path: Path) -> HeldOutDocuments:
    def time(value: str) -> list[dict[str, str]]:
        return [{"key": "timestamp", "type": "global", "value": value}]

    lines = [
        {
            "text": "a" * 10,
            "url": "https://docs.python.org/3/x",
            "metadata_timestamp": time("2015"),
        },
        {
            "text": "é" * 10,
            "url": "https://docs.python.org/2/",
            "metadata_timestamp": time("2018-5"),
        },
        {"text": "c" * 30, "url": "https://wiki.python.org", "metadata_timestamp": time("soon")},
        {
            "text": "d" * 40,
            "url": "http://boost.org:80/d",
            "metadata_timestamp": time("2022-01-01"),
        },
        {"text": "e" * 50},
    ]
    path = write_shard(tmp_path / "held-out.jsonl.gz", lines)
    config = DataConfig(validation_file=str(path), metadata_config=METADATA)
    return HeldOutDocuments(config, max_documents=None, deduplicate=True)


def made(documents: HeldOutDocuments, *configs: SliceConfig) -> dict[str, list[int]]:
    slices = make_slices(configs, documents, METADATA)
    return {f"{one.by}: {one.name}": one.members.nonzero()[0].tolist() for one in slices}


def test_the_most_frequent_sites(documents: HeldOutDocuments) -> None:
    assert made(documents, SliceConfig(by="site", top=2)) == {
        "site: docs.python.org": [0, 1],
        "site: wiki.python.org": [2],
    }


def test_named_sites_may_be_patterns(documents: HeldOutDocuments) -> None:
    config = SliceConfig(by="site", sites=["*.python.org", "boost.org", "none.org"])
    assert made(documents, config) == {"site: *.python.org": [0, 1, 2], "site: boost.org": [3]}


def test_bands_of_bytes_and_years(documents: HeldOutDocuments) -> None:
    configs = [SliceConfig(by="length", edges=[20, 40]), SliceConfig(by="time", edges=[2016, 2020])]
    assert made(documents, *configs) == {
        "length: below 20 bytes": [0],
        "length: 20 to 39 bytes": [1, 2],
        "length: 40 bytes and more": [3, 4],
        "time: below 2016": [0],
        "time: 2016 to 2019": [1],
        "time: 2020 and more": [3],
    }


def test_declarations_that_cannot_be_meant(documents: HeldOutDocuments) -> None:
    configs = [
        SliceConfig(by="length"),
        SliceConfig(by="time", edges=[3, 1]),
        SliceConfig(edges=[1000]),
        SliceConfig(by="length", edges=[1000], sites=["boost.org"]),
    ]
    with pytest.raises(ConfigurationError) as caught:
        make_slices(configs, documents, METADATA)
    message = str(caught.value)
    assert "slices: by=length: edges=[]" in message
    assert "slices: by=time: edges=[3, 1]" in message
    assert "slices: by=site: edges=[1000]: expected by=length or by=time" in message
    assert "slices: by=length: sites=['boost.org']: expected by=site" in message
