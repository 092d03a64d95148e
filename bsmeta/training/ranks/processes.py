"""The processes that share a training run or an evaluation, and how they communicate."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from bsmeta.core.progress import GROUP_TIMEOUT

CLOSE_TIMEOUT_S = 20.0
"""Seconds that a process waits at the end for the others to disconnect."""

Result = TypeVar("Result")

_CPU = torch.device("cpu")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """Communication among processes; trivial for a single one, which needs no launcher.

    Attributes:
        device: The device of the model of this process.
        group: Torch's group of the processes; None: its default one.
        leaders: For each rank, the lowest rank with the same run folder; (): all share one.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU
    group: dist.ProcessGroup | None = None
    leaders: tuple[int, ...] = ()

    @classmethod
    def of_group(cls, device: torch.device, leaders: tuple[int, ...] = ()) -> Processes:
        """Returns the processes of torch's default group; this process alone if there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device, leaders=leaders)

    def with_separate_group(self) -> Processes:
        """Returns the same processes in a separate group, for another thread of each process.

        They communicate through their hosts, regardless of the device.
        """
        group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
        return Processes(self.rank, self.size, _CPU, group, self.leaders)

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    @property
    def leader(self) -> int:
        """The lowest rank with the run folder of this rank."""
        return self.leaders[self.rank] if self.leaders else 0

    @property
    def is_leader(self) -> bool:
        """Whether this process prepares its run folder for the ranks that share it."""
        return self.leader == self.rank

    def list_peers(self) -> list[int]:
        """Lists the ranks that share the run folder of this rank."""
        if not self.leaders:
            return [*range(self.size)]
        return [rank for rank, leader in enumerate(self.leaders) if leader == self.leader]

    def barrier(self) -> None:
        """Returns when every process has reached this point."""
        if self.size > 1:
            # NCCL would otherwise guess the device from the rank. That is wrong if each process
            # sees one GPU only; if it sees several, NCCL opens a context on a second GPU.
            devices = [self.device.index] if self.device.type == "cuda" else None
            dist.barrier(self.group, device_ids=devices)

    def gather(self, value: Any) -> list[Any]:
        """Returns the (picklable) values of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def run_on_all(self, action: Callable[[], Result]) -> list[Result]:
        """Runs `action` on every rank; returns all results, or raises one error, on every rank."""
        try:
            outcome = _Outcome(action(), None)
        except Exception as error:
            outcome = _Outcome(None, _make_portable(error))

        outcomes: list[_Outcome] = self.gather(outcome)
        for outcome_of_rank in outcomes:
            if outcome_of_rank.failure is not None:
                raise outcome_of_rank.failure
        return [outcome_of_rank.result for outcome_of_rank in outcomes]

    def on_leaders(self, action: Callable[[], Result]) -> Result:
        """Runs `action` once for each run folder; returns rank 0's result on every rank.

        An error of one rank is raised on every rank.
        """
        if not self.leaders:
            return self.on_main(action)
        results = self.run_on_all(lambda: action() if self.is_leader else None)
        return cast(Result, results[0])

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sums `values` over the ranks, in place; every rank gets the sums."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def is_true_on_all(self, value: bool) -> bool:
        """Whether `value` is true on every rank; waits for the hosts, but not for a device."""
        if self.size == 1:
            return value
        return int(self._host_processes.sum(torch.tensor(int(value)))) == self.size

    @cached_property
    def _host_processes(self) -> Processes:
        """The same processes in a group between hosts, because NCCL connects devices only.

        Creating the group is collective: all ranks must first access this at the same point.
        """
        return self if self.device.type == "cpu" else self.with_separate_group()

    def on_main(self, action: Callable[[], Result]) -> Result:
        """Runs `action` on rank 0 only; returns its result or raises its error on every rank."""
        if not self.is_main:
            outcome: _Outcome = self.broadcast(None)
            if outcome.failure is not None:
                raise outcome.failure
            return outcome.result

        try:
            result = action()
        except Exception as error:
            self.broadcast(_Outcome(None, _make_portable(error)))
            raise
        self.broadcast(_Outcome(result, None))
        return result


class _Outcome(NamedTuple):
    """Result of an action, or the error that it raised."""

    result: Any
    failure: Exception | None


def _make_portable(error: Exception) -> Exception:
    """Returns the error, or one with its text if it cannot be pickled (it may hold a lock)."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def close_device_groups() -> None:
    """Disconnects the devices of the ranks, within `CLOSE_TIMEOUT_S`; all ranks call it at the end.

    All work is done: a rank that cannot disconnect logs a warning and ends anyway, because
    `exit_process` does not wait for threads.

    Gloo's groups end with the process, and are not even removed from torch's list: their destructor
    waits for their threads while holding the GIL, which one of these threads may be waiting for
    (pytorch issue 56297; seen on a busy machine with torch 2.13: a run that had done all its work
    never ended). `dist.destroy_process_group` would remove all groups, so it is not called.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return

    groups = [*dist.distributed_c10d._world.pg_map]
    device_groups = [group for group in groups if dist.get_backend(group) != dist.Backend.GLOO]
    if not device_groups:
        return

    def close() -> None:
        # The newest first, as torch does: every rank must close them in the same order.
        for group in reversed(device_groups):
            try:
                group.shutdown()
            except RuntimeError as error:
                logger.warning("a group of processes was not closed (%s)", error)

    thread = threading.Thread(target=close, name="close groups", daemon=True)
    thread.start()
    thread.join(CLOSE_TIMEOUT_S)
    if thread.is_alive():
        logger.warning(
            "the devices of the processes have not disconnected within %g s; all work is done, "
            "and this process ends without waiting any longer",
            CLOSE_TIMEOUT_S,
        )


ALONE = Processes()
"""This process without others, for work that one rank does by itself."""


@dataclass(frozen=True, kw_only=True)
class FinishContext(Processes):
    """The processes and the folders that `Task.finish` works with.

    Attributes:
        folder: The run folder.
        exported: The checkpoint whose model is exported: the last one, or with `export_best` the
            best by `keep_best_by`. `finish` measures this model, so its results hold for `model/`.
    """

    folder: Path
    exported: Path
