"""The command that continues a run, printed when a signal has ended it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bsmeta.training.run import describe_resuming_command
from tests.waiting import wait_until
from tests.warm import ENVIRONMENT, REPOSITORY, Warm


@pytest.mark.parametrize(
    ("arguments", "processes", "command"),
    [
        (
            ["bsmeta/train.py", "--config-name", "demo", "overwrite_out_dir=true"], 1,
            "python bsmeta/train.py --config-name demo resume_from_checkpoint_dir=latest",
        ),
        (
            ["bsmeta train", "resume_from_checkpoint_dir=a/checkpoint-2step", "run_name=a b"], 1,
            "bsmeta train 'run_name=a b' resume_from_checkpoint_dir=latest",
        ),
        (
            ["bsmeta/train.py", "out_dir=x"], 2,
            "the same launch, with resume_from_checkpoint_dir=latest (and without "
            "overwrite_out_dir)",
        ),
    ],
)  # fmt: skip
def test_the_command_repeats_the_arguments_and_resumes(
    arguments: list[str], processes: int, command: str
) -> None:
    assert describe_resuming_command(arguments, processes) == command


def test_the_command_is_printed_after_an_interrupt(tmp_path: Path) -> None:
    script = str(REPOSITORY / "bsmeta" / "train.py")
    started = Warm(
        [
            sys.executable, script, "--config-name", "demo", "trackers=[]", "eval_steps=0",
            "data_config.metadata_config.max_seq_len=64", f"out_dir={tmp_path}/run",
        ],
        ENVIRONMENT,
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() and '"event": "step"' in metrics.read_text(), started)
        os.kill(started.pid, signal.SIGINT)
        output, errors = started.communicate()
    finally:
        started.kill()
    assert started.wait() == 75, errors
    assert f"to continue: python {script} --config-name demo trackers=[]" in output.replace("'", "")
    assert output.rstrip().endswith("resume_from_checkpoint_dir=latest")
