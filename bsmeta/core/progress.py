"""Progress of long work, for the watchdog of a run and for progress bars.

Work that may take minutes calls `report_progress` after each part (a batch, a file, a thousand
rows), in any module. Without a watchdog, the call does nothing. A process that must wait until
another process has written a file waits in `hold_lock`.
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
"""Callback that takes the completed share of the work, 0 to 1."""

PLAIN_INTERVAL_S = 10.0
"""Seconds between the lines that replace a progress bar where there is no terminal."""

GROUP_TIMEOUT = timedelta(days=1)
"""Time that a collective operation waits for a rank. It can be long, because a dead rank breaks the
connection at once, and the watchdog ends a hung one; a busy rank may take hours."""

SAMPLE_INTERVAL_S = 5.0
"""Seconds between two measurements of the processor time in `report_opaque_work`."""

_REFRESH_INTERVAL_S = 0.1
_LOCK_NOTICE_S = 5.0  # a longer wait for a lock is logged

_MIN_BUSY_SHARE = 0.02
"""Share of one processor that counts as work; a waiting process uses less than a tenth of it."""


class Show(Protocol):
    """Callback that takes the amount of completed work, and a note to show, such as a speed."""

    def __call__(self, done: float, note: str = "") -> None: ...


class _Progress:
    """The time of the last report, in memory that forked processes (workers) share."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def watch(self) -> Callable[[], float]:
        """Starts to record; returns a function that reads the time of the last report.

        Times are in seconds on the monotonic clock.
        """
        memory = self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.report()
        return lambda: float(struct.unpack_from("d", memory)[0])

    @property
    def is_watched(self) -> bool:
        """Whether `watch` has been called, in this process or before it was forked."""
        return self._memory is not None

    def report(self) -> None:
        """Records the current time, if reports are watched."""
        if self._memory is not None:
            struct.pack_into("d", self._memory, 0, time.monotonic())


_PROGRESS = _Progress()


def report_progress() -> None:
    """Records that a part of some work is done; forked processes report to their parent."""
    _PROGRESS.report()


def watch_progress() -> Callable[[], float]:
    """Starts to record reports; returns a function that reads the time of the last one.

    Times are in seconds on the monotonic clock.
    """
    return _PROGRESS.watch()


def report_each(items: Iterable[Item]) -> Iterator[Item]:
    """Yields items, and reports progress after each."""
    for item in items:
        yield item
        report_progress()


@contextmanager
def hold_lock(lock: Path | str, work: str) -> Iterator[None]:
    """Locks a file during the block; the system releases the lock if this process dies.

    Waiting counts as progress, because a live process holds the lock and has its own watchdog.

    Args:
        lock: The lock file; its folder must exist.
        work: The work done under the lock, as a noun phrase, for the log of a waiting process.
    """
    file_lock = FileLock(lock)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        _wait_for_lock(file_lock, work)

    try:
        yield
    finally:
        file_lock.release()


def _wait_for_lock(lock: FileLock, work: str) -> None:
    """Acquires a lock without a time limit; logs once if that takes more than a few seconds."""
    is_logged = False
    while True:
        try:
            lock.acquire(timeout=_LOCK_NOTICE_S)
            return
        except Timeout:
            report_progress()
            if not is_logged:
                logger.info("waiting for another process: %s (%s)", work, lock.lock_file)
                is_logged = True


@contextmanager
def report_opaque_work() -> Iterator[None]:
    """Reports progress during the block while this process or a descendant uses the processor.

    For library calls that report no progress, such as loading or fitting a model. Not for
    collective operations, in which a rank may use the processor while it waits for others.
    """
    if not _PROGRESS.is_watched:
        yield
        return

    ended = threading.Event()
    observer = threading.Thread(
        target=_report_processor_use, args=(ended,), name="progress", daemon=True
    )
    observer.start()
    try:
        yield
    finally:
        ended.set()
        observer.join()


def _report_processor_use(ended: threading.Event) -> None:
    """Reports progress after each interval with enough processor time, until the work has ended."""
    last_time = time.monotonic()
    last_used_s = _measure_processor_seconds()
    while not ended.wait(SAMPLE_INTERVAL_S):
        current_time = time.monotonic()
        used_s = _measure_processor_seconds()
        if used_s - last_used_s > _MIN_BUSY_SHARE * (current_time - last_time):
            report_progress()

        last_time = current_time
        last_used_s = used_s


def _measure_processor_seconds() -> float:
    """Returns the seconds of processor time of this process and its living descendants."""
    this_process = psutil.Process()
    seconds = 0.0
    for process in (this_process, *this_process.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


@contextmanager
def show_progress_bar(name: str, total: float, *, shown: bool = True) -> Iterator[Show]:
    """Yields a function that shows the completed share and the remaining time of some work.

    The function also reports progress. Without a terminal, it prints a line every
    `PLAIN_INTERVAL_S`. The bar appears with its first call, so that no empty bar precedes a
    configuration error.

    Args:
        name: The name of the work, shown before the bar.
        total: The amount of work, in any unit.
        shown: Whether to show the bar; if not, the function only reports progress.
    """
    bar = _TerminalBar(name, total) if sys.stderr.isatty() else _PlainLines(name, total)

    def show(done: float, note: str = "") -> None:
        report_progress()
        if shown:
            bar.show(done, note)

    try:
        yield show
    finally:
        bar.stop()


def show_file_bar(path: Path, name: str) -> AbstractContextManager[Show]:
    """Returns a `show_progress_bar` whose amount of work is the size of a file in bytes."""
    size = path.stat().st_size if path.exists() else 0
    return show_progress_bar(name, size)


class _TerminalBar:
    """A progress bar on a terminal."""

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
        # Without rich's refreshing thread, which must not be running when a worker is forked.
        self._bar = ProgressDisplay(*columns, auto_refresh=False)
        self._task = self._bar.add_task(name, total=total, note="")
        self._refresh_time = 0.0

    def show(self, done: float, note: str) -> None:
        self._bar.start()
        self._bar.update(self._task, completed=done, note=note)

        current_time = time.monotonic()
        if current_time - self._refresh_time >= _REFRESH_INTERVAL_S:
            self._refresh_time = current_time
            self._bar.refresh()

    def stop(self) -> None:
        self._bar.stop()


class _PlainLines:
    """Lines on standard error that replace the bar if it is not a terminal."""

    def __init__(self, name: str, total: float) -> None:
        self._name = name
        self._total = total
        self._start_time = time.monotonic()
        self._print_time = self._start_time

    def show(self, done: float, note: str) -> None:
        current_time = time.monotonic()
        if current_time - self._print_time < PLAIN_INTERVAL_S:
            return
        self._print_time = current_time

        elapsed_s = current_time - self._start_time
        share = done / max(self._total, 1e-9)
        remaining = f"{elapsed_s * (1 - share) / share:,.0f} s left" if share > 0 else ""
        fields = [f"{self._name} {share:.0%}", note, f"{elapsed_s:,.0f} s", remaining]
        print(", ".join(filter(None, fields)), file=sys.stderr, flush=True)

    def stop(self) -> None:
        pass
