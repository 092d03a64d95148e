"""What the Hub sends in error is noticed, leaves the cache, and costs no document."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io import compression
from bsmeta.data.io.file_ref import HUB, FileRef, RemoteSettings
from bsmeta.data.io.lines import LineReader, build_index
from bsmeta.data.io.remote.remote_file import BadCopyError, FileBlocks
from bsmeta.data.io.remote.stores import find_file_store
from bsmeta.data.io.shards import list_shards
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.helpers import run, same, small_config
from tests.data.hub_server import Answer, Fault, Hub, is_content

generator = random.Random(3)
LINES = [
    json.dumps({"text": " ".join(generator.choices(["ab", "cde", "fg", "hijk"], k=40))}).encode()
    for _ in range(300)
]
PLAIN = b"".join(line + b"\n" for line in LINES)
GZIP = b"".join(  # a member in each block of 1000 bytes, filled up with zeros
    gzip.compress(b"".join(line + b"\n" for line in LINES[start : start + 25]), mtime=0).ljust(
        1000, b"\0"
    )
    for start in range(0, 300, 25)
)
assert len(GZIP) == 12_000


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and unpacks a file in parts, like large files."""
    monkeypatch.setattr(compression, "BLOCK_BYTES", 1 << 11)
    monkeypatch.setattr(compression, "COMPRESSED_BLOCK_BYTES", 1000)


def config(folder: Path, **values: Any) -> DataConfig:
    url = "hf://datasets/owner/name/*.jsonl*"
    return small_config(folder, train_file=url, cache_dir=str(folder / "cache"), **values)


def shard(hub: Hub, folder: Path, name: str, content: bytes, **values: Any) -> FileRef:
    """Returns a reference to the only file of the server."""
    hub.files = hub.listed = {name: content}
    (listed_shard,) = list_shards(config(folder, **values))
    assert isinstance(listed_shard.path, FileRef)
    return listed_shard.path


def read_lines(ref: FileRef) -> tuple[list[bytes], str]:
    """Returns all lines, and the damage after them."""
    reader = LineReader(ref)
    lines: list[bytes] = []
    while some := reader.read(reader.line, 7):
        lines += map(bytes, some)
    reader.close()
    return lines, reader.damage


def corrupting(change: Callable[[bytes], bytes], start: int, times: int = 1) -> Fault:
    """Changes the block at byte `start` in the first `times` answers, keeping its length."""
    left = [times]

    def fault(answer: Answer) -> bool:
        if not is_content(answer) or answer.asked()[0] != start or not left[0]:
            return False
        left[0] -= 1
        first, last = answer.asked()
        (content,) = answer.hub.files.values()
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        answer.give(206, headers, change(content[first : last + 1]))
        return True

    return fault


def page(part: bytes) -> bytes:
    """Replaces the block by an error page."""
    return b"<html>the proxy is asleep</html>".ljust(len(part), b" ")


