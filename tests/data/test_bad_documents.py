"""Bad input: named in strict mode, counted in skip mode."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import bsmeta.metadata
from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io import lines
from bsmeta.data.io.compression import BLOCK_BYTES
from bsmeta.data.io.lines import OVERLONG, LineReader
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream.reasons import REASONS
from bsmeta.data.stream.stages import encode as encode_stage
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.rendering import Rendered
from tests.data.helpers import (
    batches,
    page,
    pages,
    small_config,
    small_tokenizer,
    taken,
    write_shard,
)

GOOD = json.dumps(page(1, 5)).encode()
BAD = {
    "blank_line": b"  ",
    "byte_order_mark": b"\xef\xbb\xbf" + GOOD,
    "not_utf8": '{"text": "café"}'.encode("latin-1"),
    "not_json": b'{"text": "cut',
    "not_an_object": b"[1, 2]",
    "missing_text": b'{"url": "https://example.org"}',
    "text_not_string": b'{"text": 3}',
    "document_too_long": json.dumps({"text": "word " * 30_000}).encode(),
    "line_too_long": json.dumps({"text": "a", "junk": "y" * 40_000_000}).encode(),
    "wrong_type": b'{"text": "a", "metadata_url": "https://example.org"}',
}

COUNTS = {f"bad_documents/{reason}" for reason in REASONS}


@pytest.fixture(autouse=True)
def _lower_line_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 30_000_000)


def one_stream(path: Path, **changes: object) -> DataConfig:
    limits = {"window_documents": 100, "max_document_chars": 100_000}
    return small_config(path, **({"num_streams": 1} | limits | changes))


def shard_with(tmp_path: Path, *some: bytes) -> Path:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([GOOD] * 3 + [*some] + [GOOD] * 20) + b"\n"))
    return path


@pytest.mark.parametrize("reason", BAD)
def test_strict_names_file_line_and_reason(tmp_path: Path, reason: str) -> None:
    path = shard_with(tmp_path, BAD[reason])
    with pytest.raises(DataError) as error:
        batches(one_stream(path), 1)
    assert str(error.value).startswith(f"{path}, line 4: {reason}: ")
    assert "data_config.bad_documents=skip" in str(error.value)


@pytest.mark.parametrize("line", [b'{"text": NaN}', b'{"text": "a\x00b"}', b'{"text": "\\ud83d"}'])
def test_a_line_that_is_not_json_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(DataError, match="line 4: not_json"):
        batches(one_stream(shard_with(tmp_path, line)), 1)


def test_a_long_line_below_the_limit_is_read(tmp_path: Path) -> None:
    line = json.dumps({"text": "x " * 100, "junk": "y" * 10_000_000}).encode()
    assert batches(one_stream(shard_with(tmp_path, line)), 1)


def test_an_empty_page_is_skipped_but_not_counted_as_bad(tmp_path: Path) -> None:
    path = shard_with(tmp_path, b'{"text": ""}', b'{"text": "", "metadata_title": []}')
    steps = batches(one_stream(path, packing="pad", max_bad_documents=0), 5)
    assert sum(step.counts["empty_text"] for step in steps) == 2
    assert sum(step.counts[name] for step in steps for name in COUNTS) == 0
    assert {position["bad"] for step in steps for position in step.states.values()} == {0}
    named = {name for step in steps for name in step.documents}
    assert "shard.jsonl.gz:2" in named
    assert not named & {"shard.jsonl.gz:3", "shard.jsonl.gz:4"}


@pytest.mark.parametrize("packed", [gzip.compress, zstd.compress, bytes])
def test_lines_after_a_line_that_is_too_long_are_read(
    tmp_path: Path, packed: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3 * BLOCK_BYTES)
    suffix = {gzip.compress: ".gz", bytes: ""}.get(packed, ".zst")
    path = tmp_path / f"shard.jsonl{suffix}"
    parts = [
        b"x" * size
        for size in (3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1, 5, 9 * BLOCK_BYTES, 7, 20 * BLOCK_BYTES)
    ]
    path.write_bytes(packed(b"\n".join(parts)))
    reader = LineReader(str(path))
    read = reader.read(0, 99)
    assert [bytes(line) for line in read] == [
        parts[0],
        OVERLONG,
        parts[2],
        OVERLONG,
        parts[4],
        OVERLONG,
    ]
    assert reader.damage == ""


def test_metadata_counts_for_the_length_of_a_document(tmp_path: Path) -> None:
    title = {"key": "title", "type": "global", "value": "t" * 200_000}
    path = shard_with(tmp_path, json.dumps({"text": "a", "metadata_title": [title]}).encode())
    always = {"metadata_probability": 1.0, "random_sample_metadata": False}
    with pytest.raises(DataError) as error:
        batches(one_stream(path, **always), 1)
    assert "line 4: document_too_long: text and metadata have 200," in str(error.value)
    assert "more than data_config.max_document_chars=100000" in str(error.value)
    batches(one_stream(path, **always, max_document_chars=300_000), 1)


def test_a_window_is_encoded_in_bounded_batches_with_equal_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences equal the sequences of a single batch."""
    write_shard(tmp_path / "a.jsonl.gz", pages(60))
    whole = batches(one_stream(tmp_path), 10)
    sizes: list[int] = []
    encode = DocumentEncoder.encode

    def noted(self: DocumentEncoder, rendered: Sequence[Rendered]) -> list[EncodedDocument]:
        sizes.append(sum(len(document.body) for document in rendered) if len(rendered) > 1 else 0)
        return encode(self, rendered)

    monkeypatch.setattr(encode_stage, "ENCODING_BATCH_CHARS", 500)
    monkeypatch.setattr(DocumentEncoder, "encode", noted)
    for step, other in zip(whole, batches(one_stream(tmp_path), 10), strict=True):
        assert step.documents == other.documents
        assert all(map(torch.equal, step.tensors.values(), other.tensors.values()))
    assert len(sizes) > 10
    assert max(sizes) <= 500


