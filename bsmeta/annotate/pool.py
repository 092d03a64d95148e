"""Processes that work on chunks of pages, and are replaced if a page ends them or takes too long.

A worker records which page it works on, and since when. If it hangs, or dies twice on one page,
the chunk is redone without the step of that page that was running; other pages are not affected.
Results come in the order of the chunks, whatever the number of workers. `pebble.ProcessPool` is not
used: its time limit is that of a whole task, and it does not report on which page a worker died.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import msgspec

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.shard import Counts, Dropped
from bsmeta.annotate.sources import InputFile, Item, item_bytes, read_items
from bsmeta.core.errors import DataError

log = logging.getLogger(__name__)

TIME_LIMIT = "time_limit"
DIED = "worker_died"
PAGE_STEP = -1  # the step in which the text of a page is made; step k is that of annotator k

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that the kernel sends when the parent exits
_DEATHS = 2  # crashes on one page before the page is blamed
_POLL_S = 0.5
_CONTAINERS = 50_000  # that set off a garbage collection; a page leaves no cycles
_OUTSIDE = -1.0


class Chunk(msgspec.Struct):
    """Consecutive records of an input file; without records it only marks the end of the file."""

    shard: int  # number of the file
    items: list[Item] = []
    names: frozenset[str] = frozenset()  # the annotators to run
    keeps_html: bool = False  # whether rows keep the raw page
    rows: list[bytes | Dropped | None] = []  # of the items in the shard that is updated, if any
    position: int = 0  # bytes of all files that had been read after the last record
    problem: str = ""  # at the end of a file that is damaged: the message


Failures = dict[tuple[int, int], str]
"""Steps of items that are not run because they are known to fail: reasons by item and step."""
Work = Callable[[Chunk, Failures, "Status"], Any]
Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input that are done, and what was found in it."""


def chunks_of_file(
    config: AnnotateConfig,
    first: Chunk,
    file: InputFile,
    skip: int = 0,
    rows: Iterable[bytes | Dropped | None] = repeat(None),
) -> Iterator[Chunk]:
    """The records of a file after the first `skip` in chunks, and an empty chunk at its end.

    All are copies of `first`, whose position is the beginning of the file; `rows` are the existing
    rows of the records.
    """
    items = read_items(file.path, int(config.page_mb * 1e6), skip)
    chunk, end, size = deepcopy(first), deepcopy(first), 0
    end.position += file.bytes
    try:
        for (item, position), row in zip(items, rows, strict=False):
            if len(chunk.items) >= config.chunk_pages or size >= config.chunk_mb * 1e6:
                yield chunk
                chunk, size = deepcopy(first), 0
            chunk.items.append(item)
            chunk.rows.append(row)
            chunk.position = first.position + position
            size += item_bytes(item)
    except DataError as error:
        end.problem = str(error)
    if chunk.items:
        yield chunk
    yield end