def flip(bit: int) -> Callable[[bytes], bytes]:
    """Flips one bit of the block."""

    def flipped(part: bytes) -> bytes:
        value = bytearray(part)
        value[bit // 8] ^= 1 << bit % 8
        return bytes(value)

    return flipped


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("start", [0, 2000, 3000])
def test_an_error_page_in_a_gzip_file_is_refetched_without_losing_lines(
    hub: Hub, tmp_path: Path, start: int, kept: bool
) -> None:
    ref = shard(hub, tmp_path, "s.jsonl.gz", GZIP, hub_cache_gb=20 if kept else 0)
    hub.faults = [corrupting(page, start)]
    assert read_lines(ref) == (LINES, "")
    assert read_lines(ref) == (LINES, "")


def test_a_flipped_bit_in_a_gzip_file_is_never_trained_on_unnoticed(
    hub: Hub, tmp_path: Path
) -> None:
    outcomes = set()
    for bit in range(0, 8000, 397):
        ref = shard(hub, tmp_path / str(bit), "s.jsonl.gz", GZIP)
        hub.faults = [corrupting(flip(bit), 2000)]
        try:
            assert read_lines(ref) == (LINES, "")
            outcomes.add("continued")
        except BadCopyError:
            outcomes.add("ended")
        assert read_lines(ref) == (LINES, "")
    assert outcomes == {"continued", "ended"}


def test_a_flipped_bit_in_a_plain_file_ends_the_run_and_is_gone_in_the_next(
    hub: Hub, tmp_path: Path
) -> None:
    ref = shard(hub, tmp_path, "s.jsonl", PLAIN)
    letter = PLAIN.index(b"ab", 4000) - 4000
    hub.faults = [corrupting(flip(8 * letter + 1), 4000)]
    with pytest.raises(DataError, match=r"jsonl: the downloaded copy \(in .*/hub\) did not have"):
        read_lines(ref)
    hub.requests.clear()
    assert read_lines(ref) == (LINES, "")
    assert not hub.requests


def test_a_file_of_one_block_is_compared_before_anything_of_it_is_read(
    hub: Hub, tmp_path: Path
) -> None:
    ref = shard(hub, tmp_path, "s.jsonl", PLAIN[:900])
    hub.faults = [corrupting(flip(300), 0)]
    assert b"\n".join(read_lines(ref)[0]) == PLAIN[:900].strip(b"\n")


def test_a_hub_that_always_sends_other_content_ends_the_run(hub: Hub, tmp_path: Path) -> None:
    ref = shard(hub, tmp_path, "s.jsonl.gz", GZIP)
    hub.faults = [corrupting(page, 2000, times=10**6)]
    with pytest.raises(
        DataError, match=f"twice sent other content than it lists .hash {ref.etag}."
    ):
        read_lines(ref)
    assert not [path for path in tmp_path.glob("cache/hub/blocks/*/*") if path.is_file()]


def test_a_file_damaged_on_the_hub_is_read_up_to_the_damage(hub: Hub, tmp_path: Path) -> None:
    content = GZIP[:2000] + page(b" " * 1000) + GZIP[3000:]
    lines, damage = read_lines(shard(hub, tmp_path, "s.jsonl.gz", content))
    assert lines == LINES[: len(lines)]
    assert 0 < len(lines) < 300
    assert "cannot be decompressed" in damage


@pytest.mark.parametrize("bad_documents", ["strict", "skip"])
def test_a_run_recovers_from_a_bad_copy_without_skipping_documents(
    hub: Hub, tmp_path: Path, bad_documents: str
) -> None:
    shard(hub, tmp_path, "s.jsonl.gz", GZIP)
    values = {"num_streams": 1, "bad_documents": bad_documents}
    whole = run(config(tmp_path / "1", **values), 30)
    hub.faults = [corrupting(page, 1000)]
    disturbed = run(config(tmp_path / "2", **values), 30)
    assert same(disturbed, whole)


def test_a_strict_run_that_meets_a_flipped_bit_names_the_copy(hub: Hub, tmp_path: Path) -> None:
    ref = shard(hub, tmp_path, "s.jsonl", PLAIN)
    quote = PLAIN.index(b'": "', 1000) - 1000
    hub.faults = [corrupting(flip(8 * quote), 1000)]
    strict = config(tmp_path, num_streams=1, bad_documents="strict")
    with pytest.raises(DataError, match="did not have the listed hash"):
        run(strict, 4)
    assert read_lines(ref) == (LINES, "")
    assert len(run(strict, 4).steps) == 4


def test_no_access_points_are_built_from_a_bad_copy(hub: Hub, tmp_path: Path) -> None:
    refused = 0
    for bit in range(0, 8000, 797):
        ref = shard(hub, tmp_path / str(bit), "s.jsonl.gz", GZIP)
        right = build_index(ref).arrays
        FileBlocks(ref).drop()
        hub.faults = [corrupting(flip(bit), 2000)]
        try:
            built = build_index(ref).arrays
        except (DataError, OSError):
            refused += 1
        else:
            assert {key: value.tobytes() for key, value in built.items()} == {
                key: value.tobytes() for key, value in right.items()
            }
    assert refused > 5


def test_a_bad_document_is_named_offline(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rest of the file is not in the cache."""
    content = b"".join(line + b"\n" for line in [LINES[0], b"{", *LINES[1:]])
    shard(hub, tmp_path, "s.jsonl", content)
    strict = config(tmp_path, num_streams=1, bad_documents="strict", window_documents=1)
    with pytest.raises(DataError, match="line 2: not_json"):
        run(strict, 4)
    for block in (tmp_path / "cache/hub/blocks").glob("*/*"):
        if block.read_bytes()[:100] not in content[:4000]:
            block.unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="line 2: not_json"):
        run(strict, 4)


def test_a_bad_copy_of_a_held_out_file_is_refused_and_replaced(hub: Hub, tmp_path: Path) -> None:
    hub.files = hub.listed = {"test.jsonl": PLAIN}
    quote = PLAIN.index(b'": "', 1000) - 1000
    hub.faults = [corrupting(flip(8 * quote), 1000)]
    held_out_config = DataConfig(
        dataset_name="owner/name", validation_file="test.jsonl", cache_dir=str(tmp_path)
    )
    with pytest.raises(DataError, match="did not have the listed hash"):
        HeldOutDocuments(
            held_out_config, max_documents=None, deduplicate=False, training_overlap=None
        )
    assert (
        len(
            HeldOutDocuments(
                held_out_config, max_documents=None, deduplicate=False, training_overlap=None
            )
        )
        == 300
    )


def answer_encoded(answer: Answer) -> None:
    answer.give(206, {"Content-Encoding": "gzip", "Content-Range": "bytes 0-999/1"}, b"x")


def answer_short_page(answer: Answer) -> None:
    answer.give(200, {"Content-Type": "text/html"}, b"<html>")


def answer_without_length(answer: Answer) -> None:
    answer.send_response(200)
    answer.end_headers()
    answer.wfile.write(GZIP)
    answer.close_connection = True


def answer_other_length(answer: Answer) -> None:
    first, last = answer.asked()
    answer.give(206, {"Content-Range": f"bytes {first}-{last}/{len(GZIP)}"}, b"<html>")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (answer_encoded, "Content-Encoding gzip, which was not requested"),
        (answer_short_page, r"HTTP 200 with 6 bytes \(text/html\) instead of a part of the file"),
        (
            answer_without_length,
            r"HTTP 200 with an unknown number of bytes \(no Content-Type\) instead",
        ),
        (answer_other_length, "6 bytes in an answer that announces bytes 2000-2999/"),
    ],
)
def test_an_answer_that_is_not_a_part_of_the_file_is_retried_and_named(
    hub: Hub, tmp_path: Path, wrong: Callable[[Answer], None], message: str
) -> None:
    ref = shard(hub, tmp_path, "s.jsonl.gz", GZIP, hub_retries=3)
    left = [3]

    def fault(answer: Answer) -> bool:
        if not is_content(answer) or answer.asked()[0] != 2000 or not left[0]:
            return False
        left[0] -= 1
        wrong(answer)
        return True

    hub.faults = [fault]
    assert read_lines(ref) == (LINES, "")
    ref = shard(hub, tmp_path / "2", "s.jsonl.gz", GZIP, hub_retries=3)
    left[0] = 10**6
    with pytest.raises(DataError, match=f"byte 2000 of {len(GZIP)}: given up after 4 .*{message}"):
        read_lines(ref)


def test_small_files_are_verified_by_their_git_hash() -> None:
    content = b"hello\n"
    assert hashlib.sha256(content).hexdigest().startswith("5891b5b522d5df08")
    for etag, right in [("ce013625030ba8dba906f756967f9e9ca394464a", True), ("0" * 40, False)]:
        ref = FileRef(6, etag, RemoteSettings("", 0, 0), HUB, "a/b", "f", "c")
        verifier = find_file_store(ref).make_verifier(ref)
        verifier.update(content[:2])
        verifier.update(content[2:])
        assert verifier.matches_hash() is right
