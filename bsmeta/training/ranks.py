"""The processes that share an evaluation: rank, world size, and a gather function.

The numeric code of this package sees only a `Ranks`, not the launcher, so it runs the same way in
one process, under any launcher, and inside a training run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from bsmeta.core.progress import GROUP_TIMEOUT


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, slots=True)
class Ranks:
    """One of the processes that share the work.

    Args:
        gather: Takes a picklable value from each process and returns all of them, in rank order,
            on every process (collective: all processes must call it).
    """

    rank: int = 0
    world_size: int = 1
    gather: Callable[[Any], list[Any]] = _alone

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


def current_ranks() -> Ranks:
    """The ranks of torch's default process group; a single process if there is none."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Ranks()

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    return Ranks(dist.get_rank(), dist.get_world_size(), gather)


@contextmanager
def start_ranks(local_rank: int, world_size: int) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the process group of a launcher (torchrun, `accelerate launch`), and leave it on exit.

    Args:
        local_rank: Rank of this process on its machine, as set by the launcher.
        world_size: Number of processes; with 1 no process group is created.

    Yields:
        The ranks, and the device of this rank.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world_size > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=GROUP_TIMEOUT)
    yield current_ranks(), device
    # Skipped after an error, when the other ranks would not join. Destroying a Gloo group may
    # deadlock (pytorch issue 56297); it ends with the process.
    if world_size > 1 and device.type == "cuda":
        dist.destroy_process_group()
