"""Progress of work that takes long, for the watchdog of a run.

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
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psutil
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

Advance = Callable[[float], None]
"""Is called with the share of the work that is done, 0 to 1."""
PLAIN_INTERVAL_S = 10.0
GROUP_TIMEOUT = timedelta(days=1)
"""How long a collective operation may wait for a rank: a dead one breaks the connection at once, a
hung one is the watchdog's, and one that works may take its time."""
_WAIT_S = 5.0  # a lock that is waited for longer is named
_SAMPLE_S = 5.0
_BUSY = 0.02  # of one processor; a process that only waits uses less than a tenth of it


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
    while not ended.wait(_SAMPLE_S):
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
def progress_bar(shown: bool) -> Iterator[Advance]:
    """Show a bar with the time left; yields a callback for the share of the work done (0 to 1).

    Without a terminal, it prints a line every ten seconds.
    """
    if not sys.stderr.isatty():
        yield _plain_lines() if shown else lambda share: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
    task = progress.add_task("scoring", total=1.0)

    def advance(share: float) -> None:
        progress.start()  # not before, so that no bar precedes a configuration error
        progress.update(task, completed=share)

    try:
        yield advance
    finally:
        progress.stop()


def _plain_lines() -> Advance:
    begin = last = time.monotonic()

    def advance(share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > PLAIN_INTERVAL_S:
            last = now
            left = "" if share <= 0 else f", {(now - begin) * (1 - share) / share:,.0f} s left"
            print(f"scoring {share:.0%}, {now - begin:,.0f} s{left}", file=sys.stderr, flush=True)

    return advance
