"""Everything that may take long reports its progress: otherwise the watchdog would end a run.

Each case has a fixed number of parts, each of which must be reported.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from bsmeta.core import progress
from bsmeta.core.files import hash_file
from bsmeta.data.io.lines import build_index
from bsmeta.data.io.remote import store
from bsmeta.data.io.samples import NUM_SAMPLES
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import Shard, add_sample_hashes
from bsmeta.data.table.csv_file import detect_format, read_rows
from bsmeta.data.table.text_file import detect_encoding
from bsmeta.models import layers
from bsmeta.models.manifest import describe_file
from bsmeta.tasks.causal_lm.evaluation.scorer import open_scorer
from bsmeta.tasks.causal_lm.evaluation.windows import Window
from bsmeta.tasks.spelling.config import DetectionConfig
from bsmeta.tasks.spelling.evaluate import make_baselines
from bsmeta.tasks.spelling.samples import read_samples
from bsmeta.training.checkpoints import shards
from bsmeta.training.checkpoints.shards import read_shards, write_shards
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.task import run_on_all_ranks
from tests.waiting import wait_until

CPU = torch.device("cpu")
MEGABYTE = 1 << 20


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Writes eight megabytes of lines that compress badly, in three formats."""
    generator = np.random.default_rng(0)
    texts = [generator.bytes(MEGABYTE // 2).hex() for _ in range(8)]
    path = tmp_path / "shard.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "shard.jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    rows = [{"text": text} for text in texts]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "shard.parquet", row_group_size=1)
    return path


def read_all(path: Path) -> None:
    reader = open_shard(str(path))
    assert len(reader.read(0, 9)) == 8
    reader.close()


def read_table(rows: int, folder: Path) -> None:
    path = folder / "table.csv"
    path.write_text("text,label\n" + "a text,a label\n" * rows)
    form = detect_format(path, ["text"], separator="auto", encoding="auto")
    assert sum(1 for _ in read_rows(path, form)) == rows


def find_table_encoding(rows: int, folder: Path) -> None:
    path = folder / "table.csv"
    path.write_text("text,label\n" + "a text,ä\n" * rows)
    assert detect_encoding(path) == ("utf-8", None)


def read_spelling_samples(folder: Path) -> None:
    (folder / "texts.txt").write_text("a line of text\n" * 50)
    config = DetectionConfig(datasets=[str(folder)])
    assert len(list(read_samples(config, [folder / "texts.txt"]))) == 50


def score_batches() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    places = np.arange(4, dtype=np.int32)
    window = Window(places, places, places + 1, places > 0, 0)
    with open_scorer(model, CPU) as scorer:
        scorer.score([[window]] * 6)


def download_parts() -> None:
    assert b"".join(store.refuse_slow_response(iter([b"part"] * 7), 10.0)) == b"part" * 7


def retry_five_times() -> None:
    cancelled: Any = SimpleNamespace(wait=lambda _: False)
    retries = store.Retries(5, "start again", cancelled)
    failures = [store.TransientError("HTTP 503") for _ in range(5)]
    assert retries.call("a file", lambda: fail_until_empty(failures)) == "content"


def fail_until_empty(failures: list[store.TransientError]) -> str:
    """Raises the failures one after another, then returns content."""
    if failures:
        raise failures.pop()
    return "content"


def wait_a_minute() -> None:
    cancelled: Any = SimpleNamespace(wait=lambda _: False)
    busy = store.TransientError("HTTP 429", 60.0)
    failures = [busy]
    store.Retries(1, "start again", cancelled).call("a file", lambda: fail_until_empty(failures))


def run_batches_on_all_ranks() -> None:
    batches = [np.array([number]) for number in range(9)]
    run_on_all_ranks(batches, lambda batch: batch, ALONE)


def judge_lines() -> None:
    make_baselines("sed_words")["dictionary"](["a line"] * 4)


CASES: dict[str, tuple[int, Callable[[Path], object]]] = {
    "the hash of a file": (8, hash_file),
    "the hash of a file of a checkpoint": (2, describe_file),
    "the sampled hashes of shards": (
        NUM_SAMPLES,
        lambda shard: add_sample_hashes([Shard("shard", str(shard), shard.stat().st_size)]),
    ),
    "lines": (8, read_all),
    "lines of a gzip file": (8, lambda shard: read_all(shard.with_suffix(".jsonl.gz"))),
    "rows of a Parquet file": (8, lambda shard: read_all(shard.with_suffix(".parquet"))),
    "access points": (8, lambda shard: build_index(str(shard))),
    "access points of a gzip file": (
        8,
        lambda shard: build_index(str(shard.with_suffix(".jsonl.gz"))),
    ),
    "a download": (7, lambda _: download_parts()),
    "a download that is tried again": (5, lambda _: retry_five_times()),
    "a wait that a server asks for": (12, lambda _: wait_a_minute()),
    "rows of a CSV file": (3, lambda shard: read_table(3000, shard.parent)),
    "the encoding of a CSV file": (3, lambda shard: find_table_encoding(3000, shard.parent)),
    "samples of spelling": (50, lambda shard: read_spelling_samples(shard.parent)),
    "a baseline": (4, lambda _: judge_lines()),
    "an evaluation": (6, lambda _: score_batches()),
    "batches that processes share": (9, lambda _: run_batches_on_all_ranks()),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_each_part_of_long_work_is_reported(case: str, shard: Path, reported: list[int]) -> None:
    parts, work = CASES[case]
    work(shard)
    assert len(reported) >= parts


@pytest.mark.parametrize("work", ["its own", "of a child"])
def test_processor_time_is_progress_of_a_library(
    work: str, monkeypatch: pytest.MonkeyPatch, reported: list[int]
) -> None:
    """A child's processor time counts while it runs."""
    monkeypatch.setattr(progress, "SAMPLE_INTERVAL_S", 0.5)
    monkeypatch.setattr(progress._Progress, "is_watched", True)
    with progress.report_opaque_work():
        if work == "its own":
            wait_until(lambda: bool(hashlib.sha256(bytes(50 * MEGABYTE)).digest() and reported))
        else:
            child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            wait_until(lambda: bool(reported), child)
            child.kill()
            child.wait()


@pytest.mark.long
def test_waiting_does_not_count_as_progress_of_a_library(
    monkeypatch: pytest.MonkeyPatch, reported: list[int]
) -> None:
    """In a separate process, because programs left over by other tests work, too."""
    monkeypatch.setattr(progress, "SAMPLE_INTERVAL_S", 2.0)
    monkeypatch.setattr(progress._Progress, "is_watched", True)
    process = os.fork()
    if process == 0:
        with progress.report_opaque_work():
            time.sleep(5)
        os._exit(len(reported))
    assert os.waitpid(process, 0)[1] == 0


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The events of a test, with begin and end of work that reports no progress."""
    happened: list[str] = []

    @contextmanager
    def recorded() -> Iterator[None]:
        happened.append("begin")
        yield
        happened.append("end")

    for module in (layers, shards):
        monkeypatch.setattr(module, "report_opaque_work", recorded)
    return happened


def test_compiling_layers_is_progress(events: list[str]) -> None:
    """Also a layer that is compiled later, in whichever step."""

    def backend(graph: Any, _: object) -> Any:
        events.append("compile")
        return graph.forward

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    layers.compile_layers(model)
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    assert events == []
    compiled(torch.ones(2))
    assert events == ["begin", "compile", "end"]
    compiled(torch.ones(2))
    assert len(events) == 3


def test_writing_and_reading_a_state_is_progress(events: list[str], tmp_path: Path) -> None:
    """But not the wait for other ranks, which torch's functions around them include."""
    write_shards({"weights": torch.ones(2)}, tmp_path / "state", ALONE)
    assert events == ["begin", "end"]
    tensors = {"weights": torch.zeros(2)}
    read_shards(tensors, tmp_path / "state", ALONE)
    assert tensors["weights"].tolist() == [1, 1]
    assert events == ["begin", "end"] * 2


def test_a_lock_is_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        with progress.hold_lock(tmp_path / "lock", "the work"):
            os.write(writing, b"locked")
            time.sleep(1000)
        os._exit(0)
    assert os.read(reading, 6) == b"locked"
    os.kill(holder, 9)
    with progress.hold_lock(tmp_path / "lock", "the work"):
        pass
    os.waitpid(holder, 0)


def test_without_a_terminal_progress_is_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with progress.show_progress_bar("scoring", 1) as show:
        for second, share in ((1, 0.1), (11, 0.25), (12, 0.3), (40, 1.0)):
            clock[0] = 100.0 + second
            show(share)
    assert capsys.readouterr().err.splitlines() == [
        "scoring 25%, 11 s, 33 s left",
        "scoring 100%, 40 s, 0 s left",
    ]
    with progress.show_progress_bar("scoring", 1, shown=False) as show:
        clock[0] = 200.0
        show(0.5)
    assert capsys.readouterr().err == ""
