"""Which documents are trained on."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from bsmeta.core.errors import DataError
from bsmeta.data.io.cache import Cache
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.stages.guard import Guard
from tests.data.stream.stages.helpers import SHARD, read, skipping, title_line


@pytest.fixture
def held_out(tmp_path: Path) -> HeldOutFingerprints:
    path = tmp_path / "test.jsonl.gz"
    document = {"text": "a held-out text", "url": "https://example.org/held"}
    path.write_bytes(gzip.compress(json.dumps(document).encode() + b"\n"))
    return HeldOutFingerprints.load(str(path), Cache(str(tmp_path / "cache")))


def test_documents_with_text_are_admitted() -> None:
    skipped: Counter[str] = Counter()
    guard = Guard(skipping(), SHARD, None, skipped)
    document = read(title_line("a text"))
    assert guard.admit(document) is document
    assert skipped == {}


def test_documents_without_text_are_counted() -> None:
    skipped: Counter[str] = Counter()
    guard = Guard(skipping(), SHARD, None, skipped)
    assert guard.admit(read(title_line("", "a title"))) is None
    assert skipped == {"empty_text": 1}


def test_held_out_texts_and_addresses_are_counted(held_out: HeldOutFingerprints) -> None:
    skipped: Counter[str] = Counter()
    guard = Guard(skipping(on_test_overlap="drop"), SHARD, held_out, skipped)
    assert guard.admit(read(title_line("a held-out text"))) is None
    assert guard.admit(read(b'{"text": "other", "url": "http://example.org/held/"}')) is None
    assert guard.admit(read(b'{"text": "other", "url": "https://example.org/free"}')) is not None
    assert skipped == {"test_overlap": 2}


def test_held_out_documents_stop_a_run_under_the_error_policy(
    held_out: HeldOutFingerprints,
) -> None:
    config = skipping(on_test_overlap="error", validation_file="test.jsonl.gz")
    guard = Guard(config, SHARD, held_out, Counter())
    with pytest.raises(DataError) as error:
        guard.admit(read(title_line("a held-out text")))
    assert str(error.value) == (
        "/data/pages.jsonl, line 11: the document has the text of one in "
        "data_config.validation_file=test.jsonl.gz; leave the shard out (data_config.exclude), or "
        "set data_config.on_test_overlap=drop"
    )
