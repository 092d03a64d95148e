"""How many processes hold one copy of a sharded model."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.sharding import find_sharding_problems
from bsmeta.config.launch import Launch

FSDP2 = Launch(source="fsdp2.yaml", num_processes=8, distributed_type="FSDP", fsdp={})


@pytest.mark.parametrize("size", [None, 2, 4, 8])
def test_copies_of_equal_size_are_accepted(size: int | None) -> None:
    assert [*find_sharding_problems(CausalLMConfig(fsdp_shard_processes=size), FSDP2)] == []


@pytest.mark.parametrize(
    ("size", "fix"),
    [
        (3, "fsdp_shard_processes=2, for example"),
        (6, "fsdp_shard_processes=4, for example"),
        (16, "fsdp_shard_processes=8, for example"),
    ],
)
def test_a_size_that_does_not_divide_the_processes_is_refused(size: int, fix: str) -> None:
    (problem,) = find_sharding_problems(CausalLMConfig(fsdp_shard_processes=size), FSDP2)
    assert (problem.key, problem.found) == ("fsdp_shard_processes", str(size))
    assert problem.expected == "a divisor of 8 (processes), above 1"
    assert problem.fix == fix


def test_a_single_process_has_no_copies() -> None:
    launch = Launch(source="fsdp2.yaml", num_processes=1, distributed_type="FSDP", fsdp={})
    (problem,) = find_sharding_problems(CausalLMConfig(fsdp_shard_processes=2), launch)
    assert problem.fix == "fsdp_shard_processes=null, for example"


def test_other_engines_have_no_shards() -> None:
    launch = Launch(source="ddp.yaml", num_processes=8, distributed_type="MULTI_GPU")
    (problem,) = find_sharding_problems(CausalLMConfig(fsdp_shard_processes=2), launch)
    assert problem.expected == "null: only FSDP2 divides a copy of the model among processes"
