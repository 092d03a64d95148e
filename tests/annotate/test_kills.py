"""Runs that are killed or stopped at any moment, and continued by the same command."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bsmeta.annotate.shard import PART_SUFFIX, ShardFiles, read_journal
from bsmeta.core.errors import ConfigurationError
from tests.annotate.helpers import annotate, rows, some_pages, write_pages
from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S, wait_until

SCRIPT = REPOSITORY / "bsmeta" / "annotate.py"
ANNOTATORS = ["html", "url", "title", "tests.annotate.custom.Slow"]
PAGES = {"a": 300, "b": 40, "c": 200}
CHUNK = 8
WORKERS = 2


def start(
    folder: Path, prepare: Callable[[], None] | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Starts the command; `prepare` runs in the process first."""
    return subprocess.Popen(
        [
            sys.executable, str(SCRIPT), f"input={folder / 'pages'}", f"output={folder / 'out'}",
            f"annotators=[{','.join(ANNOTATORS)}]", f"workers={WORKERS}", f"chunk_pages={CHUNK}",
            "report=false",
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 (no threads here)
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The shards by a single worker without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_pages(folder)
    annotate(str(folder / "pages"), folder / "out", annotators=ANNOTATORS, chunk_pages=CHUNK)
    return shards(folder)


def make_pages(folder: Path) -> None:
    (folder / "pages").mkdir()
    for name, count in PAGES.items():
        write_pages(folder / "pages" / f"{name}.jsonl.gz", some_pages(count))


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.gz*"))}


def count_pages_done(folder: Path) -> int:
    done = 0
    for name in PAGES:
        files = ShardFiles(folder / "out", name)
        journal = read_journal(files.journal) or read_journal(files.journal_part)
        done += journal.sum_counts().pages if journal else 0
    return done


def has_done(folder: Path, pages: float) -> bool:
    return count_pages_done(folder) >= pages


def has_done_or_ended(folder: Path, pages: float, process: subprocess.Popen[str]) -> bool:
    return has_done(folder, pages) or process.poll() is not None


def list_workers(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in path.read_text().split()]


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def have_ended(numbers: list[int]) -> bool:
    return not any(map(is_running, numbers))


@pytest.mark.faults
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_equals_an_undisturbed_one(
    kills: int, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    moments, log = random.Random(kills), tmp_path / "seen"
    make_pages(tmp_path)
    total = sum(PAGES.values())
    for number in range(kills):
        before = count_pages_done(tmp_path)
        wanted = before + moments.random() * 2 * (total - before) / (kills - number)
        process = start(tmp_path, WORDS_LOG=str(log))
        wait_until(partial(has_done_or_ended, tmp_path, min(wanted, total - 1), process))
        if process.poll() is None:
            time.sleep(moments.random() * 0.05)
            workers = list_workers(process)
            process.kill()
            wait_until(partial(have_ended, workers))
        process.communicate()
        assert count_pages_done(tmp_path) >= before
    process = start(tmp_path, WORDS_LOG=str(log))
    _, errors = process.communicate(timeout=STUCK_S)
    assert process.returncode == 0, errors
    assert shards(tmp_path) == undisturbed
    # What was in work is done again, and nothing else.
    seen = log.read_text().count("\n")
    assert total <= seen <= total + kills * 2 * WORKERS * CHUNK


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_to_be_continued(
    number: signal.Signals, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    make_pages(tmp_path)
    process = start(tmp_path, PAGE_S="0.05")
    wait_until(partial(has_done, tmp_path, 100), process)
    os.killpg(process.pid, number)  # as a terminal and a scheduler do
    _, errors = process.communicate(timeout=STUCK_S)
    assert process.returncode == 75
    assert f"stopped by {number.name}; the same command continues where it was" in errors
    assert "Traceback" not in errors
    done = count_pages_done(tmp_path)
    assert 100 <= done < sum(PAGES.values())
    process = start(tmp_path)
    _, errors = process.communicate(timeout=STUCK_S)
    assert (process.returncode, shards(tmp_path)) == (0, undisturbed), errors


@pytest.mark.long
@pytest.mark.faults
def test_workers_that_are_killed_are_replaced(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    make_pages(tmp_path)
    process = start(tmp_path, PAGE_S="0.02")
    for done in (50, 150, 250):
        wait_until(partial(has_done, tmp_path, done), process)
        os.kill(list_workers(process)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=STUCK_S)
    assert (process.returncode, shards(tmp_path)) == (0, undisturbed), errors
    assert errors.count("a worker ended (exit code -9); its chunk is redone") == 3


@pytest.mark.long
@pytest.mark.faults
def test_a_full_disk_is_reported_and_the_run_continues_later(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    make_pages(tmp_path)
    limit = len(undisturbed["a.jsonl.gz"]) // 2
    process = start(tmp_path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    _, errors = process.communicate(timeout=STUCK_S)
    assert process.returncode == 2, errors
    assert "is full" in errors
    assert "repeat the command" in errors
    assert count_pages_done(tmp_path) > 0
    process = start(tmp_path)
    process.communicate(timeout=STUCK_S)
    assert (process.returncode, shards(tmp_path)) == (0, undisturbed)


def test_a_disk_full_at_the_start_of_a_shard_is_reported(tmp_path: Path) -> None:
    make_pages(tmp_path)
    input, out = str(tmp_path / "pages/b.jsonl.gz"), tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # of any file
    try:
        with pytest.raises(ConfigurationError, match=f"the disk of {out} is full"):
            annotate(input, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert annotate(input, out) == 0
    assert len(rows(out / "b.jsonl.gz")) == 40


def test_a_kill_between_the_renames_of_a_shard_is_repaired(tmp_path: Path) -> None:
    make_pages(tmp_path)
    out = tmp_path / "out"
    annotate(str(tmp_path / "pages/b.jsonl.gz"), out)
    files = ShardFiles(out, "b")
    whole = files.shard.read_bytes()
    # Neither was renamed.
    files.journal.rename(files.journal_part)
    files.shard.rename(files.part)
    annotate(str(tmp_path / "pages/b.jsonl.gz"), out)
    assert files.shard.read_bytes() == whole
    # Only the shard was.
    files.journal.rename(files.journal_part)
    written = files.shard.stat().st_mtime_ns
    annotate(str(tmp_path / "pages/b.jsonl.gz"), out)
    assert (files.shard.read_bytes(), files.shard.stat().st_mtime_ns) == (whole, written)
    assert not list(out.rglob(f"*{PART_SUFFIX}"))


@pytest.mark.parametrize("damage", ["torn line", "wrong checksum", "foreign header", "short shard"])
def test_a_damaged_journal_loses_only_its_unverified_pages(damage: str, tmp_path: Path) -> None:
    make_pages(tmp_path)
    out, path = tmp_path / "out", str(tmp_path / "pages/b.jsonl.gz")
    annotate(path, out, chunk_pages=CHUNK)
    files = ShardFiles(out, "b")
    whole = files.shard.read_bytes()
    lines = files.journal.read_bytes().splitlines(keepends=True)
    journal = read_journal(files.journal)
    assert journal is not None
    ends = [entry.end for entry in journal.entries]
    kept = {
        "torn line": b"".join(lines[:3]) + lines[3][:-20],
        "wrong checksum": b"".join(lines[:3]) + lines[3].replace(b'"end":', b'"end":1'),
        "foreign header": b"".join(lines[1:4]),
        "short shard": b"".join(lines[:4]),
    }[damage]
    files.journal.unlink()
    files.shard.unlink()
    files.journal_part.write_bytes(kept)
    cut = ends[2] - 5 if damage == "short shard" else ends[2]
    files.part.write_bytes(whole[:cut])
    annotate(path, out, chunk_pages=CHUNK)
    assert files.shard.read_bytes() == whole
    assert len(rows(files.shard)) == 40
    assert json.loads(files.journal.read_bytes().splitlines()[-1].split(b" ", 1)[1])["is_end"]
