"""Checks of a configuration with its launch."""

from __future__ import annotations

from bsmeta.config.checks.launch import find_launch_problems
from bsmeta.config.launch import Launch
from bsmeta.core.changed_values import replace_values
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig


def test_a_total_batch_that_cannot_be_divided_is_refused() -> None:
    data = DisambiguationDataConfig(batch_size=10)
    config = DisambiguationConfig(data_config=data)
    launch = Launch(source="test", num_processes=4, distributed_type="MULTI_GPU")
    (problem,) = [
        p for p in find_launch_problems(config, launch) if p.key == "data_config.batch_size"
    ]
    assert (problem.found, problem.fix) == (
        "10", "data_config.batch_size=12, or data_config.batch_scope=per_device",
    )  # fmt: skip
    config = replace_values(config, {"data_config.batch_size": 12})
    assert not [
        p for p in find_launch_problems(config, launch) if p.key == "data_config.batch_size"
    ]
