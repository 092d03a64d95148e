"""The processes that share an evaluation: who am I, how many are we, and how do we exchange.

The numeric code of this package is given a `Ranks` and nothing else of the launch, so that it
runs alike in one process, under any launcher, and inside a training run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those that share the work.

    Args:
        rank: This process, 0-based.
        world_size: How many processes there are.
        gather: Takes one picklable value of each process and returns all of them, in the order
            of the ranks, on every process (collective: all processes must call it).
    """

    rank: int = 0
    world_size: int = 1
    gather: Callable[[Any], list[Any]] = _alone

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0


def current_ranks() -> Ranks:
    """The ranks of torch's default process group; one process where there is none."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Ranks()

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    return Ranks(dist.get_rank(), dist.get_world_size(), gather)


@contextmanager
def start_ranks(local_rank: int, world_size: int) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the processes of a launcher (torchrun, `accelerate launch`), and leave them at the end.

    Args:
        local_rank: Number of this process on its machine, as the launcher gives it.
        world_size: Number of processes; with 1 no process group is made.

    Yields:
        The ranks, and the device of this one.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    yield current_ranks(), device
    # Not after an error: the others would wait for us. Gloo's may deadlock (pytorch issue 56297),
    # and goes with the process.
    if world_size > 1 and device.type == "cuda":
        dist.destroy_process_group()
