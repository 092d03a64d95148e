"""Slices by site, length and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import SliceConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.evaluation.documents import HeldOutDocuments, make_slices
from tests.evaluation.conftest import write_shard

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
        SliceConfig(by="colour"),
        SliceConfig(by="length"),
        SliceConfig(by="time", edges=[3, 1]),
    ]
    with pytest.raises(ConfigurationError) as caught:
        make_slices(configs, documents, METADATA)
    message = str(caught.value)
    assert "slices: by=colour: expected one of site, length, time" in message
    assert "slices: by=length: edges=[]" in message
    assert "slices: by=time: edges=[3, 1]" in message
