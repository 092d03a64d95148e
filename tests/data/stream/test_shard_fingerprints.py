"""Documents are found in a shard, which is read only once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.data.io.cache import Cache
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.same_document import iterate_fingerprints
from bsmeta.data.stream.shard_fingerprints import ShardFingerprints
from bsmeta.metadata.document import Document
from tests.data.helpers import write_shard

ROWS = [
    {"text": "first", "url": "https://example.org/1"},
    {"text": "", "url": "https://example.org/empty"},
    {"text": "third", "url": "https://example.org/3"},
    {"text": "first", "url": "https://example.org/4"},
]


def hash_document(text: str, url: str | None = None) -> np.ndarray:
    values = [value for _, value in iterate_fingerprints(Document(text, url, {}))]
    return np.array(values, np.uint64)


def write_rows(path: Path) -> str:
    lines = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".zst":
        path.write_bytes(zstd.compress(lines.encode()))
    elif path.suffix == ".gz":
        write_shard(path, ROWS)
    else:
        path.write_text(lines)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_documents_are_found_by_text_and_url(tmp_path: Path, suffix: str) -> None:
    shard = ShardFingerprints.load(write_rows(tmp_path / f"a{suffix}"), Cache(str(tmp_path)), {})
    assert shard.lines.tolist() == [0, 0, 2, 2, 3, 3]
    wanted = hash_document("third", "http://example.org/1/")
    lines = shard.find_first_lines(wanted, None)
    assert [lines[value] for value in wanted.tolist()] == [2, 0]
    # An empty document is not trained on, and neither is its URL.
    assert shard.find_first_lines(hash_document("", "https://example.org/empty"), None) == {}


def test_documents_that_are_kept_out_of_training_do_not_count(tmp_path: Path) -> None:
    """Even if the held-out document has only the URL of the document in the shard."""
    shard = ShardFingerprints.load(write_rows(tmp_path / "a.jsonl"), Cache(str(tmp_path)), {})
    held_out = HeldOutFingerprints(hash_document("other", "https://example.org/1"))
    (value,) = hash_document("first").tolist()
    assert shard.find_first_lines(hash_document("first"), None) == {value: 0}
    assert shard.find_first_lines(hash_document("first"), held_out) == {value: 3}


def test_a_shard_is_read_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    reports: list[int] = []
    cache = Cache(str(tmp_path / "cache"))
    first = ShardFingerprints.load(path, cache, {}, reports.append)
    assert reports == [0]
    second = ShardFingerprints.load(path, cache, {}, reports.append)
    assert reports == [0]
    assert second.values.tolist() == first.values.tolist()
    # Other columns hold other texts.
    assert ShardFingerprints.load(path, cache, {"text": "url"}, reports.append).lines.tolist() == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip
    assert reports == [0, 0]


def test_a_damaged_shard_is_not_cached(tmp_path: Path) -> None:
    """A fault of the disk may pass."""
    path = tmp_path / "a.jsonl.gz"
    content = Path(write_rows(path)).read_bytes()
    path.write_bytes(content[:-6])
    cache = Cache(str(tmp_path / "cache"))
    shard = ShardFingerprints.load(str(path), cache, {})
    assert "the file ends in the middle" in shard.damage
    assert not (tmp_path / "cache").exists()


def test_unreadable_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n\n{"te\n{"text": "five"}\n')
    for _ in range(2):  # also from the cache
        shard = ShardFingerprints.load(str(path), Cache(str(tmp_path / "cache")), {})
        assert shard.unreadable.tolist() == [1, 3]
        assert shard.lines.tolist() == [0, 4]
