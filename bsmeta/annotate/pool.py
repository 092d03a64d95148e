"""Worker processes for chunks of pages, replaced if a page crashes them or takes too long.

A worker records which page it works on, and since when. If it hangs, or dies twice on one page, the
chunk is redone without the step that was running on that page; other pages are not affected.
Results come in the order of the chunks, whatever the number of workers. `pebble.ProcessPool` is not
used: its time limit is for a whole task, and it does not report on which page a worker died.
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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import msgspec

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.decisions import Duplicate
from bsmeta.annotate.shard import Counts, Dropped
from bsmeta.annotate.sources import (
    BAD_RECORD,
    InputFile,
    InputRecord,
    Item,
    estimate_item_bytes,
    read_items,
)
from bsmeta.core.errors import DataError

log = logging.getLogger(__name__)

TIME_LIMIT = "time_limit"
DIED = "worker_died"
PAGE_STEP = -1  # the step that makes the text of a page; step k runs annotator k

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that the kernel sends when the parent exits
_DEATHS = 2  # crashes on one page before the page is blamed
_POLL_S = 0.5
_CONTAINERS = 50_000  # new containers that set off a garbage collection; a page leaves no cycles
_NO_PAGE = -1.0


class Chunk(msgspec.Struct):
    """Consecutive records of an input file; without records it only marks the end of the file."""

    shard: int  # number of the file
    items: list[Item] = []
    names: frozenset[str] = frozenset()  # the annotators to run
    keeps_html: bool = False  # whether rows keep the raw page
    rows: list[bytes | Dropped | None] = []  # the items' rows in the shard that is updated, if any
    duplicates: dict[int, Duplicate] = {}  # of the items that copy another page, by their number
    position: int = 0  # bytes of all files that had been read after the last record
    problem: str = ""  # at the end of a damaged file: the message
    others: dict[str, int] = {}  # at the end of a WARC file: records that are no pages, by type


Failures = dict[tuple[int, int], str]
"""Steps of items that are not run because they are known to fail: reasons by item and step."""
Work = Callable[[Chunk, Failures, "Status"], Any]
Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input that are done, and the counts of the chunk."""


def read_chunks(
    config: AnnotateConfig,
    first: Chunk,
    file: InputFile,
    skip: int = 0,
    rows: Iterable[bytes | Dropped | None] = repeat(None),
) -> Iterator[Chunk]:
    """Yields the records of a file after the first `skip` in chunks, then an empty chunk.

    Args:
        first: The empty chunk of which all are copies; its position is the beginning of the file.
        rows: The existing rows of the records.
    """
    others: Counter[str] = Counter()
    items = read_items(
        file.path,
        int(config.page_mb * 1e6),
        skip,
        on_bad_record=config.on_bad_record,
        others=others,
    )
    chunk = deepcopy(first)
    chunk_bytes = 0
    end = deepcopy(first)
    end.position += file.bytes
    try:
        for (item, position), row in zip(items, rows, strict=False):
            if len(chunk.items) >= config.chunk_pages or chunk_bytes >= config.chunk_mb * 1e6:
                yield chunk
                chunk = deepcopy(first)
                chunk_bytes = 0
            if isinstance(item, InputRecord) and item.problem == BAD_RECORD:
                log.warning("%s, %s; skipped", file.path, item.url)
            chunk.items.append(item)
            chunk.rows.append(row)
            chunk.position = first.position + position
            chunk_bytes += estimate_item_bytes(item)
    except DataError as error:
        end.problem = str(error)

    if chunk.items:
        yield chunk
    end.others = dict(others)
    yield end


class Stopped(BaseException):
    """A signal asks the program to end; not an `Exception`, so that no handler catches it."""


@contextlib.contextmanager
def stop_at_signals() -> Iterator[None]:
    """Makes signals that ask a process to end raise `Stopped`, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in replaced:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    # Other handlers stay: ignored signals, as under nohup, and datatrove's, which requeues a task.
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    replaced = {number: handler for number, handler in handlers.items() if handler in defaults}

    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


class Status:
    """The page and the step that a worker is at, in memory that the parent reads."""

    def __init__(self) -> None:
        self._values = multiprocessing.RawArray("d", [_NO_PAGE, PAGE_STEP, 0.0])

    def begin_page(self, item: int) -> None:
        """Notes that a page begins, with the step that makes its text."""
        self._values[:] = [item, PAGE_STEP, time.monotonic()]

    def begin_step(self, step: int) -> None:
        """Notes that another step of the page begins."""
        self._values[1] = step

    def end_page(self) -> None:
        """Notes that no page is being worked on."""
        self._values[0] = _NO_PAGE

    def read_item_and_step(self) -> tuple[int, int] | None:
        """Returns the page's number in the chunk, and the step; None outside pages."""
        item, step, _ = self._values
        return None if item == _NO_PAGE else (int(item), int(step))

    def measure_seconds(self) -> float:
        """Returns the seconds since the page began; 0 outside pages."""
        item, _, start = self._values
        return 0.0 if item == _NO_PAGE else time.monotonic() - start


