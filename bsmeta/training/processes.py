"""The processes that share a training run or an evaluation, and how they communicate."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from bsmeta.core.progress import GROUP_TIMEOUT

CLOSE_S = 20.0
"""How long a process that has done its work waits for the others to disconnect."""

Result = TypeVar("Result")

_CPU = torch.device("cpu")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """Communication among processes; trivial for a single one, which needs no launcher.

    Attributes:
        device: The device of the model of this process.
        group: Torch's group of the processes; None: its default one.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU
    group: dist.ProcessGroup | None = None

    @classmethod
    def of_group(cls, device: torch.device) -> Processes:
        """Those of torch's default process group; this one alone if there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def aside(self) -> Processes:
        """The same processes in a group of their own, for a thread of each beside the main one.

        Their hosts communicate, whatever the device.
        """
        group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
        return Processes(self.rank, self.size, _CPU, group)

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Returns when every process has reached this point."""
        if self.size > 1:
            # NCCL would otherwise guess the device by the rank, which is wrong if each process sees
            # one GPU only, and opens a context on another GPU if it is not.
            devices = [self.device.index] if self.device.type == "cuda" else None
            dist.barrier(self.group, device_ids=devices)

    def gather(self, value: Any) -> list[Any]:
        """Returns the (picklable) values of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def all_or_none(self, action: Callable[[], Result]) -> list[Result]:
        """Runs `action` on every rank; returns all results, or raises one error, on every rank."""
        try:
            own: tuple[Any, Exception | None] = action(), None
        except Exception as error:
            own = None, _portable(error)
        found = self.gather(own)
        if failure := next((failure for _, failure in found if failure is not None), None):
            raise failure
        return [result for result, _ in found]

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over the ranks, in place, on every rank."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def agree(self, value: bool) -> bool:
        """Whether `value` is true on every rank. Waits for their hosts, never for a device."""
        if self.size == 1:
            return value
        return int(self._hosts.sum(torch.tensor(int(value)))) == self.size

    @cached_property
    def _hosts(self) -> Processes:
        """All ranks first need it at the same point; NCCL connects devices only."""
        return self if self.device.type == "cpu" else self.aside()

    def on_main(self, action: Callable[[], Result]) -> Result:
        """Runs `action` on rank 0 only; returns its result or raises its error on every rank."""
        if not self.is_main:
            result, failure = self.broadcast(None)
            if failure is not None:
                raise failure
            return result
        try:
            result = action()
        except Exception as error:
            self.broadcast((None, _portable(error)))
            raise
        self.broadcast((result, None))
        return result


def _portable(error: Exception) -> Exception:
    """Returns the error, or its text if it cannot be pickled (it may hold a connection or lock)."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def close_device_groups() -> None:
    """Disconnects the devices of the ranks, at most for `CLOSE_S`; all ranks call it at the end.

    All work is done: a rank that cannot disconnect logs a warning and ends anyway, because `leave`
    does not wait for threads.

    Gloo's groups end with the process, and are not even removed from torch's list: their destructor
    waits for their threads while holding the GIL, which one of them may be waiting for (pytorch
    issue 56297; seen on a busy machine with torch 2.13: a run that had done all its work never
    ended). So this is not `dist.destroy_process_group`, which removes all groups.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    groups = [*dist.distributed_c10d._world.pg_map]
    on_devices = [group for group in groups if dist.get_backend(group) != dist.Backend.GLOO]
    if not on_devices:
        return

    def close() -> None:
        # The newest first, as torch does: every rank must close them in the same order.
        for group in reversed(on_devices):
            try:
                group.shutdown()
            except RuntimeError as error:
                logger.warning("a group of processes was not closed (%s)", error)

    closing = threading.Thread(target=close, name="close groups", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
    if closing.is_alive():
        logger.warning(
            "the devices of the processes have not disconnected within %g s; all work is done, "
            "and this process ends without waiting any longer", CLOSE_S,
        )  # fmt: skip


ALONE = Processes()
"""For work that one rank does without the others."""


@dataclass(frozen=True, kw_only=True)
class FinishContext(Processes):
    """What a task needs after the last step.

    Attributes:
        folder: The run folder.
        exported: The checkpoint whose model is exported: the last one, or with `export_best` the
            best by `keep_best_by`. What `finish` measures is then what `model/` can do.
    """

    folder: Path
    exported: Path
