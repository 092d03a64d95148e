"""Access points: any line from the middle of a file, and indexes that never are of another file."""

from __future__ import annotations

import gzip
import logging
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.data.io import compression
from bsmeta.data.io import lines as index_module
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache, LineReader, build_index
from bsmeta.data.io.zstandard import zstd
from tests.waiting import wait_until

WORDS = [f"word{number}" for number in range(3000)]


def text_lines(count: int) -> list[bytes]:
    generator = random.Random(0)
    return [
        f"{i} {' '.join(generator.choices(WORDS, k=generator.randint(0, 150)))}".encode()
        for i in range(count)
    ]


LINES = text_lines(2500)
DATA = b"\n".join(LINES) + b"\n"


@pytest.fixture(autouse=True)
def _many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SPACING_BYTES", 40_000)
    monkeypatch.setattr(index_module, "MIN_INDEXED_BYTES", 1 << 10)


def write_shard_in_form(tmp_path: Path, form: str) -> str:
    if form == "plain":
        path = tmp_path / "shard.jsonl"
        path.write_bytes(DATA)
    elif form == "frames":
        path = tmp_path / "shard.jsonl.zst"
        parts = [zstd.compress(DATA[at : at + 9999]) for at in range(0, len(DATA), 9999)]
        skippable = struct.pack("<II", 0x184D2A5E, 9) + b"seektable"
        path.write_bytes(skippable + b"".join(parts) + skippable)
    else:
        path = tmp_path / "shard.jsonl.gz"
        cut = len(DATA) // 3 if form == "members" else 0
        parts = [part for part in (DATA[:cut], DATA[cut:]) if part]
        level = 1 if form == "level 1" else 9
        path.write_bytes(b"".join(gzip.compress(part, level) for part in parts))
    return str(path)


@pytest.mark.parametrize("form", ["level 1", "level 9", "members", "plain", "frames"])
def test_every_access_point_leads_to_the_lines_after_it(tmp_path: Path, form: str) -> None:
    path = write_shard_in_form(tmp_path, form)
    index = build_index(path)
    raws = set()
    for line in range(0, len(LINES), 25):
        point = index.find_last_before(line)
        raws.add(point.content_offset if point else -1)
        with open(path, "rb") as file:
            blocks = compression.read_content(path, file, point)
            start = point.content_offset if point else 0
            assert DATA[start:].startswith(next(blocks))
    assert len(raws) > 5
    # Blocks begin anywhere inside a byte.
    bits = {
        index.find_last_before(line).bits
        for line in range(100, len(LINES), 10)
        if index.find_last_before(line)
    }
    assert bits == {0} if form in ("plain", "frames") else len(bits) >= 3


@pytest.mark.parametrize("form", ["level 9", "members", "plain", "frames"])
def test_lines_are_read_in_any_order(tmp_path: Path, form: str) -> None:
    path = write_shard_in_form(tmp_path, form)
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(path)
    reader = LineReader(path, cache)
    generator = random.Random(1)
    for _ in range(60):
        first, count = generator.randrange(2600), generator.choice([1, 7, 400])
        assert reader.read(first, count) == LINES[first : first + count]
    reader.close()


def test_a_point_in_the_first_member_leads_to_all_later_members(tmp_path: Path) -> None:
    path = write_shard_in_form(tmp_path, "members")
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(path)
    assert LineReader(path, cache).read(600, 9000) == LINES[600:]


@pytest.mark.parametrize("form", ["level 1", "level 9", "members", "plain", "frames"])
def test_lines_beyond_the_end_are_empty_without_damage(tmp_path: Path, form: str) -> None:
    path = write_shard_in_form(tmp_path, form)
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(path)
    reader = LineReader(path, cache)
    assert reader.read(len(LINES), 1) == reader.read(len(LINES) + 100, 1) == []
    assert reader.damage == ""


def test_reading_starts_at_an_access_point_instead_of_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard_in_form(tmp_path, "level 9")
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(path)
    reader = LineReader(path, cache)
    monkeypatch.setattr(compression, "decompress_gzip", None)  # what reads from the beginning
    assert reader.read(2000, 3) == LINES[2000:2003]


