"""Reading lines: any line from anywhere, and files that end too early."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.io.cache import Cache
from bsmeta.data.io.compression import BLOCK_BYTES
from bsmeta.data.io.lines import IndexCache, LineReader
from bsmeta.data.io.shard_lines import has_line
from bsmeta.data.io.zstandard import zstd

LINES = [b"%d %s" % (i, b"x" * (i * 37 % 91)) for i in range(500)]


@pytest.fixture(scope="module", params=["jsonl", "jsonl.gz", "jsonl.zst"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lines") / f"shard.{request.param}"
    data = b"\n".join(LINES) + b"\n"
    if path.suffix == ".gz":  # of several members, as `cat a.gz b.gz` makes
        data = gzip.compress(data[:5000]) + gzip.compress(data[5000:])
    if path.suffix == ".zst":
        data = zstd.compress(data[:5000]) + zstd.compress(data[5000:])
    path.write_bytes(data)
    return str(path)


@given(st.lists(st.tuples(st.integers(0, 520), st.integers(1, 120)), min_size=1, max_size=6))
def test_lines_are_read_in_any_order(shard: str, requests: list[tuple[int, int]]) -> None:
    reader = LineReader(shard)
    for first, count in requests:
        assert reader.read(first, count) == LINES[first : first + count]
    reader.close()


def test_has_line_is_false_after_the_last_line(shard: str, tmp_path: Path) -> None:
    assert has_line(shard, 499, IndexCache(Cache(str(tmp_path))))
    assert not has_line(shard, 500, IndexCache(Cache(str(tmp_path))))


def test_the_last_line_may_lack_its_newline_and_blank_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl"
    path.write_bytes(b"a\n\nb")
    assert LineReader(str(path)).read(0, 9) == [b"a", b"", b"b"]


@pytest.mark.parametrize("name", ["shard.jsonl", "shard.jsonl.gz"])
def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path, name: str) -> None:
    mark = b"\xef\xbb\xbf"
    content = mark + b'{"text": "a"}\n' + mark + b'{"text": "b"}\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    reader = LineReader(str(path))
    expected = [b'{"text": "a"}', mark + b'{"text": "b"}']
    assert reader.read(0, 9) == expected
    assert reader.read(1, 1) == expected[1:]
    assert reader.read(0, 1) == expected[:1]


def test_a_line_longer_than_a_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl"
    long = b"y" * (3 * BLOCK_BYTES + 7)
    path.write_bytes(b"a\n" + long + b"\nb\n")
    assert LineReader(str(path)).read(0, 9) == [b"a", long, b"b"]


@pytest.mark.parametrize("kept", [0.5, 0.99])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_truncated_file_yields_its_whole_lines_and_names_the_damage(
    tmp_path: Path, suffix: str, kept: float
) -> None:
    data = b"".join(b"%d\n" % (i * 7919) for i in range(100_000))
    compress = gzip.compress if suffix == "gz" else zstd.compress
    path = tmp_path / f"shard.jsonl.{suffix}"
    path.write_bytes(compress(data)[: int(kept * len(compress(data)))])
    reader = LineReader(str(path))
    lines = reader.read(0, 200_000)
    assert lines == [b"%d" % (i * 7919) for i in range(len(lines))]
    assert 0 < len(lines) < 100_000
    assert reader.damage == "the file ends in the middle of its data"


def test_a_file_that_is_not_gzip_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(b'{"text": "plain"}\n')
    reader = LineReader(str(path))
    assert reader.read(0, 1) == []
    assert reader.damage.startswith("the file is not compressed with gzip, although its name ends")


def test_damaged_gzip_data_is_reported_with_its_line(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"".join(b"%d\n" % (i * 7919) for i in range(200_000))))
    data[len(data) // 2 : len(data) // 2 + 100] = b"\xff" * 100
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(data)
    reader = LineReader(str(path))
    assert len(reader.read(0, 200_000)) < 200_000
    assert reader.damage.startswith("the data cannot be decompressed: ")
    assert reader.read(reader.line, 1) == []


def test_zeros_after_the_last_member_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(gzip.compress(b"a\n") + bytes(700) + gzip.compress(b"b\n") + bytes(700))
    reader = LineReader(str(path))
    assert reader.read(0, 9) == [b"a", b"b"]
    assert reader.damage == ""


def test_other_data_after_the_last_member_is_not_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(gzip.compress(b"a\nb\n") + b"junk")
    reader = LineReader(str(path))
    assert reader.read(0, 9) == [b"a", b"b"]
    assert "other data was appended" in reader.damage


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_an_empty_compressed_file_is_damaged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"shard.jsonl.{suffix}"
    path.write_bytes(b"")
    reader = LineReader(str(path))
    assert reader.read(0, 9) == []
    assert reader.damage.startswith("the file is empty")


def test_a_shard_without_lines_is_empty_and_not_damaged(tmp_path: Path) -> None:
    contents = {"jsonl": b"", "jsonl.gz": gzip.compress(b""), "jsonl.zst": zstd.compress(b"")}
    for suffix, content in contents.items():
        path = tmp_path / f"shard.{suffix}"
        path.write_bytes(content)
        reader = LineReader(str(path))
        assert reader.read(0, 9) == []
        assert reader.damage == ""


def test_content_buffered_by_the_decompressor_is_not_lost(tmp_path: Path) -> None:
    """A high compression ratio: the last content is returned after the end of the file was read."""
    path = tmp_path / "shard.jsonl.gz"
    line = b"a" * (2 * BLOCK_BYTES - 1)
    path.write_bytes(gzip.compress(b"\n".join([line] * 4)))
    reader = LineReader(str(path))
    assert reader.read(0, 9) == [line] * 4
    assert reader.damage == ""
