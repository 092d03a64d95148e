"""Steps, processes and checkpoints in the start-up table."""

from __future__ import annotations

from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.data import DataConfig
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.startup_table import list_table_rows, print_summary
from bsmeta.tasks import TASKS
from bsmeta.tasks.classification.config import ClassificationConfig


def list_rows(config: RunConfig, launch: Launch) -> dict[str, str]:
    """Returns the rows of the table for a run that has not been checked."""
    entry = TASKS[config.task]
    run = CheckedRun(config=config, entry=entry, launch=launch, deepspeed_config=None)
    return dict(list_table_rows(run))


@pytest.mark.parametrize(
    ("values", "evaluations", "checkpoints"),
    [
        ({}, "every 1,000 steps", "every 1,000 steps, and at the end; the last 3 are kept"),
        ({"eval_steps": 0, "save_steps": 0}, "–", "at the end; the last 3 are kept"),
        (
            {"eval_steps": 0, "save_steps": 0, "extra_steps_to_eval_save_at": [5]},
            "at [5]",
            "at [5], and at the end; the last 3 are kept",
        ),
        (
            {"extra_steps_to_eval_save_at": [5], "keep_last_checkpoints": 0},
            "every 1,000 steps, at [5]",
            "every 1,000 steps, at [5], and at the end; all are kept",
        ),
        (
            {"keep_last_checkpoints": 1},
            "every 1,000 steps",
            "every 1,000 steps, and at the end; the last is kept",
        ),
        (
            {"export_steps": 0},
            "every 1,000 steps",
            "every 1,000 steps, and at the end; the last 3 are kept; model/ in none",
        ),
        (
            {"export_steps": 5000, "keep_last_checkpoints": 0},
            "every 1,000 steps",
            "every 1,000 steps, and at the end; all are kept; model/ every 5,000 steps",
        ),
        (
            {"export_dtype": "bfloat16"},
            "every 1,000 steps",
            "every 1,000 steps, and at the end; the last 3 are kept; model/ in bfloat16",
        ),
        ({"evals_per_epoch": 2, "saves_per_epoch": 1}, "2 an epoch", None),
    ],
)
def test_the_start_up_table_shows_intervals_in_words(
    values: dict[str, Any], evaluations: str, checkpoints: str | None
) -> None:
    launch = Launch(source="test", num_processes=1)
    config = CausalLMConfig(data_config=DataConfig(validation_file="x"), **values)
    rows = list_rows(config, launch)
    assert rows["evaluation"] == evaluations
    assert rows["checkpoints"] == (checkpoints or "1 an epoch, and at the end; the last 3 are kept")


@pytest.mark.parametrize(
    ("processes", "kind", "text"),
    [
        (1, "NO", "1 process, precision no"),
        (1, "MULTI_GPU", "1 process, data parallel, precision no"),
        (2, "MULTI_GPU", "2 processes, data parallel, precision no"),
    ],
)
def test_the_start_up_table_shows_the_processes(processes: int, kind: str, text: str) -> None:
    launch = Launch(source="test", num_processes=processes, distributed_type=kind)
    assert list_rows(CausalLMConfig(), launch)["launch"] == text


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(None, "50"), (0.5, "those of 0.5 epochs"), (1, "those of 1 epoch"), (3, "those of 3 epochs")],
)
def test_the_start_up_table_shows_the_length_in_steps_or_epochs(
    epochs: float | None, expected: str
) -> None:
    config = ClassificationConfig(max_train_steps=50, num_train_epochs=epochs)
    rows = list_rows(config, Launch(source="test", num_processes=1))
    assert rows["steps"] == expected


def test_a_piped_table_does_not_break_a_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path = "/data/" + "a-long-folder/" * 12 + "shards.jsonl.gz"
    print_summary([("run folder", "runs/a"), ("training data", path)], [f"{path} is long"])
    assert capsys.readouterr().out.splitlines() == [
        "run folder     runs/a",
        f"training data  {path}",
        f"note: {path} is long",
    ]
