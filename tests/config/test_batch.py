"""The global batch is computed in one place."""

from __future__ import annotations

import re
from pathlib import Path

import bsmeta
from bsmeta.config.batch import BatchPlan
from bsmeta.config.data import DataConfig
from bsmeta.config.schema import TrainConfig

PRODUCT = re.compile(
    r"(batch_size|micro_batch|\bmicro)\s*\*\s*[\w.]*accumulation|accumulation\w*\s*\*\s*[\w.]*batch"
)


def test_a_step_holds_micro_batch_x_accumulation_x_processes() -> None:
    data = DataConfig(per_device_train_batch_size=4)
    plan = BatchPlan.of(TrainConfig(data_config=data, gradient_accumulation_steps=8), 2)
    assert plan == BatchPlan(micro_batch=4, accumulation=8, processes=2)
    assert plan.global_batch == 64


def test_nothing_else_computes_the_global_batch() -> None:
    package = Path(bsmeta.__file__).parent
    files = [*package.rglob("*.py"), *(package.parent / "experiments").rglob("*.py")]
    found = [str(file.relative_to(package.parent)) for file in files
             if PRODUCT.search(file.read_text(encoding="utf-8"))]  # fmt: skip
    assert found == ["bsmeta/config/batch.py"]
