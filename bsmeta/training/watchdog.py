"""Detects dead and hung ranks: every rank sends heartbeats, and none waits forever for a dead rank.

A thread of each rank writes a heartbeat (a counter, and the current phase of the rank) to the store
of torch's process group. When neither the rank itself nor any other live rank makes progress for
the configured time, the thread prints the stacks of all threads, names the rank to blame, and ends
the process; the launcher then ends the job. A rank makes progress when it enters a phase of the
loop, or reports a part of long work (`bsmeta.core.progress`). Once the run has been asked to stop,
the others wait only briefly for a rank that sends no heartbeats, because the run cannot save
without it. When the connection to a rank breaks instead, the error is replaced by one that names
the rank, or by the error that the rank reported before it ended.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from bsmeta.core.errors import TrainingError
from bsmeta.core.exit_codes import EXIT_FAILURE
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import report_progress, watch_progress
from bsmeta.core.secrets import redact
from bsmeta.core.signals import StopRequest
from bsmeta.training.ranks.communication_errors import is_connection_error
from bsmeta.training.ranks.error_reports import rebuild_error, serialize_error
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.ranks.shared_store import SharedStore
from bsmeta.training.ranks.time_limits import print_stacks
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.status import write_status

logger = logging.getLogger(__name__)


_INTERVAL_S = 1.0
# A rank whose counter does not change for this number of intervals is dead or stopped.
_SILENT_INTERVALS = 4
# Less than the 30 s after which torchrun kills the processes of a run that is asked to stop.
_STOPPING_TIMEOUT_S = 20.0
# Between two looks for the report of another rank.
_REPORT_POLL_S = 0.25
# A rank that is asked to leave waits at most this long for the others to report the same.
_LEAVING_TIMEOUT_S = 10.0
_HOST = socket.gethostname()


class _Phase(NamedTuple):
    """A phase of the loop.

    Attributes:
        number: Number of phases entered before it; all ranks go through the same phases.
    """

    name: str
    number: int


@dataclass(frozen=True)
class Beat:
    """A heartbeat of a rank.

    Attributes:
        count: Increases as long as the rank is alive.
        phase: The current phase of the loop.
        entered: Number of phases entered so far; all ranks go through the same phases.
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
        timeout_s: Longest time without progress on any rank.
        stop: Whether the run has been asked to stop.

    Attributes:
        step: Completed steps, for `status.json`.
        run_folder: The folder for `stacks-rank{r}.txt` and, if rank 0 is dead, `status.json`; None
            until it is locked.
    """

    def __init__(self, processes: Processes, timeout_s: float, stop: StopRequest) -> None:
        self._processes = processes
        self._timeout = timeout_s
        self._stop = stop
        self.run_folder: RunFolder | None = None
        self.step = 0

        self._last_progress = watch_progress()
        self._phase = _Phase("starting", 0)
        self._count = 0
        self._stopped = threading.Event()
        self._ending = threading.Lock()  # either thread may end the process, but not both at once
        self._silent_ranks: set[int] = set()

        self._store: SharedStore | None = None
        if processes.size > 1:
            store: Any = dist.distributed_c10d._get_default_store()
            self._store = SharedStore(store.clone())
            self._send_beat()
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
        """Enters a phase of the loop, such as `step 8: saving`, which counts as progress.

        Args:
            logged: Whether to write a line to the log of the process.
        """
        if logged:
            logger.debug(phase)
        self._phase = _Phase(phase, self._phase.number + 1)
        report_progress()

    # --- the thread -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Main loop of the thread."""
        progress_of_others = float("-inf")  # the latest known time of it
        while not self._stopped.wait(_INTERVAL_S):
            self._send_beat()
            patience = min(self._timeout, _STOPPING_TIMEOUT_S) if self._stop.name else self._timeout
            if not self._is_overdue(progress_of_others, patience):
                continue

            beats_before = self._read_beats()
            if self._store is not None:
                # Every live rank sends another heartbeat meanwhile, and so does this one.
                for _ in range(_SILENT_INTERVALS):
                    time.sleep(_INTERVAL_S)
                    self._send_beat()
            beats_after = self._read_beats()

            progress_of_others = self._find_last_progress_of_others(beats_before, beats_after)
            self._silent_ranks = self._find_silent_ranks(beats_before, beats_after)
            if not self._silent_ranks:  # a slow save, for example
                patience = self._timeout
            if self._is_overdue(progress_of_others, patience):
                self._give_up(patience, self._describe_cause(beats_after))
                return

    def _is_overdue(self, progress_of_others: float, patience: float) -> bool:
        """Whether no live rank has made progress for `patience` seconds."""
        return max(self._last_progress(), progress_of_others) + patience < time.monotonic()

    def _find_last_progress_of_others(
        self, before: dict[int, Beat], after: dict[int, Beat]
    ) -> float:
        """Returns the time of the last progress of any other live rank, by `time.monotonic`."""
        silences = [
            beat.silent_s
            for rank, beat in after.items()
            if rank != self._processes.rank and beat != before.get(rank)
        ]
        return time.monotonic() - min(silences, default=float("inf"))

    def _send_beat(self) -> None:
        """Publishes a heartbeat of this rank."""
        self._count += 1
        phase = self._phase
        silent_s = time.monotonic() - self._last_progress()
        self._publish("beat", asdict(Beat(self._count, _HOST, phase.name, phase.number, silent_s)))

    def _give_up(self, waited_s: float, cause: str) -> None:
        """Reports the cause and ends the process, unless the main thread has just returned."""
        with self._ending:
            if self._stopped.is_set():
                return  # the main thread has returned in the meantime, with its own error
            try:
                reported = self.find_reported_error()
                self._report_end(waited_s, cause if reported is None else str(reported))
            finally:  # a full disk, or a closed standard error, must not keep the process alive
                os._exit(EXIT_FAILURE)

    def _report_end(self, waited_s: float, cause: str) -> None:
        """Reports why the run ends to the other ranks, in the run folder and on the screen."""
        prefix = "asked to stop, but " if self._stop.name else ""
        text = redact(f"{prefix}no progress for {waited_s:.0f} s in: {self._phase.name}. {cause}")
        self._publish("failure", serialize_error(TrainingError(text)))
        if self.run_folder is not None and not self.run_folder.is_replaced():
            self._write_stacks(self.run_folder.path, text)
        print_stacks(f"[rank {self._processes.rank}] {text}\nthe stacks of its threads:")

    def _write_stacks(self, out_dir: Path, text: str) -> None:
        """Writes the stacks of all threads, and the status if this rank is its reporter."""
        stacks_file = out_dir / f"stacks-rank{self._processes.rank}.txt"
        with suppress(OSError), stacks_file.open("w") as stream:
            stream.write(text + "\n")
            stream.flush()
            faulthandler.dump_traceback(file=stream, all_threads=True)

        if self.is_reporter():
            with suppress(OSError):
                write_status(out_dir, "failed", self.step, EXIT_FAILURE, text)

    # --- who is to blame --------------------------------------------------------------------

    def _find_silent_ranks(self, before: dict[int, Beat], after: dict[int, Beat]) -> set[int]:
        """Returns the other ranks that sent no heartbeat between two reads."""
        other_ranks = set(range(self._processes.size)) - {self._processes.rank}
        return {rank for rank in other_ranks if after.get(rank) == before.get(rank)}

    def _describe_cause(self, beats: dict[int, Beat]) -> str:
        """Names the silent ranks, or otherwise the slowest rank."""
        if self._store is None:
            return ""
        if not beats:
            master = os.environ.get("MASTER_ADDR", "?")
            return (
                f"No sign of life from rank 0: its machine ({master}), which hosts the store of "
                f"the process group, has ended, or cannot be reached from {_HOST}"
            )

        if self._silent_ranks:
            silent = "; ".join(
                _describe_silent_rank(rank, beats) for rank in sorted(self._silent_ranks)
            )
            return (
                f"No sign of life from {silent}: killed, stopped, ended, or on a machine that "
                f"cannot be reached from {_HOST}"
            )

        # The slowest rank has entered the fewest phases; of several, it has been silent longest.
        # Clocks of machines differ and may be set back, so no times are compared.
        slowest = min(beats, key=lambda rank: (beats[rank].entered, -beats[rank].silent_s))
        phases = "; ".join(f"rank {rank}: {beat.phase}" for rank, beat in beats.items())
        return f"Longest without progress: rank {slowest}. What the ranks do: {phases}"

    def _read_beats(self) -> dict[int, Beat]:
        """Returns the last heartbeat of each rank that has sent one."""
        return {rank: Beat(**beat) for rank, beat in self._read_published("beat").items()}

    # --- reports between ranks --------------------------------------------------------------

    def _publish(self, kind: str, value: dict[str, Any]) -> None:
        """Stores a value of this rank for the others; ignored if the store is unreachable."""
        if self._store is None:
            return

        key = f"bsmeta/{kind}/{self._processes.rank}"
        text = json.dumps(value)
        try:
            self._store.call(lambda store: store.set(key, text))
        except RuntimeError:  # the machine that hosts the store has ended or vanished
            logger.debug("the store of the process group cannot be reached", exc_info=True)

    def _read_published(self, kind: str) -> dict[int, Any]:
        """Returns the last value of each rank that has published one."""
        if self._store is None:
            return {}
        keys = {rank: f"bsmeta/{kind}/{rank}" for rank in range(self._processes.size)}

        def read(store: Any) -> dict[int, Any]:
            ranks = [rank for rank, key in keys.items() if store.check([key])]
            values = store.multi_get([keys[rank] for rank in ranks]) if ranks else []
            return {rank: parse_json(value) for rank, value in zip(ranks, values, strict=True)}

        try:
            return self._store.call(read)
        except RuntimeError:
            logger.debug("the store of the process group cannot be reached", exc_info=True)
            return {}

    def explain(self, error: Exception) -> Exception:
        """Stops monitoring, and returns the error that this rank should raise.

        A lost connection is replaced by the error that another rank has reported, or by one that
        names a dead rank. Any other error of this rank is reported to the other ranks.
        """
        with self._ending:
            cause = self._find_cause(error)
            self.stop()
        return cause

    def _find_cause(self, error: Exception) -> Exception:
        """Returns the error to raise; reports an error of this rank to the others."""
        error = self.name_dead_loader(error)
        if self._store is None:
            return error
        if not is_connection_error(error):
            self._publish("failure", serialize_error(error))
            return error

        beats_before = self._read_beats()
        deadline = time.monotonic() + _SILENT_INTERVALS * _INTERVAL_S
        while time.monotonic() < deadline:
            reported = self.find_reported_error()
            if reported is not None:
                return reported
            time.sleep(_REPORT_POLL_S)
        beats_after = self._read_beats()

        self._silent_ranks = self._find_silent_ranks(beats_before, beats_after)
        return TrainingError(f"{self._describe_cause(beats_after)} ({str(error).splitlines()[0]})")

    def name_dead_loader(self, error: Exception) -> Exception:
        """Returns `error`, or for a dead loader process an error with the rank and usual cause."""
        if not str(error).startswith("DataLoader worker"):
            return error
        return TrainingError(
            f"rank {self._processes.rank}: a loader process died ({error}); the usual cause is "
            "memory: lower data_config.num_workers or data_config.window_documents"
        )

    def find_reported_error(self) -> Exception | None:
        """Returns the error that the lowest rank has reported; None if there is no report."""
        reports = self._read_published("failure")
        if not reports:
            return None
        lowest = min(reports)
        return rebuild_error(lowest, reports[lowest])

    def wait_until_all_leave(self) -> Exception | None:
        """Reports that this rank leaves, and waits a few seconds until all others do.

        A rank that is asked to leave calls it before it ends, so that the others do not take it for
        dead. Ranks whose watchdog has not started yet are not waited for.

        Returns:
            An error if another rank has failed or is dead; None if all leave.
        """
        self._publish("leaving", {})

        beats_before = self._read_beats()
        deadline = time.monotonic() + _LEAVING_TIMEOUT_S
        while True:
            reported = self.find_reported_error()
            staying_ranks = beats_before.keys() - self._read_published("leaving").keys()
            if reported is not None or not staying_ranks:
                return reported
            if time.monotonic() >= deadline:
                break
            time.sleep(_REPORT_POLL_S)
        beats_after = self._read_beats()

        self._silent_ranks = self._find_silent_ranks(beats_before, beats_after) & staying_ranks
        return TrainingError(self._describe_cause(beats_after)) if self._silent_ranks else None

    def is_reporter(self) -> bool:
        """Whether this rank writes the run's status: rank 0, or the lowest live rank."""
        return set(range(self._processes.rank)) <= self._silent_ranks


def _describe_silent_rank(rank: int, beats: dict[int, Beat]) -> str:
    if rank not in beats:
        return f"rank {rank} (never seen)"
    beat = beats[rank]
    return f"rank {rank} on {beat.host} (last seen in: {beat.phase})"
