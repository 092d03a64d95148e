"""The global batch is computed in one place; steps and processes in the start-up table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.launch import Launch
from bsmeta.config.launch_checks import launch_problems
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan, exports_model, print_summary, summary
from bsmeta.tasks import TASKS
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig

PRODUCT = re.compile(
    r"(batch_size|micro_batch|\bmicro)\s*\*\s*[\w.]*accumulation|accumulation\w*\s*\*\s*[\w.]*batch"
)


def test_a_step_holds_micro_batch_x_accumulation_x_processes() -> None:
    data = DataConfig(per_device_train_batch_size=4)
    plan = BatchPlan.of(CausalLMConfig(data_config=data, gradient_accumulation_steps=8), 2)
    assert plan == BatchPlan(4, 8, 2, key="data_config.per_device_train_batch_size")
    assert (plan.global_batch, plan.rows_per_step) == (64, 64)


def test_where_rows_vary_a_step_is_counted_in_micro_batches() -> None:
    plan = BatchPlan.of(RunConfig(gradient_accumulation_steps=3), 2)
    assert (plan.micro_batch, plan.global_batch, plan.rows_per_step) == (1, 6, None)


def test_a_total_batch_is_divided_among_processes_and_accumulation() -> None:
    data = DisambiguationDataConfig(batch_size=24, batch_scope="total")
    config = DisambiguationConfig(data_config=data, gradient_accumulation_steps=3)
    plan = BatchPlan.of(config, 4)
    assert plan == BatchPlan(2, 3, 4, key="data_config.batch_size", is_total=True)
    assert plan.rows_per_step == 24
    data.batch_scope = "per_device"
    assert BatchPlan.of(config, 4).rows_per_step == 24 * 3 * 4


def test_the_checkpoints_with_a_model() -> None:
    for every, expected in ((None, [2, 4, 6, 8]), (0, []), (4, [4, 8])):
        config = RunConfig(export_steps=every)
        assert [step for step in (2, 4, 6, 8) if exports_model(config, step)] == expected


def test_a_total_batch_that_cannot_be_divided_is_refused() -> None:
    data = DisambiguationDataConfig(batch_size=10)
    config = DisambiguationConfig(data_config=data)
    launch = Launch(source="test", num_processes=4, distributed_type="MULTI_GPU")
    (problem,) = [p for p in launch_problems(config, launch) if p.key == "data_config.batch_size"]
    assert (problem.found, problem.fix) == (
        "10", "data_config.batch_size=12, or data_config.batch_scope=per_device",
    )  # fmt: skip
    data.batch_size = 12
    assert not [p for p in launch_problems(config, launch) if p.key == "data_config.batch_size"]


def test_nothing_else_computes_the_global_batch() -> None:
    package = Path(bsmeta.__file__).parent
    files = [*package.rglob("*.py"), *(package.parent / "experiments").rglob("*.py")]
    found = [str(file.relative_to(package.parent)) for file in files
             if PRODUCT.search(file.read_text(encoding="utf-8"))]  # fmt: skip
    assert found == ["bsmeta/config/steps.py"]


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
        ({"evals_per_epoch": 2, "saves_per_epoch": 1}, "2 an epoch", None),
    ],
)
def test_intervals_in_the_start_up_table(
    values: dict[str, Any], evaluations: str, checkpoints: str | None
) -> None:
    launch = Launch(source="test", num_processes=1)
    config = CausalLMConfig(data_config=DataConfig(validation_file="x"), **values)
    rows = dict(summary(config, launch, TASKS["causal_lm"]))
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
def test_processes_in_the_start_up_table(processes: int, kind: str, text: str) -> None:
    launch = Launch(source="test", num_processes=processes, distributed_type=kind)
    assert dict(summary(CausalLMConfig(), launch, TASKS["causal_lm"]))["launch"] == text


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(None, "50"), (0.5, "those of 0.5 epochs"), (1, "those of 1 epoch"), (3, "those of 3 epochs")],
)
def test_the_length_in_the_start_up_table(epochs: float | None, expected: str) -> None:
    config = ClassificationConfig(max_train_steps=50, num_train_epochs=epochs)
    rows = dict(summary(config, Launch(source="test", num_processes=1), TASKS["classification"]))
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
