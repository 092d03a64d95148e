"""The size of the data in the start-up table, and a note at many epochs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bsmeta.tasks.causal_lm.data_rows import format_count
from tests.conftest import run_warm
from tests.data.text_lines import lines
from tests.warm import REPOSITORY


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (999.6, "1.00 k"), (13_107_200_000, "13.1 G"), (327_680, "328 k"),
     (5e13, "50.0 T")],
)  # fmt: skip
def test_numbers_are_shown_with_three_digits(number: float, shown: str) -> None:
    assert format_count(number) == shown


def table(*arguments: str) -> str:
    """Returns the start-up table on one line, with the notes."""
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
