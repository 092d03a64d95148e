"""The size of the data in the start-up table, and a note at many epochs."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from bsmeta.config.data import DataConfig
from bsmeta.data.stream.data_size import data_size
from bsmeta.tasks.causal_lm.data_rows import format_count
from tests.conftest import run_warm
from tests.warm import REPOSITORY


def texts(number: int, length: int = 40) -> list[str]:
    """Texts of random words, so that they compress as real ones do."""
    words = random.Random(0)
    return [
        " ".join(f"w{words.randrange(5000)}" for _ in range(length)) for _ in range(number)
    ]  # fmt: skip


def lines(rows: list[str]) -> bytes:
    return "".join(f"{json.dumps({'text': text})}\n" for text in rows).encode()


def test_small_shards_are_counted_exactly(tmp_path: Path) -> None:
    rows = texts(30)
    (tmp_path / "a.jsonl").write_bytes(lines(rows[:10]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(rows[10:])))
    size = data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert (size.documents, size.text_bytes) == (30, sum(len(text) for text in rows))
    assert (size.tokens, size.is_exact) == (size.text_bytes / 4, True)
    assert not size.is_tokenized


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_large_shards_are_estimated_from_their_beginning(suffix: str, tmp_path: Path) -> None:
    rows = texts(40_000)
    packers = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstd.compress}
    for name in ("a", "b"):
        if suffix == ".parquet":
            pq.write_table(pa.table({"text": rows}), tmp_path / f"{name}{suffix}")
        else:
            (tmp_path / f"{name}{suffix}").write_bytes(packers[suffix](lines(rows)))
    size = data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert size.documents == pytest.approx(80_000, rel=0.1)
    assert size.text_bytes == pytest.approx(2 * sum(map(len, rows)), rel=0.1)
    assert not size.is_exact


def test_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(["the the the the"] * 10))
    folder = str(REPOSITORY / "examples" / "tokenizer")
    size = data_size(DataConfig(train_file=str(tmp_path)), folder)
    assert size is not None
    assert size.tokens == pytest.approx(40)
    assert size.is_tokenized


def test_data_elsewhere_has_no_size() -> None:
    assert data_size(DataConfig(train_file="hf://datasets/a/b/*.jsonl.gz")) is None
    assert data_size(DataConfig(train_file="missing/*.jsonl")) is None


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_truncated_shard_is_left_out(suffix: str, tmp_path: Path) -> None:
    rows = texts(500)
    damaged = tmp_path / f"b{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": rows}), damaged)
    else:
        packer = gzip.compress if suffix == ".jsonl.gz" else zstd.compress
        damaged.write_bytes(packer(lines(rows)))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    assert data_size(DataConfig(train_file=str(tmp_path))) is None
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    size = data_size(DataConfig(train_file=str(tmp_path)))
    assert size is not None
    assert size.documents > 500
    assert not size.is_exact


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (999.6, "1.00 k"), (13_107_200_000, "13.1 G"), (327_680, "328 k"),
     (5e13, "50.0 T")],
)  # fmt: skip
def test_numbers_have_three_digits(number: float, shown: str) -> None:
    assert format_count(number) == shown


def table(*arguments: str) -> str:
    """The start-up table on one line, with the notes."""
    script = str(REPOSITORY / "bsmeta" / "train.py")
    done = run_warm([sys.executable, script, *arguments, "check_only=true"], COLUMNS="300")
    assert done.returncode == 0, done.stderr
    return " ".join((done.stdout + done.stderr).split())


def test_a_run_that_repeats_its_data_is_noted(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(lines(["x" * 1300] * 1000))
    shown = table(
        "--config-name", "v2", f"data_config.train_file={tmp_path}/mine.jsonl",
        "data_config.validation_file=null", "eval_steps=0", f"out_dir={tmp_path}/run",
    )  # fmt: skip
    assert (
        "data size about 1.00 k documents, 1.30 MB of text, 325 k tokens (4 bytes each); the run "
        "reads it 40,330 times"
    ) in shown
    assert (
        "note: max_train_steps=100000: 13.1 G tokens are 40,330 times the training data (about "
        "325 k tokens); beyond 4 epochs, repeated data adds little: max_train_steps=9 makes 4 "
        "epochs, or lower the global batch"
    ) in shown


def test_a_run_of_a_few_epochs_has_no_note(tmp_path: Path) -> None:
    shown = table("--config-name", "demo", f"out_dir={tmp_path}/run")
    assert "data size about " in shown
    assert "note: max_train_steps" not in shown