def test_skip_counts_each_reason_once(tmp_path: Path) -> None:
    path = shard_with(tmp_path, *BAD.values())
    steps = batches(one_stream(path, bad_documents="skip", packing="pad"), 5)
    assert all(set(step.counts) >= COUNTS for step in steps)
    for reason in BAD:
        assert sum(step.counts[f"bad_documents/{reason}"] for step in steps) == 1
    assert max(position["bad"] for step in steps for position in step.states.values()) == 0


def test_skipped_documents_are_not_counted_again_after_a_resume(tmp_path: Path) -> None:
    path = shard_with(tmp_path, *BAD.values())
    config = one_stream(path, bad_documents="skip")
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    first = next(iter(stream))
    state = {"fingerprint": stream.fingerprint, **stream.merge([first.state])}
    resumed = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2, state=state
    )
    assert sum(next(taken(resumed)).counts[name] for name in COUNTS) == 0


def test_skip_gives_up_at_the_limit(tmp_path: Path) -> None:
    path = shard_with(tmp_path, *BAD.values())
    limit = len(BAD)
    assert batches(one_stream(path, bad_documents="skip", max_bad_documents=limit), 1)
    with pytest.raises(DataError, match=rf"skipped {limit} bad .*max_bad_documents={limit - 1};"):
        batches(one_stream(path, bad_documents="skip", max_bad_documents=limit - 1), 1)


def test_a_truncated_gzip_is_refused_or_counted_once_an_epoch(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard.jsonl.gz", pages(300))
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"shard\.jsonl\.gz, line \d+: damaged_file: the file ends"):
        batches(one_stream(path), 1000)
    steps = batches(one_stream(path, bad_documents="skip"), 1000)
    first = [step for step in steps if step.states[0]["epoch"] == 0]
    second = [step for step in steps if step.states[0]["epoch"] == 1]
    assert first[-1].states[0]["bad"] == 0
    assert sum(step.counts["bad_documents/damaged_file"] for step in first + second) == 2


def test_a_shard_of_zero_bytes_is_reported_as_damaged(tmp_path: Path) -> None:
    """A cut download or a full disk must not look like a shard without documents."""
    write_shard(tmp_path / "a.jsonl.gz", pages(30))
    (tmp_path / "b.jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.jsonl\.gz, line 1: damaged_file: the file is empty"):
        batches(one_stream(tmp_path), 100)
    taken = batches(one_stream(tmp_path, bad_documents="skip"), 20)
    assert sum(step.counts["bad_documents/damaged_file"] for step in taken) >= 1


def test_shards_without_a_usable_document_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl"
    path.write_bytes(b'{"text": ""}\n{"text": ""}\n')
    with pytest.raises(DataError, match="stream 0 has no usable document in its part of shard"):
        batches(one_stream(path, bad_documents="skip"), 1)


def test_every_reason_of_the_metadata_package_is_counted() -> None:
    folder = Path(bsmeta.metadata.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    named_reasons = re.findall(r'BadDocument\(\s*"(\w+)"', source) + re.findall(
        r'reason = "(\w+)"', source
    )
    assert set(named_reasons) <= set(REASONS)
