"""Single values of the configuration: the fix of each refusal is itself accepted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bsmeta.config.checks import data, values
from bsmeta.config.checks.data import data_problems
from bsmeta.config.checks.values import value_problems
from bsmeta.config.compose import compose
from bsmeta.config.schema import TrainConfig

WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(values.AT_LEAST, (-1, math.nan)),
    **{key: (most + 1,) for key, most in values.AT_MOST.items()},
    **dict.fromkeys(values.FINITE, (math.inf,)),
    **dict.fromkeys(values.ABOVE_ZERO, (0, -1, math.nan, math.inf)),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), (1, 2, math.nan)),
}


@pytest.mark.parametrize("key", WRONG)
def test_the_fix_of_a_number_is_accepted(key: str) -> None:
    for value in WRONG[key]:
        config = compose(TrainConfig, "demo")
        setattr(config, key, value)
        found = [problem for problem in value_problems(config) if problem.key == key]
        assert len(found) == 1, value
        assert found[0].fix.endswith(", for example") or found[0].fix == f"{key}=0"
        fixed = compose(TrainConfig, "demo", [found[0].fix.removesuffix(", for example")])
        assert [*value_problems(fixed)] == []


@pytest.mark.parametrize("name", data.AT_LEAST)
def test_the_fix_of_a_number_of_the_data_is_accepted(name: str) -> None:
    config = compose(TrainConfig, "demo")
    setattr(config.data_config, name, -1)
    (problem,) = data_problems(config.data_config)
    fixed = compose(TrainConfig, "demo", [problem.fix.removesuffix(", for example")])
    assert [*data_problems(fixed.data_config)] == []
