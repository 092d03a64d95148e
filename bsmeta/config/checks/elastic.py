"""Launches whose number of processes changes: torchrun with `--nnodes MIN:MAX`, SLURM requeues.

Such a launcher starts all processes again, with the same command line, when one of them fails or a
machine joins. So the command line must resume, and the batch must not depend on the number of
processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, Problem, format_value

UNSHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""The variable with which torchrun gives the processes of each start a store of their own."""

Run = TypeVar("Run", bound=RunConfig)


def scale_accumulation(config: Run, processes: int) -> Run:
    """Scales the accumulation from the configured number of processes to the launch's number.

    The result states the new number of both, so scaling it again changes nothing.

    Args:
        processes: World size of the launch.

    Returns:
        The configuration with the same global batch; unchanged without
        `gradient_accumulation_processes`, or if `find_elastic_problems` refuses the number.
    """
    micro_batches = _count_micro_batches(config)
    if micro_batches is None or micro_batches % processes:
        return config
    return replace(
        config,
        gradient_accumulation_steps=micro_batches // processes,
        gradient_accumulation_processes=processes,
    )


def _count_micro_batches(config: RunConfig) -> int | None:
    """Returns the micro-batches of a step on all processes; None if accumulation is fixed."""
    processes = config.gradient_accumulation_processes
    if processes is None or processes < 1:  # out of bounds, and refused for that
        return None
    return config.gradient_accumulation_steps * processes


def find_elastic_problems(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with the number of processes, and with a launcher that restarts them."""
    micro_batches = _count_micro_batches(config)
    if micro_batches is not None and micro_batches % launch.num_processes:
        product = (
            f"{config.gradient_accumulation_steps} (gradient_accumulation_steps) x "
            f"{config.gradient_accumulation_processes} (gradient_accumulation_processes)"
        )
        expected = f"a divisor of {micro_batches} = {product}, the micro-batches of a step"
        fix = "another number of processes, or smaller micro-batches and more of them"
        found = format_value(launch.num_processes)
        yield Problem("WORLD_SIZE", launch.source, found, expected, fix)

    starts_training = not (config.check_only or config.estimate)
    if not launch.restarts or not starts_training:
        return

    if config.resume_from_checkpoint_dir != "latest":
        found = format_value(config.resume_from_checkpoint_dir)
        expected = "latest: the launcher starts the same command again after a failure"
        fix = "resume_from_checkpoint_dir=latest, or a launch without restarts (--max-restarts 0, "
        fix += f"{UNSHARED_STORE} unset)"
        yield Problem("resume_from_checkpoint_dir", HYDRA, found, expected, fix)

    if launch.shares_store:
        found = "a store that all starts share (TORCHELASTIC_USE_AGENT_STORE=True)"
        expected = "1: restarted processes would read the addresses of the earlier ones there"
        fix = f"export {UNSHARED_STORE}=1, and start torchrun with --rdzv-backend c10d"
        yield Problem(UNSHARED_STORE, launch.source, found, expected, fix)
