"""Compressed files, entered in the middle."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from bsmeta.core.errors import DataError
from bsmeta.data.io import compression
from bsmeta.data.io.lines import LineReader, build_index
from bsmeta.data.io.zstandard import zstd
from tests.conftest import REPOSITORY

READ = """
import resource, sys
from bsmeta.data.io.lines import LineReader
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(LineReader(sys.argv[1]).read(0, 9))
"""


def write_frames(path: Path, window: int, *contents: bytes) -> Path:
    """Writes Zstandard frames whose headers state a window: RFC 8878, section 3.1.1."""
    frames = []
    for content in contents:
        exponent, mantissa = window.bit_length() - 11, 0
        while (1 << 10 + exponent) + (1 << 10 + exponent) // 8 * mantissa < window:
            mantissa += 1
        block = struct.pack("<I", len(content) << 3 | 1)[:3] + content  # the last one, as it is
        frames.append(b"\x28\xb5\x2f\xfd\0" + bytes([exponent << 3 | mantissa]) + block)
    path.write_bytes(b"".join(frames))
    return path


@pytest.mark.parametrize("window", [1 << 10, 1 << 27, (1 << 27) + (1 << 24), 1 << 31])
def test_frames_of_any_window_up_to_2_gib_are_read(tmp_path: Path, window: int) -> None:
    path = write_frames(tmp_path / "a.jsonl.zst", window, b"one\ntwo\n", b"three\n")
    assert compression.read_window_size(path.read_bytes()) == window
    reader = LineReader(str(path))
    assert [bytes(line) for line in reader.read(0, 9)] == [b"one", b"two", b"three"]
    assert reader.damage == ""
    build_index(str(path))


def test_memory_depends_on_the_content_and_not_on_the_window(tmp_path: Path) -> None:
    path = write_frames(tmp_path / "a.jsonl.zst", 1 << 31, *[b"word\n" * 1000] * 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(LineReader(str(path)).read(0, 30_000)) == 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize(
    ("window", "size"), [((1 << 31) + (1 << 28), "2.25 GiB"), (15 << 38, "3,840 GiB")]
)
def test_a_larger_window_is_refused_as_such_and_not_as_damage(
    tmp_path: Path, window: int, size: str
) -> None:
    path = write_frames(tmp_path / "a.jsonl.zst", window, b"one\n")
    message = (
        f"{path}: a frame needs a window of {size}; expected at most 2 GiB. The file is intact"
    )
    with pytest.raises(DataError) as error:
        LineReader(str(path)).read(0, 9)
    assert str(error.value).startswith(message)


def test_a_window_beyond_the_memory_is_refused_as_such_and_not_as_damage(tmp_path: Path) -> None:
    path = write_frames(tmp_path / "a.jsonl.zst", 1 << 31, b"one\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ, str(path), str(2 << 30)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
        env={"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert "a frame needs a window of 2 GiB, and there is not enough memory" in done.stderr
    assert "zstd -dc --long=31 OLD | zstd -o NEW" in done.stderr


def test_the_window_of_a_frame_without_a_descriptor_is_its_content() -> None:
    assert compression.read_window_size(zstd.compress(b"x" * 300)) == 300
    for data in (b"", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x20", b"\x50\x2a\x4d\x18\0\0\0\0"):
        assert compression.read_window_size(data) == 0


@given(st.text("abc", min_size=1, max_size=300), st.integers(1, 7))
def test_a_stream_that_begins_inside_a_byte_is_aligned(text: str, bits: int) -> None:
    data = text.encode()
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = compressor.compress(data) + compressor.flush()
    shifted = int.from_bytes(stream, "little") << (8 - bits) | 0b1010101 >> (bits - 1)
    begun = compression.align_to_byte(shifted.to_bytes(len(stream) + 1, "little"), bits)
    for library in (zlib, isal_zlib):
        assert library.decompressobj(wbits=-15).decompress(begun) == data
