"""The size of the data: counted in small shards, estimated in large ones."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream.data_size import estimate_data_size
from tests.data.text_lines import lines
from tests.warm import REPOSITORY


def texts(number: int, length: int = 40) -> list[str]:
    """Returns texts of random words, which compress like real texts."""
    words = random.Random(0)
    return [
        " ".join(f"w{words.randrange(5000)}" for _ in range(length)) for _ in range(number)
    ]  # fmt: skip


def test_small_shards_are_counted_exactly(tmp_path: Path) -> None:
    rows = texts(30)
    (tmp_path / "a.jsonl").write_bytes(lines(rows[:10]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(rows[10:])))
    size = estimate_data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert (size.num_documents, size.text_bytes) == (30, sum(len(text) for text in rows))
    assert (size.num_tokens, size.is_exact) == (size.text_bytes / 4, True)
    assert not size.is_tokenized


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_large_shards_are_estimated_from_their_beginning(suffix: str, tmp_path: Path) -> None:
    rows = texts(40_000)
    packers = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstd.compress}
    for name in ("a", "b"):
        if suffix == ".parquet":
            pq.write_table(pa.table({"text": rows}), tmp_path / f"{name}{suffix}")
        else:
            (tmp_path / f"{name}{suffix}").write_bytes(packers[suffix](lines(rows)))
    size = estimate_data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert size.num_documents == pytest.approx(80_000, rel=0.1)
    assert size.text_bytes == pytest.approx(2 * sum(map(len, rows)), rel=0.1)
    assert not size.is_exact


def test_tokens_are_counted_with_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(["the the the the"] * 10))
    folder = str(REPOSITORY / "examples" / "tokenizer")
    size = estimate_data_size(DataConfig(train_file=str(tmp_path)), folder)
    assert size is not None
    assert size.num_tokens == pytest.approx(40)
    assert size.is_tokenized


def test_remote_and_missing_data_have_no_size() -> None:
    assert estimate_data_size(DataConfig(train_file="hf://datasets/a/b/*.jsonl.gz")) is None
    assert estimate_data_size(DataConfig(train_file="missing/*.jsonl")) is None


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_truncated_shard_is_skipped(suffix: str, tmp_path: Path) -> None:
    rows = texts(500)
    damaged = tmp_path / f"b{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": rows}), damaged)
    else:
        packer = gzip.compress if suffix == ".jsonl.gz" else zstd.compress
        damaged.write_bytes(packer(lines(rows)))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    assert estimate_data_size(DataConfig(train_file=str(tmp_path))) is None
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    size = estimate_data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert size.num_documents > 500
    assert not size.is_exact