@dataclass
class _Job:
    """A chunk to work on, and what happened to it so far."""

    number: int
    chunk: Chunk
    failures: Failures = field(default_factory=dict)
    deaths: list[int | None] = field(default_factory=list)  # pages on which workers died


class _Worker:
    """A process and its current job."""

    def __init__(self, work: Work, memory_bytes: int) -> None:
        context = multiprocessing.get_context("fork")  # shares the data that annotators loaded
        self.status = Status()
        self.job: _Job | None = None
        self.connection, worker_end = context.Pipe()
        arguments = (worker_end, work, self.status, memory_bytes, os.getpid())
        self.process = context.Process(target=_run_worker, args=arguments, daemon=True)
        self.process.start()
        worker_end.close()

    def assign_job(self, job: _Job) -> None:
        """Gives it a job. If it has died, that is noticed when its answer is awaited."""
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((job.chunk, job.failures))

    def kill_process(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """Worker processes that do `work`; the configuration sets their number.

    A pool is used in a `with` statement, which ends the processes.
    """

    def __init__(self, config: AnnotateConfig, work: Work) -> None:
        workers = config.workers or len(os.sched_getaffinity(0))
        self._start_worker = lambda: _Worker(work, int(config.worker_gb * 1e9))
        self._page_seconds = config.page_seconds
        self._max_pending = 2 * workers
        self._workers = [self._start_worker() for _ in range(workers)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill_process()

    def map(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """Yields each chunk with its result, in order; the result is None for an empty chunk.

        Raises:
            RuntimeError: If a worker fails for another reason than a page.
        """
        jobs = (_Job(number, chunk) for number, chunk in enumerate(chunks))
        has_more_jobs = True
        retries: deque[_Job] = deque()
        results: dict[int, tuple[Chunk, Any]] = {}
        taken = 0  # number of jobs taken from `jobs`
        yielded = 0  # number of results yielded
        while has_more_jobs or taken > yielded:
            for worker in self._workers:
                while worker.job is None:
                    may_take_more = has_more_jobs and taken - yielded < self._max_pending
                    if not retries and not may_take_more:
                        break
                    job = retries.popleft() if retries else next(jobs, None)
                    if job is None:
                        has_more_jobs = False
                        break
                    taken = max(taken, job.number + 1)
                    if job.chunk.items:
                        worker.assign_job(job)
                    else:
                        results[job.number] = job.chunk, None

            for job, result in self._wait_for_results(retries):
                results[job.number] = job.chunk, result
            while yielded in results:
                yield results.pop(yielded)
                yielded += 1

    def _wait_for_results(self, retries: deque[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Waits for results; adds jobs whose worker was replaced to `retries`."""
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        ready = wait(list(busy), min(_POLL_S, self._page_seconds / 4)) if busy else []
        for connection, worker in busy.items():
            job = worker.job
            assert job is not None
            if connection in ready:
                try:
                    error, result = connection.recv()
                except (EOFError, ConnectionResetError):
                    retries.append(self._replace_worker(worker, DIED))
                    continue
                if error:
                    raise RuntimeError(f"a worker failed:\n{error}")
                worker.job = None
                yield job, result
            elif worker.status.measure_seconds() > self._page_seconds:
                retries.append(self._replace_worker(worker, TIME_LIMIT))

    def _replace_worker(self, worker: _Worker, reason: str) -> _Job:
        """Replaces a worker; returns its job, without the step that is to blame.

        Raises:
            RuntimeError: If the worker did not work on a page.
        """
        job = worker.job
        assert job is not None
        worker.kill_process()
        step = worker.status.read_item_and_step()
        seconds = worker.status.measure_seconds()
        self._workers[self._workers.index(worker)] = self._start_worker()

        code = worker.process.exitcode
        if reason == DIED:
            page = None if step is None else step[0]
            job.deaths.append(page)
            if job.deaths.count(page) < _DEATHS:
                log.warning("a worker ended (exit code %s); its chunk is redone", code)
                return job
        elif seconds <= self._page_seconds:
            return job  # the page was done after all
        if step is None:
            raise RuntimeError(
                f"workers end (exit code {code}) outside of pages; is worker_gb too small?"
            )

        job.failures[step] = reason
        log.warning("a page: %s; it is counted, and its chunk is redone", reason)
        return job


def _run_worker(
    connection: Connection, work: Work, status: Status, memory_bytes: int, parent: int
) -> None:
    """Runs the main loop of a worker process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return  # the parent exited before the call
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
        status.end_page()
        connection.send(answer)


def collect_rarely() -> None:
    """Keeps the garbage collector from visiting loaded libraries and models, and pages at work."""
    gc.freeze()
    gc.set_threshold(_CONTAINERS)


def _limit_memory(more_bytes: int) -> None:
    """Limits the memory that this process may allocate from here on; more raises MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit == resource.RLIM_INFINITY or limit < hard_limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
