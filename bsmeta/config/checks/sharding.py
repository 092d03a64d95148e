"""Checks of how FSDP2 divides the processes: into copies of the model, each sharded (HSDP)."""

from __future__ import annotations

from collections.abc import Iterator

from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, Problem, format_value


def find_sharding_problems(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with `fsdp_shard_processes`."""
    size = config.fsdp_shard_processes
    if size is None or size < 2:  # out of bounds, and refused for that
        return

    if launch.fsdp is None:
        expected = "null: only FSDP2 divides a copy of the model among processes"
        fix = "fsdp_shard_processes=null, or a launch file with FSDP2 (fsdp2.yaml)"
    elif launch.num_processes % size:
        expected = f"a divisor of {launch.num_processes} (processes), above 1"
        fix = f"fsdp_shard_processes={_find_divisor(launch.num_processes, size)}, for example"
    else:
        return
    yield Problem("fsdp_shard_processes", HYDRA, format_value(size), expected, fix)


def _find_divisor(processes: int, size: int) -> str:
    """Returns the largest divisor of the processes from 2 up to `size`; "null" if there is none."""
    divisors = [divisor for divisor in range(2, size) if processes % divisor == 0]
    return str(max(divisors)) if divisors else "null"