def test_a_changed_file_has_another_index(tmp_path: Path) -> None:
    path = Path(write_shard_in_form(tmp_path, "level 9"))
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(str(path))
    assert cache.load(str(path))
    path.write_bytes(gzip.compress(b"x" + DATA))
    assert cache.load(str(path)) is None
    assert LineReader(str(path), cache).read(2000, 1) == [LINES[2000]]


def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = Path(write_shard_in_form(tmp_path, "level 9"))
    path.write_bytes(path.read_bytes()[:-100_000])
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(str(path))
    reader = LineReader(str(path), cache)
    assert reader.read(1000, 2) == LINES[1000:1002]
    assert len(reader.read(2000, 1000)) < 1000
    assert reader.damage


def test_reading_a_zst_file_starts_at_a_frame(tmp_path: Path) -> None:
    """The file is damaged before that frame after its index was built, so nothing there is read."""
    path = Path(write_shard_in_form(tmp_path, "frames"))
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    cache.build(str(path))
    data, status = bytearray(path.read_bytes()), path.stat()
    data[1 << 16 : 1 << 17] = bytes(1 << 16)  # the first 64 KB identify the file
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(LineReader(str(path)).read(0, 9999)) < 1000
    reader = LineReader(str(path), cache)
    assert reader.read(2000, 9999) == LINES[2000:]
    assert reader.damage == ""


def test_a_single_frame_has_no_points(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl.zst"
    path.write_bytes(zstd.compress(DATA))
    assert build_index(str(path)).find_last_before(2000) is None
    path.write_bytes(zstd.compress(DATA)[:-1000])
    with pytest.raises(OSError, match="the file ends in the middle of its data"):
        build_index(str(path))


def test_a_damaged_file_has_no_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "shard.jsonl.gz"
    path.write_bytes(b"this is not gzip" * 1000)
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    with pytest.raises(OSError, match="zran"):
        cache.build(str(path))
    caplog.set_level(logging.WARNING)
    cache.request(str(path))
    wait_until(lambda: "no access points for" in caplog.text)


def test_a_requested_index_is_built_in_the_background(tmp_path: Path) -> None:
    path = write_shard_in_form(tmp_path, "level 9")
    cache = IndexCache(Cache(str(tmp_path / "cache")))
    assert cache.load(path) is None
    cache.request(path)
    wait_until(lambda: cache.load(path) is not None)


def test_a_small_file_gets_no_index(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.write_bytes(b"a\n")
    IndexCache(Cache(str(tmp_path / "cache"))).request(str(path))
    assert not (tmp_path / "cache").exists()


def test_the_command_builds_an_index(tmp_path: Path) -> None:
    path = write_shard_in_form(tmp_path, "members")
    command = [sys.executable, "-m", "bsmeta.data.io.lines", "--cache", str(tmp_path / "cache")]
    done = subprocess.run([*command, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}\n"
    assert IndexCache(Cache(str(tmp_path / "cache"))).load(path)
    missing = subprocess.run([*command, "gone.gz"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "gone.gz does not exist" in missing.stderr


DELETES_WHILE_READING = """
import os, sys
from bsmeta.data.io import lines

path, reporting = sys.argv[1], lines.report_each

def delete_after_the_first_block(blocks):
    for number, block in enumerate(reporting(blocks)):
        if number == 0:
            os.remove(path)
        yield block

lines.report_each, lines.BLOCK_BYTES = delete_after_the_first_block, 1 << 16
lines.build_index(path)
print("built")
"""


def test_a_file_deleted_while_its_index_is_built_causes_no_crash(tmp_path: Path) -> None:
    """A crash in the background thread that builds it would end the training."""
    path = write_shard_in_form(tmp_path, "gzip")
    command = [sys.executable, "-c", DELETES_WHILE_READING, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "built\n"), done.stderr
    assert not Path(path).exists()
