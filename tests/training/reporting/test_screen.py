"""The progress bar of a run: step and time left are whole at any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.terminal import run_in_terminal
from tests.warm import REPOSITORY


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_step_and_time_left_fit_into_the_width(width: int, tmp_path: Path) -> None:
    code, received = run_in_terminal(
        [
            str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo", "trackers=[]",
            "max_train_steps=12", "num_warmup_steps=0", "eval_steps=0", "save_steps=0",
            "gradient_accumulation_steps=1", "data_config.metadata_config.max_seq_len=64",
            f"out_dir={tmp_path}/run",
        ],
        COLUMNS=str(width),
    )  # fmt: skip
    assert code == 0, received
    plain = re.sub(r"\x1b\[[0-9;]*m", "", received)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", plain).replace("\r", "\n")
    bars = [line.rstrip() for line in plain.split("\n") if line.startswith("training ")]
    assert bars, plain[-2000:]
    steps = [bar for bar in bars if "loss" in bar]
    assert all(re.search(r" \d+/12 +[\d:-]{7} loss \d+\.\d{4}", bar) for bar in steps), bars
    assert all(len(bar) <= width for bar in bars)
    assert ("data wait" in steps[-1]) == (width == 120)
