"""Runs that fail end a build: with the message of a refusal, or with the end of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.core.errors import UserError
from bsmeta.ready.training import TrainingJob, train_jobs


@pytest.mark.long
def test_a_refused_run_ends_the_build_with_its_message(tmp_path: Path) -> None:
    overrides = {"data_config.csv": str(tmp_path / "missing.jsonl"), "out_dir": str(tmp_path / "a")}
    job = TrainingJob("classifier", "build_classification", tmp_path / "log", overrides)
    with pytest.raises(
        UserError, match=r"(?s)the training of the classifier was refused:\n.*missing"
    ):
        train_jobs("building", [job])
