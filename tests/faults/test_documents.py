"""Row 12 of the fault matrix, as a user meets it: a run on a shard with broken lines.

The kinds of broken documents and their messages are tested in `tests/data/test_bad_documents.py`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.faults.conftest import Run, events, status

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
TRAIN = REPOSITORY / "bsmeta" / "train.py"
BROKEN = [
    b"{",
    '{"text": "caf\u00e9"}'.encode("latin-1"),
    b'\xef\xbb\xbf{"text": "a byte order mark"}',
    b'{"text": "nul\x00"}',
    b"",
    b'{"text": "long", "extra": "' + b"x" * 10_000_000,
    b'{"text": NaN}',
    b'{"url": "no text"}',
    b'{"text": 5}',
    b'{"text": "' + b"too long " * 3000 + b'"}',
]
KEYS = (
    "max_train_steps=3",
    "save_steps=0",
    "eval_steps=0",
    "data_config.num_streams=1",
    "data_config.window_documents=100",
    "data_config.metadata_config.max_seq_len=64",
    "data_config.max_document_chars=20000",
)


def shard(folder: Path) -> Path:
    """Writes a shard: 31 good documents, the broken lines, and good documents again.

    Another document has no text, which does not count as broken.
    """
    good = [json.dumps({"text": f"Page {n} of many words. " * 10}).encode() for n in range(80)]
    file = folder / "broken.jsonl.gz"
    lines = [*good[:31], *BROKEN, *good[31:], b'{"text": ""}']
    file.write_bytes(gzip.compress(b"\n".join(lines) + b"\n", 1))
    return file


def begin(start: Start, folder: Path, *keys: str) -> Run:
    file = f"data_config.train_file={shard(folder)}"
    demo = ("--config-name", "demo")
    return start(folder / "run", *KEYS, file, *keys, options=demo, processes=1, script=TRAIN)


def test_row_12_strict_names_file_and_line(start: Start, tmp_path: Path) -> None:
    assert begin(start, tmp_path).wait() == 2
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert "broken.jsonl.gz, line 32: not_json" in state["message"]


def test_row_12_skipped_documents_are_counted(start: Start, tmp_path: Path) -> None:
    run = begin(start, tmp_path, "data_config.bad_documents=skip")
    assert run.wait() == 0, run.errors[-3000:]
    counts = [event["counts"] for event in events(tmp_path / "run", "step")]
    skipped = sum(v for each in counts for k, v in each.items() if k.startswith("bad_documents/"))
    assert skipped == len(BROKEN)
    assert sum(each.get("empty_text", 0) for each in counts) == 1


def test_row_12_skipping_has_a_limit(start: Start, tmp_path: Path) -> None:
    keys = ("data_config.bad_documents=skip", "data_config.max_bad_documents=4")
    assert begin(start, tmp_path, *keys).wait() == 2
    assert "max_bad_documents=4" in status(tmp_path / "run")["message"]


def test_row_12_a_damaged_held_out_file_is_refused(start: Start, tmp_path: Path) -> None:
    """It cannot be kept out of training, so the run does not start."""
    held_out = tmp_path / "held_out.jsonl.gz"
    lines = [json.dumps({"text": f"Held out {n}. " * 9}).encode() for n in range(400)]
    whole = gzip.compress(b"\n".join(lines))
    held_out.write_bytes(whole[: len(whole) * 6 // 10])
    keys = (f"data_config.validation_file={held_out}", "data_config.bad_documents=skip")
    assert begin(start, tmp_path, *keys).wait() == 2
    message = status(tmp_path / "run")["message"]
    assert f"data_config.validation_file: {held_out} cannot be kept out of training" in message
