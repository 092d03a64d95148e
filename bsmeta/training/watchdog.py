"""Dead and hung ranks: every rank sends heartbeats, and none waits forever for a dead rank.

A thread of each rank writes a heartbeat (a counter, and what the rank is doing) to the store of
torch's process group. When neither the rank itself nor any other live rank makes progress for the
configured time, the thread prints the stacks of all threads, names the rank that is to blame, and
ends the process; the launcher then ends the job. Progress is a phase of the loop that begins, or a
part of long work that was reported (`bsmeta.core.progress`). Once the run has been asked to stop, a
rank that sends no heartbeats is waited for only briefly, because the run cannot save without it.
When the connection to a rank breaks instead, the error is replaced by one that names the rank, or
by the error that this rank reported before it ended.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from bsmeta.core.errors import TrainingError, UserError
from bsmeta.core.exit_codes import EXIT_FAILURE
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_progress, watch_progress
from bsmeta.core.secrets import redact
from bsmeta.core.signals import StopRequest
from bsmeta.training.distributed import is_connection_error, print_stacks
from bsmeta.training.processes import Processes
from bsmeta.training.run_folder import RunFolder, write_status

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
_INTERVAL_S = 1.0
# A rank whose counter does not change for this number of intervals is dead or stopped.
_SILENT_INTERVALS = 4
# Less than the 30 s after which torchrun kills the processes of a run that is asked to stop.
_STOPPING_TIMEOUT_S = 20.0
_REPORT_WAIT_S = 0.25
_LEAVING_TIMEOUT_S = 10.0
"""How long a rank that is asked to leave waits for the others to say that they leave, too."""
_HOST = socket.gethostname()

Result = TypeVar("Result")


@dataclass(frozen=True)
class Beat:
    """A heartbeat of a rank.

    Attributes:
        count: Increases as long as the rank is alive.
        phase: What the rank is doing.
        entered: How many phases it has entered; all ranks go through the same phases.
        silent_s: Seconds since it last made progress.
    """

    count: int
    host: str
    phase: str
    entered: int
    silent_s: float


class Watchdog:
    """Monitors this rank and the others while its context is entered.

    Args:
        timeout_s: How long a run may go without progress on any rank.
        stop: Whether the run has been asked to stop.

    Attributes:
        step: Completed steps, for `status.json`.
        run: The folder for `stacks-rank{r}.txt` and, if rank 0 is dead, `status.json`; None until
            it is locked.
    """

    def __init__(self, processes: Processes, timeout_s: float, stop: StopRequest) -> None:
        self._processes = processes
        self.run: RunFolder | None = None
        self._timeout = timeout_s
        self._stop = stop
        self.step = 0
        self._last_progress = watch_progress()
        self._phase = ("starting", 0)
        self._count = 0
        self._stopped = threading.Event()
        self._ending = threading.Lock()  # either thread may end the process, but not both at once
        self._silent: set[int] = set()
        self._store: SharedStore | None = None
        if processes.size > 1:
            store: Any = dist.distributed_c10d._get_default_store()
            self._store = SharedStore(store.clone())
            self._beat()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops monitoring; this rank sends no more heartbeats."""
        self._stopped.set()

    def enter(self, phase: str, *, logged: bool = True) -> None:
        """Sets the phase that the loop is in, such as `step 8: saving`, which is progress.

        If `logged`, the log of the process has a line for it.
        """
        if logged:
            logger.debug(phase)
        self._phase = (phase, self._phase[1] + 1)
        report_progress()

    # --- the thread -------------------------------------------------------------------------

    def _watch(self) -> None:
        elsewhere = float("-inf")  # when another rank has made progress, as far as is known
        while not self._stopped.wait(_INTERVAL_S):
            self._beat()
            patience = min(self._timeout, _STOPPING_TIMEOUT_S) if self._stop.name else self._timeout
            if not self._is_overdue(elsewhere, patience):
                continue
            before = self._beats()
            # Every live rank sends another heartbeat meanwhile; this one sends its own.
            for _ in range(_SILENT_INTERVALS if self._store is not None else 0):
                time.sleep(_INTERVAL_S)
                self._beat()
            after = self._beats()
            elsewhere = self._progress_elsewhere(before, after)
            self._silent = self._silent_ranks(before, after)
            if not self._silent:  # a slow save, for example
                patience = self._timeout
            if self._is_overdue(elsewhere, patience):
                self._give_up(patience, self._blame(after))
                return

    def _is_overdue(self, elsewhere: float, patience: float) -> bool:
        return max(self._last_progress(), elsewhere) + patience < time.monotonic()

    def _progress_elsewhere(self, before: dict[int, Beat], after: dict[int, Beat]) -> float:
        """When another live rank has last made progress, on this machine's monotonic clock."""
        live = [
            beat.silent_s
            for rank, beat in after.items()
            if rank != self._processes.rank and beat != before.get(rank)
        ]
        return time.monotonic() - min(live, default=float("inf"))

    def _beat(self) -> None:
        self._count += 1
        phase, entered = self._phase
        silent_s = time.monotonic() - self._last_progress()
        self._publish("beat", asdict(Beat(self._count, _HOST, phase, entered, silent_s)))

    def _give_up(self, waited_s: float, blamed: str) -> None:
        with self._ending:
            if self._stopped.is_set():
                return  # the main thread has returned in the meantime, with its own error
            try:
                reported = self.reported()
                self._end(waited_s, blamed if reported is None else str(reported))
            finally:  # a full disk, or a closed standard error, must not keep the process alive
                os._exit(EXIT_FAILURE)

    def _end(self, waited_s: float, blamed: str) -> None:
        asked = "asked to stop, but " if self._stop.name else ""
        text = redact(f"{asked}no progress for {waited_s:.0f} s in: {self._phase[0]}. {blamed}")
        self._publish("failure", report_of(TrainingError(text)))
        if self.run is not None and not self.run.is_replaced():
            self._write(self.run.path, text)
        print_stacks(f"[rank {self._processes.rank}] {text}\nthe stacks of its threads:")

    def _write(self, out_dir: Path, text: str) -> None:
        with suppress(OSError), (out_dir / f"stacks-rank{self._processes.rank}.txt").open("w") as f:
            f.write(text + "\n")
            f.flush()
            faulthandler.dump_traceback(file=f, all_threads=True)
        if self.is_reporter():
            with suppress(OSError):
                write_status(out_dir, "failed", self.step, EXIT_FAILURE, text)

    # --- who is to blame --------------------------------------------------------------------

    def _silent_ranks(self, before: dict[int, Beat], after: dict[int, Beat]) -> set[int]:
        """Returns the other ranks that sent no heartbeat in between."""
        others = set(range(self._processes.size)) - {self._processes.rank}
        return {rank for rank in others if after.get(rank) == before.get(rank)}

    def _blame(self, after: dict[int, Beat]) -> str:
        """Names the silent ranks, or otherwise the slowest rank."""
        if self._store is None:
            return ""
        if not after:
            master = os.environ.get("MASTER_ADDR", "?")
            return (
                f"No sign of life from rank 0: its machine ({master}), which hosts the store of "
                f"the process group, has ended, or cannot be reached from {_HOST}"
            )
        if self._silent:
            silent = "; ".join(
                f"rank {rank} on {after[rank].host} (last seen in: {after[rank].phase})"
                if rank in after
                else f"rank {rank} (never seen)"
                for rank in sorted(self._silent)
            )
            return (
                f"No sign of life from {silent}: killed, stopped, ended, or on a machine that "
                f"cannot be reached from {_HOST}"
            )
        # Clocks of machines differ and may be set back, so none of them is compared.
        slowest = min(after, key=lambda rank: (after[rank].entered, -after[rank].silent_s))
        doing = "; ".join(f"rank {rank}: {beat.phase}" for rank, beat in after.items())
        return f"Longest without progress: rank {slowest}. What the ranks do: {doing}"

    def _beats(self) -> dict[int, Beat]:
        return {rank: Beat(**beat) for rank, beat in self._published("beat").items()}

    # --- what the ranks report to each other --------------------------------------------------

    def _publish(self, kind: str, value: dict[str, Any]) -> None:
        if self._store is None:
            return
        key, text = f"bsmeta/{kind}/{self._processes.rank}", json.dumps(value)
        try:
            self._store.call(lambda store: store.set(key, text))
        except RuntimeError:  # the machine that hosts the store has ended or vanished
            logger.debug("the store of the process group cannot be reached", exc_info=True)

    def _published(self, kind: str) -> dict[int, Any]:
        """The last value of each rank that has published one."""
        if self._store is None:
            return {}
        keys = {rank: f"bsmeta/{kind}/{rank}" for rank in range(self._processes.size)}

        def read(store: Any) -> dict[int, Any]:
            known = [rank for rank, key in keys.items() if store.check([key])]
            values = store.multi_get([keys[rank] for rank in known]) if known else []
            return {rank: parse_json(value) for rank, value in zip(known, values, strict=True)}

        try:
            return self._store.call(read)
        except RuntimeError:
            logger.debug("the store of the process group cannot be reached", exc_info=True)
            return {}

    def explain(self, error: Exception) -> Exception:
        """Returns the error to end with: one that another rank reported, or that names a dead rank.

        The error that ended the loop on this rank is reported to the other ranks.
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
            self._publish("failure", report_of(error))
            return error
        before = self._beats()
        deadline = time.monotonic() + _SILENT_INTERVALS * _INTERVAL_S
        while time.monotonic() < deadline:
            reported = self.reported()
            if reported is not None:
                return reported
            time.sleep(_REPORT_WAIT_S)
        after = self._beats()
        self._silent = self._silent_ranks(before, after)
        return TrainingError(f"{self._blame(after)} ({str(error).splitlines()[0]})")

    def named(self, error: Exception) -> Exception:
        """Returns the error; if a loader process died, one that names the rank and usual cause."""
        if not str(error).startswith("DataLoader worker"):
            return error
        return TrainingError(
            f"rank {self._processes.rank}: a loader process died ({error}); the usual cause is "
            "memory: lower data_config.num_workers or data_config.window_documents"
        )

    def reported(self) -> Exception | None:
        """Returns the error that a rank has reported, if any: that of the lowest rank."""
        return next(
            (reported_error(*report) for report in self._published("failure").items()), None
        )

    def failure_of_another(self) -> Exception | None:
        """Returns why this rank is asked to leave, if another rank has failed or is dead.

        A rank that is asked to leave as well says so here before it ends, so that it is not taken
        for dead. Ranks whose watchdog has not started yet are not waited for.
        """
        self._publish("leaving", {})
        before = self._beats()
        deadline = time.monotonic() + _LEAVING_TIMEOUT_S
        while True:
            reported = self.reported()
            staying = before.keys() - self._published("leaving").keys()
            if reported is not None or not staying:
                return reported
            if time.monotonic() >= deadline:
                break
            time.sleep(_REPORT_WAIT_S)
        after = self._beats()
        self._silent = self._silent_ranks(before, after) & staying
        return TrainingError(self._blame(after)) if self._silent else None

    def is_reporter(self) -> bool:
        """Whether this rank writes the run's status: rank 0, or the lowest live rank."""
        return set(range(self._processes.rank)) <= self._silent


