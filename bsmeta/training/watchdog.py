"""Dead and hung ranks: every rank sends heartbeats, and none waits forever for a dead rank.

A thread of each rank writes a heartbeat (a counter, and what the rank is doing) to the store of
torch's process group. When the rank itself makes no progress for the configured time, the thread
prints the stacks of all threads, names the rank that is to blame, and ends the process; the
launcher then ends the job. When the connection to a rank breaks instead, the error is replaced by
one that names the rank, or by the error that this rank reported before it ended.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bsmeta.config.errors import TrainingError, UserError
from bsmeta.training.distributed import Processes, print_stacks
from bsmeta.training.run_folder import write_status

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
_INTERVAL_S = 1.0
# A rank whose counter does not change for so many intervals is dead or stopped.
_SILENT_INTERVALS = 4
_REPORT_WAIT_S = 0.25
_CONNECTION = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "TCPStore")


@dataclass(frozen=True)
class Beat:
    """A heartbeat of a rank.

    Attributes:
        count: Increases as long as the rank is alive.
        phase: What the rank is doing.
        entered: How many phases it has entered; all ranks go through the same phases.
        began: When this phase began (Unix time).
    """

    count: int
    phase: str
    entered: int
    began: float


class Watchdog:
    """Monitors this rank and the others, from `start` to `stop`.

    Args:
        out_dir: Where `stacks-rank{r}.txt` and, if rank 0 is dead, `status.json` are written.
        timeout_s: How long one phase of the loop may take.

    Attributes:
        step: Completed steps, for `status.json`.
    """

    def __init__(self, processes: Processes, out_dir: Path, timeout_s: float) -> None:
        self._processes = processes
        self._out_dir = out_dir
        self._timeout = timeout_s
        self.step = 0
        self._phase = ("starting", time.monotonic(), time.time(), 0)
        self._count = 0
        self._stopped = threading.Event()
        self._ending = threading.Lock()  # either thread may end the process, but not both at once
        self._silent: set[int] = set()
        self._store: Any = None
        if processes.size > 1:
            # A separate connection, because the main thread may be blocked on the group's own.
            store: Any = dist.distributed_c10d._get_default_store()
            self._store = store.clone()
            self._beat()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Starts monitoring."""
        self._thread.start()

    def stop(self) -> None:
        """Stops monitoring; this rank sends no more heartbeats."""
        self._stopped.set()

    def enter(self, phase: str) -> None:
        """Sets the phase that the loop is in, and restarts its clock."""
        self._phase = (phase, time.monotonic(), time.time(), self._phase[-1] + 1)

    # --- the thread -------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._beat()
            phase, since, *_ = self._phase
            if time.monotonic() - since > self._timeout:
                self._give_up(phase)
                return

    def _beat(self) -> None:
        if self._store is not None:
            self._count += 1
            phase, _, began, entered = self._phase
            beat = json.dumps(asdict(Beat(self._count, phase, entered, began)))
            try:
                self._store.set(_key("beat", self._processes.rank), beat)
            except RuntimeError:  # the rank that hosted the store has ended
                logger.debug("the store of the process group cannot be reached", exc_info=True)

    def _give_up(self, phase: str) -> None:
        with self._ending:
            if self._stopped.is_set():
                return  # the main thread has returned in the meantime, with its own error
            try:
                reported = self.reported()
                self._end(phase, self.blame() if reported is None else str(reported))
            finally:  # a full disk, or a closed standard error, must not keep the process alive
                os._exit(EXIT_FAILURE)

    def _end(self, phase: str, blamed: str) -> None:
        text = f"no progress for {self._timeout:.0f} s in: {phase}. {blamed}"
        self._report(TrainingError(text))
        stacks = self._out_dir / f"stacks-rank{self._processes.rank}.txt"
        with suppress(OSError), stacks.open("w") as file:
            file.write(text + "\n")
            file.flush()
            faulthandler.dump_traceback(file=file, all_threads=True)
        if self.is_reporter():
            with suppress(OSError):
                write_status(self._out_dir, "failed", self.step, EXIT_FAILURE, text)
        print_stacks(f"[rank {self._processes.rank}] {text}\nthe stacks of its threads:")

    # --- who is to blame --------------------------------------------------------------------

    def blame(self) -> str:
        """Names the ranks that send no heartbeats, or otherwise the slowest rank."""
        if self._store is None:
            return ""
        before = self._beats()
        for _ in range(_SILENT_INTERVALS):
            time.sleep(_INTERVAL_S)
            self._beat()  # otherwise the others would consider this rank dead
        return self._compare(before)

    def _compare(self, before: dict[int, Beat]) -> str:
        after = self._beats()
        others = set(range(self._processes.size)) - {self._processes.rank}
        self._silent = {rank for rank in others if after.get(rank) == before.get(rank)}
        if not after:
            return "The store of the process group cannot be reached: its host is dead"
        if self._silent:
            silent = "; ".join(
                f"rank {rank} (last seen in: {after[rank].phase if rank in after else 'start'})"
                for rank in sorted(self._silent)
            )
            return f"No sign of life from {silent}: it was killed, stopped, or has ended"
        slowest = min(after, key=lambda rank: (after[rank].entered, after[rank].began))
        doing = "; ".join(f"rank {rank}: {beat.phase}" for rank, beat in after.items())
        return f"Longest without progress: rank {slowest}. What the ranks do: {doing}"

    def _beats(self) -> dict[int, Beat]:
        """Reads the last heartbeat of each rank that has sent one."""
        ranks = range(self._processes.size)
        try:
            known = [rank for rank in ranks if self._store.check([_key("beat", rank)])]
            values = self._store.multi_get([_key("beat", rank) for rank in known])
        except RuntimeError:
            return {}
        return {rank: Beat(**json.loads(value)) for rank, value in zip(known, values, strict=True)}

    # --- failures that a rank reports to the others -----------------------------------------

    def explain(self, error: Exception) -> Exception:
        """Returns the error to end with: one that another rank reported, or that names a dead rank.

        Args:
            error: What ended the loop on this rank; it is reported to the other ranks.
        """
        with self._ending:
            explained = self._explained(error)
            self.stop()
        return explained

    def _explained(self, error: Exception) -> Exception:
        error = self.named(error)
        if self._store is None:
            return error
        if not is_connection_error(error):
            self._report(error)
            return error
        before = self._beats()
        deadline = time.monotonic() + _SILENT_INTERVALS * _INTERVAL_S
        while time.monotonic() < deadline:
            reported = self.reported()
            if reported is not None:
                return reported
            time.sleep(_REPORT_WAIT_S)
        return TrainingError(f"{self._compare(before)} ({str(error).splitlines()[0]})")

    def named(self, error: Exception) -> Exception:
        """Returns the error; if a loader process died, one that names the rank and usual cause."""
        if not str(error).startswith("DataLoader worker"):
            return error
        return TrainingError(
            f"rank {self._processes.rank}: a loader process died ({error}); the usual cause is "
            "memory: lower data_config.num_workers or data_config.window_documents"
        )

    def _report(self, error: Exception) -> None:
        if self._store is None:
            return
        try:
            self._store.set(_key("failure", self._processes.rank), json.dumps(report_of(error)))
        except RuntimeError:
            logger.debug("the other ranks could not be notified", exc_info=True)

    def reported(self) -> Exception | None:
        """Returns the error that a rank has reported, if any."""
        if self._store is None:
            return None
        try:
            for rank in range(self._processes.size):
                if self._store.check([_key("failure", rank)]):
                    report = json.loads(self._store.get(_key("failure", rank)))
                    return reported_error(rank, report)
        except RuntimeError:
            logger.debug("the store cannot be reached", exc_info=True)
        return None

    def is_reporter(self) -> bool:
        """Whether this rank writes the run's status: rank 0, or the lowest live rank."""
        return set(range(self._processes.rank)) <= self._silent


def is_connection_error(error: Exception) -> bool:
    """Whether the error only means that another rank could not be reached."""
    known = isinstance(error, dist.DistError)
    return known or (isinstance(error, RuntimeError) and any(w in str(error) for w in _CONNECTION))


def report_of(error: Exception) -> dict[str, Any]:
    """Serializes an error, so that another rank can end with the same one."""
    return {"user": isinstance(error, UserError), "message": str(error)}


def reported_error(rank: int, report: dict[str, Any]) -> Exception:
    """Rebuilds the error that another rank has reported."""
    kind = UserError if report["user"] else TrainingError
    prefix = f"rank {rank}: "
    return kind(prefix + str(report["message"]).removeprefix(prefix))


def _key(kind: str, rank: int) -> str:
    return f"bsmeta/{kind}/{rank}"
