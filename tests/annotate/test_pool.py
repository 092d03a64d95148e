"""Chunks of the records of a file, and the state of a worker that its parent reads."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import pytest

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.inputs.sources import identify_files, list_inputs
from bsmeta.annotate.pool import (
    PAGE_STEP,
    Chunk,
    Status,
    Stopped,
    read_chunks,
    stop_at_signals,
)
from tests.annotate.helpers import some_pages, write_pages


def list_chunks(path: Path, skip: int = 0, **settings: float) -> list[Chunk]:
    """Returns the chunks of a file whose first byte is the 1,000th of all files."""
    config = AnnotateConfig(input=str(path), **settings)
    (file,) = identify_files(list_inputs(config.input))
    first = Chunk(3, names=frozenset({"url"}), position=1000)
    return list(read_chunks(config, first, file, skip))


def test_a_chunk_has_at_most_its_number_of_pages(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "a.jsonl.gz", some_pages(7))
    chunks = list_chunks(path, chunk_pages=3)
    assert [len(chunk.items) for chunk in chunks] == [3, 3, 1, 0]
    assert {(chunk.shard, chunk.names) for chunk in chunks} == {(3, frozenset({"url"}))}
    assert chunks[-1].position == 1000 + path.stat().st_size
    assert [chunk.rows for chunk in chunks] == [[None] * 3, [None] * 3, [None], []]


def test_a_chunk_ends_after_the_page_that_fills_its_bytes(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "a.jsonl.gz", some_pages(3))
    assert [len(chunk.items) for chunk in list_chunks(path, chunk_mb=1e-6)] == [1, 1, 1, 0]


def test_finished_pages_are_skipped(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "a.jsonl.gz", some_pages(5))
    whole, rest = list_chunks(path), list_chunks(path, skip=3)
    assert rest[0].items == whole[0].items[3:]


def test_a_damaged_file_ends_with_its_problem(tmp_path: Path) -> None:
    path = write_pages(tmp_path / "a.jsonl.gz", some_pages(5))
    path.write_bytes(gzip.compress(b"") + path.read_bytes()[:200])
    end = list_chunks(path)[-1]
    assert end.items == []
    assert str(path) in end.problem


def test_the_status_has_the_page_and_the_step() -> None:
    status = Status()
    assert (status.read_item_and_step(), status.measure_page_seconds()) == (None, 0.0)
    status.begin_page(4)
    assert status.read_item_and_step() == (4, PAGE_STEP)
    status.begin_step(2)
    assert status.read_item_and_step() == (4, 2)
    assert status.measure_page_seconds() >= 0
    status.end_page()
    assert (status.read_item_and_step(), status.measure_page_seconds()) == (None, 0.0)


def test_a_signal_ends_the_program_once_and_its_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM"), stop_at_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_at_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
