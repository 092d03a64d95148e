"""Slices of held-out documents by site, length and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import SliceConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.slices import make_slices
from tests.tasks.causal_lm.evaluation.conftest import write_shard

METADATA = MetadataConfig(metadata_list=["title"])


@pytest.fixture
def site_documents(tmp_path: Path) -> HeldOutDocuments:
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
    return HeldOutDocuments(config, max_documents=None, deduplicate=True, training_overlap=None)


def slices_by_name(site_documents: HeldOutDocuments, *configs: SliceConfig) -> dict[str, list[int]]:
    slices = make_slices(configs, site_documents, METADATA)
    return {
        f"{data_slice.by}: {data_slice.name}": data_slice.members.nonzero()[0].tolist()
        for data_slice in slices
    }


def test_the_most_frequent_sites_are_slices(site_documents: HeldOutDocuments) -> None:
    assert slices_by_name(site_documents, SliceConfig(by="site", top=2)) == {
        "site: docs.python.org": [0, 1],
        "site: wiki.python.org": [2],
    }


def test_requested_sites_may_be_patterns(site_documents: HeldOutDocuments) -> None:
    config = SliceConfig(by="site", sites=["*.python.org", "boost.org", "none.org"])
    assert slices_by_name(site_documents, config) == {
        "site: *.python.org": [0, 1, 2],
        "site: boost.org": [3],
    }


def test_documents_are_sliced_by_bytes_and_years(site_documents: HeldOutDocuments) -> None:
    configs = [SliceConfig(by="length", edges=[20, 40]), SliceConfig(by="time", edges=[2016, 2020])]
    assert slices_by_name(site_documents, *configs) == {
        "length: below 20 bytes": [0],
        "length: 20 to 39 bytes": [1, 2],
        "length: 40 bytes and more": [3, 4],
        "time: below 2016": [0],
        "time: 2016 to 2019": [1],
        "time: 2020 and more": [3],
    }


def test_contradictory_declarations_are_refused(site_documents: HeldOutDocuments) -> None:
    configs = [
        SliceConfig(by="length"),
        SliceConfig(by="time", edges=[3, 1]),
        SliceConfig(edges=[1000]),
        SliceConfig(by="length", edges=[1000], sites=["boost.org"]),
    ]
    with pytest.raises(ConfigurationError) as caught:
        make_slices(configs, site_documents, METADATA)
    message = str(caught.value)
    assert "slices: by=length: edges=[]" in message
    assert "slices: by=time: edges=[3, 1]" in message
    assert "slices: by=site: edges=[1000]: expected by=length or by=time" in message
    assert "slices: by=length: sites=['boost.org']: expected by=site" in message