def report_of(error: Exception) -> dict[str, Any]:
    """Serializes an error, so that another rank can end with the same one."""
    return {"user": isinstance(error, UserError), "message": redact(str(error))}


def reported_error(rank: int, report: dict[str, Any]) -> Exception:
    """Rebuilds the error that another rank has reported."""
    kind = UserError if report["user"] else TrainingError
    prefix = f"rank {rank}: "
    return kind(prefix + str(report["message"]).removeprefix(prefix))


class SharedStore:
    """A connection of its own to the store of the process group, whose calls never block for long.

    The main thread may be blocked in a call on the connection of the group; any thread may use this
    one. A call on torch's store waits for an answer from the machine that hosts it. If that machine
    vanishes from the network, TCP resends for about a quarter of an hour (Linux, `tcp_retries2`)
    before the call fails. Here a thread makes the calls, and the caller waits for it only a few
    seconds.
    """

    def __init__(self, connection: Any, answer_s: float = ANSWER_S) -> None:
        self._connection = connection
        self._answer_s = answer_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any]]] = (
            queue.SimpleQueue()
        )
        self._late: Future[Any] | None = None  # the call that has not returned in time
        # A daemon, unlike the threads of an executor: the process ends even if a call never does.
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    def call(self, use: Callable[[Any], Result]) -> Result:
        """Returns the result of `use`, which is called with the connection.

        Raises:
            RuntimeError: If the host of the store has ended or does not answer in time. As long as
                one call is unanswered, all others fail at once.
        """
        if self._late is not None and not self._late.done():
            raise RuntimeError("the host of the store does not answer")
        future: Future[Result] = Future()
        self._calls.put((future, use))
        try:
            return future.result(self._answer_s)
        except TimeoutError as error:
            if not future.cancel():  # otherwise it was waiting for the call of another thread
                self._late = future
            raise RuntimeError(
                f"the host of the store has not answered for {self._answer_s:g} s"
            ) from error

    def _serve(self) -> None:
        while True:
            future, use = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = use(self._connection)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
