"""The log of each process: what is in it, across resumes, and where it cannot be written."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from bsmeta.training.run_folder.logs import Log, ProcessLog

SCRIPT = Path(__file__).parents[1] / "toy_task.py"
SMALL = (
    "trackers=[]",
    "max_train_steps=4",
    "save_steps=2",
    "eval_steps=0",
    "num_warmup_steps=2",
    "gradient_accumulation_steps=1",
    "data_config.per_device_train_batch_size=2",
)
Launch = Callable[..., CompletedProcess[str]]


def list_starts(file: Path) -> list[str]:
    return re.findall(r"^rank (\d of \d) on \S+, process \d+$", file.read_text(), re.M)


def test_every_process_has_a_log(launch: Launch, tmp_path: Path) -> None:
    arguments = (*SMALL, f"out_dir={tmp_path}", "resume_from_checkpoint_dir=latest")
    launch(SCRIPT, *arguments, processes=2)
    logs = [tmp_path / f"log-rank{rank}.txt" for rank in range(2)]
    assert [list_starts(file) for file in logs] == [["0 of 2"], ["1 of 2"]]
    before = logs[1].read_text()
    done = launch(SCRIPT, *arguments, "max_train_steps=6", processes=2)
    assert [list_starts(file) for file in logs] == [["0 of 2"] * 2, ["1 of 2"] * 2]
    assert logs[1].read_text().startswith(before)
    for file in logs:  # what the ranks do, which none of them prints
        assert "DEBUG bsmeta.training.watchdog: step 6: saving" in file.read_text()
    assert "step 6: saving" not in done.stderr


def test_the_log_has_early_lines_and_the_reason_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s3cret" * 6)
    logger = logging.getLogger("bsmeta.test")

    def work() -> None:
        with ProcessLog(1, 2) as log:
            logger.warning("with hf_%s", "s3cret" * 6)
            assert list(tmp_path.iterdir()) == []  # a refused start leaves the folder as it is
            log.open(tmp_path)
            logger.warning("after")
            raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        work()
    logger.warning("later")
    lines = (tmp_path / "log-rank1.txt").read_text().splitlines()
    assert lines[0].startswith("rank 1 of 2 on ")
    assert "WARNING bsmeta.test: with " in lines[1]
    assert "s3cret" not in lines[1]
    assert lines[2].endswith("WARNING bsmeta.test: after")
    assert "the run ends:" in lines[3]
    assert lines[-1] == "OSError: lost"


def test_a_missing_folder_only_loses_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ProcessLog(3, 4) as log:
        log.open(tmp_path / "on another machine")
    assert "log-rank3.txt cannot be written: " in caplog.text


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write({"step": 1})
    assert (tmp_path / "log").read_text() == '{"step": 1}\n'
    log.close()
