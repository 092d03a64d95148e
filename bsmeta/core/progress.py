"""Progress of work that takes long, for the watchdog of a run and for whoever looks on.

Everything that may take minutes reports each part of its work that is done (a batch, a file, a
thousand rows) with `report_progress`, wherever it stands. Without a watchdog nothing listens, and
the call costs nothing. A process that waits for work of another on the same files waits in
`exclusively`.
"""

from __future__ import annotations

import logging
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

import psutil
from filelock import FileLock, Timeout
from rich.progress import BarColumn, TimeElapsedColumn, TimeRemainingColumn

from bsmeta.core.terminal import ProgressDisplay, TextColumn

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

Advance = Callable[[float], None]
"""Is called with the share of the work that is done, 0 to 1."""
PLAIN_INTERVAL_S = 10.0
_REFRESH_S = 0.1
GROUP_TIMEOUT = timedelta(days=1)
"""How long a collective operation may wait for a rank: a dead one breaks the connection at once, a
hung one is the watchdog's, and one that works may take its time."""
_WAIT_S = 5.0  # a lock that is waited for longer is named
SAMPLE_S = 5.0
_BUSY = 0.02  # of one processor; a process that only waits uses less than a tenth of it


class Show(Protocol):
    """Is called with how much is done, and a note such as a speed."""

    def __call__(self, done: float, note: str = "") -> None: ...


class _Progress:
    """When something was last reported, in memory shared with the processes forked from this one.

    Those are the workers of loaders and pools.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def watch(self) -> Callable[[], float]:
        """Starts to record; returns a function for the last time, on the monotonic clock."""
        memory = self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.report()
        return lambda: float(struct.unpack_from("d", memory)[0])

    @property
    def is_watched(self) -> bool:
        return self._memory is not None

    def report(self) -> None:
        if self._memory is not None:
            struct.pack_into("d", self._memory, 0, time.monotonic())


_PROGRESS = _Progress()


def report_progress() -> None:
    """Records that a part of some long work is done; also in forked processes of this one."""
    _PROGRESS.report()


def watch_progress() -> Callable[[], float]:
    """Returns a function for the time of the last report, on the clock of `time.monotonic`."""
    return _PROGRESS.watch()


def reporting(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items, and reports progress after each."""
    for item in items:
        yield item
        report_progress()


@contextmanager
def exclusively(lock: Path | str, what: str) -> Iterator[None]:
    """Holds a lock file, which the system releases when this process ends.

    Waiting counts as progress: the lock is held by a live process, which has a watchdog of its own.

    Args:
        lock: The lock file, whose folder exists.
        what: What is done under the lock, as a noun phrase, for the message to a user who waits.
    """
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        _wait(held, what)
    try:
        yield
    finally:
        held.release()


def _wait(lock: FileLock, what: str) -> None:
    is_named = False
    while True:
        try:
            lock.acquire(timeout=_WAIT_S)
            return
        except Timeout:
            report_progress()
            if not is_named:
                logger.info("waiting for another process: %s (%s)", what, lock.lock_file)
                is_named = True


@contextmanager
def opaque_work() -> Iterator[None]:
    """Reports progress while this process, or one that it started, uses the processor.

    For calls of libraries that report none themselves (they load a model, or fit one), but not for
    collective operations, in which ranks may spin while they wait for each other.
    """
    if not _PROGRESS.is_watched:
        yield
        return
    ended = threading.Event()
    observer = threading.Thread(target=_observe, args=(ended,), name="progress", daemon=True)
    observer.start()
    try:
        yield
    finally:
        ended.set()
        observer.join()


def _observe(ended: threading.Event) -> None:
    since, used = time.monotonic(), _processor_seconds()
    while not ended.wait(SAMPLE_S):
        now, total = time.monotonic(), _processor_seconds()
        if total - used > _BUSY * (now - since):
            report_progress()
        since, used = now, total


def _processor_seconds() -> float:
    """Processor time of this process and all that it started; less when one of these has ended."""
    process = psutil.Process()
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


@contextmanager
def progress_bar(name: str, total: float, *, shown: bool = True) -> Iterator[Show]:
    """Shows how much of some work is done, and the time left; also reports the progress.

    Without a terminal, it prints a line every ten seconds. It appears with the first call, so that
    none precedes a configuration error.

    Args:
        total: What is done at the end, in any unit.
        shown: False reports the progress only.
    """
    bar = _Bar(name, total) if sys.stderr.isatty() else _Lines(name, total)

    def show(done: float, note: str = "") -> None:
        report_progress()
        if shown:
            bar.show(done, note)

    try:
        yield show
    finally:
        bar.stop()


def file_bar(path: Path, name: str) -> AbstractContextManager[Show]:
    """A `progress_bar` over the bytes of a file."""
    return progress_bar(name, path.stat().st_size if path.exists() else 0)


class _Bar:
    def __init__(self, name: str, total: float) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        # Without its refreshing thread, which must not be running when a worker is forked.
        self._bar = ProgressDisplay(*columns, auto_refresh=False)
        self._task = self._bar.add_task(name, total=total, note="")
        self._last = 0.0

    def show(self, done: float, note: str) -> None:
        self._bar.start()
        self._bar.update(self._task, completed=done, note=note)
        now = time.monotonic()
        if now - self._last >= _REFRESH_S:
            self._last = now
            self._bar.refresh()

    def stop(self) -> None:
        self._bar.stop()


class _Lines:
    def __init__(self, name: str, total: float) -> None:
        self._name = name
        self._total = total
        self._begin = self._last = time.monotonic()

    def show(self, done: float, note: str) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_INTERVAL_S:
            return
        self._last = now
        passed, share = now - self._begin, done / max(self._total, 1e-9)
        left = f"{passed * (1 - share) / share:,.0f} s left" if share > 0 else ""
        parts = [f"{self._name} {share:.0%}", note, f"{passed:,.0f} s", left]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def stop(self) -> None:
        pass