class Stopped(BaseException):
    """A signal asks the program to end; not an `Exception`, so that nothing catches it."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Makes signals that ask a process to end raise `Stopped`, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in handlers:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    # Others stay: what is ignored, as under nohup, and datatrove's, which requeues a task.
    own = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: handler for number, handler in handlers.items() if handler in own}
    for number in handlers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Status:
    """Where a worker is, in memory that the parent reads."""

    def __init__(self) -> None:
        self._values = multiprocessing.RawArray("d", [_OUTSIDE, PAGE_STEP, 0.0])

    def begin(self, item: int) -> None:
        """A page begins, with the step that makes its text."""
        self._values[:] = [item, PAGE_STEP, time.monotonic()]

    def step(self, step: int) -> None:
        """Another step of the page begins."""
        self._values[1] = step

    def end(self) -> None:
        """No page is being worked on."""
        self._values[0] = _OUTSIDE

    def place(self) -> tuple[int, int] | None:
        """Item and step; None outside pages."""
        item, step, _ = self._values
        return None if item == _OUTSIDE else (int(item), int(step))

    def seconds(self) -> float:
        """How long the page has taken so far; 0 outside pages."""
        item, _, start = self._values
        return 0.0 if item == _OUTSIDE else time.monotonic() - start


@dataclass
class _Job:
    number: int
    chunk: Chunk
    failures: Failures = field(default_factory=dict)
    deaths: list[int | None] = field(default_factory=list)


class _Worker:
    """A process, and the job that it has."""

    def __init__(self, work: Work, memory_bytes: int) -> None:
        context = multiprocessing.get_context("fork")  # what the annotators loaded is shared
        self.status = Status()
        self.job: _Job | None = None
        self.connection, theirs = context.Pipe()
        arguments = (theirs, work, self.status, memory_bytes, os.getpid())
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: _Job) -> None:
        """Gives it a job. If it has died, that is noticed when its answer is awaited."""
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((job.chunk, job.failures))

    def end(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """The workers that a configuration asks for, for a `with` statement; `work` is done by them."""

    def __init__(self, config: AnnotateConfig, work: Work) -> None:
        workers = config.workers or len(os.sched_getaffinity(0))
        self._make = lambda: _Worker(work, int(config.worker_gb * 1e9))
        self._page_seconds = config.page_seconds
        self._ahead = 2 * workers
        self._workers = [self._make() for _ in range(workers)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def map(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """The results of the chunks, in their order; None for those without items.

        Raises:
            RuntimeError: If a worker fails for a reason that is no page's.
        """
        jobs = (_Job(number, chunk) for number, chunk in enumerate(chunks))
        retries: deque[_Job] = deque()
        done: dict[int, tuple[Chunk, Any]] = {}
        first, count = 0, 0  # the next result, and the jobs that were taken
        more = True
        while more or count > first:
            for worker in self._workers:
                while worker.job is None and (retries or (more and count - first < self._ahead)):
                    job = retries.popleft() if retries else next(jobs, None)
                    if job is None:
                        more = False
                        break
                    count = max(count, job.number + 1)
                    if job.chunk.items:
                        worker.give(job)
                    else:
                        done[job.number] = job.chunk, None
            for job, result in self._finished(retries):
                done[job.number] = job.chunk, result
            while first in done:
                yield done.pop(first)
                first += 1

    def _finished(self, retries: deque[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Waits for results; jobs whose worker was replaced are added to `retries`."""
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        ready = wait(list(busy), min(_POLL_S, self._page_seconds / 4)) if busy else []
        for connection, worker in busy.items():
            assert worker.job is not None
            if connection in ready:
                try:
                    error, result = connection.recv()
                except (EOFError, ConnectionResetError):
                    retries.append(self._replace(worker, DIED))
                    continue
                if error:
                    raise RuntimeError(f"a worker failed:\n{error}")
                job, worker.job = worker.job, None
                yield job, result
            elif worker.status.seconds() > self._page_seconds:
                retries.append(self._replace(worker, TIME_LIMIT))

    def _replace(self, worker: _Worker, reason: str) -> _Job:
        """Replaces a worker; returns its job, without the step that is to blame."""
        job = worker.job
        assert job is not None
        worker.end()
        place, seconds = worker.status.place(), worker.status.seconds()  # where it ended
        self._workers[self._workers.index(worker)] = self._make()
        code = worker.process.exitcode
        if reason == DIED:
            job.deaths.append(place[0] if place else None)
            if job.deaths.count(job.deaths[-1]) < _DEATHS:
                log.warning("a worker ended (exit code %s); its chunk is redone", code)
                return job
        elif seconds <= self._page_seconds:
            return job  # the page was done after all
        if place is None:
            raise RuntimeError(
                f"workers end (exit code {code}) outside of pages; is worker_gb too small?"
            )
        job.failures[place] = reason
        log.warning("a page: %s; it is counted, and its chunk is redone", reason)
        return job


def _serve(
    connection: Connection, work: Work, status: Status, memory_bytes: int, parent: int
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    # Terminals and schedulers signal every process of a job; only the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _limit_memory(memory_bytes)
    collect_rarely()
    while True:
        chunk, failures = connection.recv()
        try:
            answer = "", work(chunk, failures, status)
        except Exception:
            answer = traceback.format_exc(), None
        status.end()
        connection.send(answer)


def collect_rarely() -> None:
    """Keeps the garbage collector from visiting what was loaded before, and pages at work."""
    gc.freeze()
    gc.set_threshold(_CONTAINERS)


def _limit_memory(more: int) -> None:
    """Limits what this process may allocate beyond what it has; more raises MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
