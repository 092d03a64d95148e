"""Only one module computes the global batch."""

from __future__ import annotations

import re
from pathlib import Path

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan, exports_model
from bsmeta.core.changed_values import replace_values
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig

PRODUCT = re.compile(
    r"(batch_size|micro_batch|\bmicro)\s*\*\s*[\w.]*accumulation|accumulation\w*\s*\*\s*[\w.]*batch"
)


def test_a_step_holds_micro_batch_x_accumulation_x_processes() -> None:
    data = DataConfig(per_device_train_batch_size=4)
    plan = BatchPlan.of(CausalLMConfig(data_config=data, gradient_accumulation_steps=8), 2)
    assert plan == BatchPlan(4, 8, 2, key="data_config.per_device_train_batch_size")
    assert (plan.global_batch, plan.rows_per_step) == (64, 64)


def test_a_step_with_varying_rows_is_counted_in_micro_batches() -> None:
    plan = BatchPlan.of(RunConfig(gradient_accumulation_steps=3), 2)
    assert (plan.micro_batch, plan.global_batch, plan.rows_per_step) == (1, 6, None)


def test_a_total_batch_is_divided_among_processes_and_accumulation() -> None:
    data = DisambiguationDataConfig(batch_size=24, batch_scope="total")
    config = DisambiguationConfig(data_config=data, gradient_accumulation_steps=3)
    plan = BatchPlan.of(config, 4)
    assert plan == BatchPlan(2, 3, 4, key="data_config.batch_size", is_total=True)
    assert plan.rows_per_step == 24
    config = replace_values(config, {"data_config.batch_scope": "per_device"})
    assert BatchPlan.of(config, 4).rows_per_step == 24 * 3 * 4


def test_export_steps_selects_the_checkpoints_with_a_model() -> None:
    for every, expected in ((None, [2, 4, 6, 8]), (0, []), (4, [4, 8])):
        assert [step for step in (2, 4, 6, 8) if exports_model(every, step)] == expected


def test_nothing_else_computes_the_global_batch() -> None:
    package = Path(bsmeta.__file__).parent
    files = [*package.rglob("*.py"), *(package.parent / "experiments").rglob("*.py")]
    readers = [str(file.relative_to(package.parent)) for file in files
             if PRODUCT.search(file.read_text(encoding="utf-8"))]  # fmt: skip
    assert readers == ["bsmeta/config/steps.py"]
