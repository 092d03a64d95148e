"""The learning rate of a run is computed once, from its configuration and its number of steps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import RunConfig


@pytest.mark.parametrize(
    ("values", "warm_up_steps", "decay_start", "shape"),
    [
        ({"num_warmup_steps": 3}, 3, None, "linear"),
        ({"warmup_share": 0.25}, 10, None, "linear"),
        ({"num_warmup_steps": 0, "lr_scheduler_type": "constant"}, 0, None, None),
        ({"num_warmup_steps": 0, "lr_scheduler_type": "wsd"}, 0, 36, "linear"),
        (
            {"warmup_share": 0.5, "lr_scheduler_type": "wsd", "num_decay_steps": 8,
             "decay_shape": "1-sqrt"},
            20, 32, "1-sqrt",
        ),
    ],
)  # fmt: skip
def test_warm_up_decay_and_shape_follow_the_configuration(
    values: dict[str, Any], warm_up_steps: int, decay_start: int | None, shape: str | None
) -> None:
    plan = RatePlan.of(RunConfig(learning_rate=2.0, **values), 40)
    assert (plan.warm_up_steps, plan.decay_start, plan.shape) == (warm_up_steps, decay_start, shape)
    assert plan.compute_rate(warm_up_steps + 1) == 2.0


def test_a_decay_that_begins_in_the_warm_up_is_detected() -> None:
    plans = [
        RatePlan.of(
            RunConfig(lr_scheduler_type="wsd", num_warmup_steps=30, num_decay_steps=steps), 40
        )
        for steps in (10, 11)
    ]
    assert [plan.decays_in_warm_up for plan in plans] == [False, True]


@pytest.mark.parametrize("key", ["warmup_share", "decay_share"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_share_that_is_not_finite_is_refused_without_breaking_other_checks(
    key: str, value: float
) -> None:
    values: dict[str, Any] = {"lr_scheduler_type": "wsd", "num_warmup_steps": 0, key: value}
    assert key in [problem.key for problem in find_value_problems(RunConfig(**values))]
