"""Runs worker processes on chunks of pages; replaces a worker if a page crashes it or hangs.

A worker records its current page and step, and when the page began. If it hangs, or dies twice on
one page, the chunk is redone without the step that was running on that page. Results are yielded in
the order of the chunks. `pebble.ProcessPool` is not used: its time limit applies to a whole task,
and it does not report the page on which a worker died.
"""

from __future__ import annotations

import contextlib
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
from bsmeta.annotate.inputs.sources import (
    BAD_RECORD,
    InputFile,
    InputRecord,
    Item,
    estimate_item_bytes,
    read_items,
)
from bsmeta.annotate.shard import Counts, Dropped
from bsmeta.core.errors import DataError
from bsmeta.core.signals import kill_with_parent

logger = logging.getLogger(__name__)

TIME_LIMIT = "time_limit"
DIED = "worker_died"
PAGE_STEP = -1
"""The step that makes the text of a page; step k >= 0 runs annotator k."""

_MIN_DEATHS_TO_BLAME = 2  # crashes on one page before the page is blamed
_MAX_POLL_S = 0.5
_GC_THRESHOLD = 50_000  # objects allocated before a garbage collection; pages leave no cycles
_NO_PAGE = -1.0


class Chunk(msgspec.Struct):
    """Consecutive records of an input file; a chunk without items marks the end of the file.

    Attributes:
        shard: Index of the file.
        items: The records.
        names: The annotators to run.
        keeps_html: Whether rows keep the raw page.
        rows: The existing rows of the items, if the shard is updated.
        duplicates: The decisions on items that copy a page, by index of the item.
        position: Bytes of all input files up to the end of the last item.
        problem: At the end of a damaged file, the message; otherwise empty.
        others: At the end of a WARC file, the number of records that are not pages, by type.
    """

    shard: int
    items: list[Item] = []
    names: frozenset[str] = frozenset()
    keeps_html: bool = False
    rows: list[bytes | Dropped | None] = []
    duplicates: dict[int, Duplicate] = {}
    position: int = 0
    problem: str = ""
    others: dict[str, int] = {}


Failures = dict[tuple[int, int], str]
"""Steps to skip because they crashed or timed out: the reason by index of the item and step."""
Work = Callable[[Chunk, Failures, "Status"], Any]
"""Function that a worker calls for each chunk with items; it reports its progress in `Status`."""
Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input done so far and the counts of the chunk."""


def read_chunks(
    config: AnnotateConfig,
    template: Chunk,
    file: InputFile,
    skip: int = 0,
    rows: Iterable[bytes | Dropped | None] = repeat(None),
) -> Iterator[Chunk]:
    """Yields the records of a file in chunks, then a chunk without items.

    Args:
        template: A chunk without items, whose other fields all chunks share; its position is the
            beginning of the file.
        skip: Number of records to skip.
        rows: The existing rows of the records that are not skipped.
    """
    others: Counter[str] = Counter()
    items = read_items(
        file.path,
        int(config.page_mb * 1e6),
        skip,
        on_bad_record=config.on_bad_record,
        others=others,
    )
    chunk = deepcopy(template)
    chunk_bytes = 0
    end = deepcopy(template)
    end.position += file.bytes
    try:
        for (item, position), row in zip(items, rows, strict=False):
            if len(chunk.items) >= config.chunk_pages or chunk_bytes >= config.chunk_mb * 1e6:
                yield chunk
                chunk = deepcopy(template)
                chunk_bytes = 0
            if isinstance(item, InputRecord) and item.problem == BAD_RECORD:
                logger.warning("%s, %s; skipped", file.path, item.url)
            chunk.items.append(item)
            chunk.rows.append(row)
            chunk.position = template.position + position
            chunk_bytes += estimate_item_bytes(item)
    except DataError as error:
        end.problem = str(error)

    if chunk.items:
        yield chunk
    end.others = dict(others)
    yield end


class Stopped(BaseException):
    """Raised if a signal ends the program; no `Exception`, so general handlers do not catch it."""


@contextlib.contextmanager
def stop_at_signals() -> Iterator[None]:
    """Makes the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 raise `Stopped`; ignores later ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in replaced:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    # Only default handlers are replaced: signals may be ignored, as under nohup, or requeue a task
    # of datatrove.
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
    """The current page and step of a worker, in memory shared with the parent process."""

    def __init__(self) -> None:
        # Index of the item, step, and start of the page in seconds of the monotonic clock
        self._values = multiprocessing.RawArray("d", [_NO_PAGE, PAGE_STEP, 0.0])

    def begin_page(self, item: int) -> None:
        """Records that the work on a page begins, with `PAGE_STEP`."""
        self._values[:] = [item, PAGE_STEP, time.monotonic()]

    def begin_step(self, step: int) -> None:
        """Records that another step of the current page begins."""
        self._values[1] = step

    def end_page(self) -> None:
        """Records that no page is being worked on."""
        self._values[0] = _NO_PAGE

    def read_item_and_step(self) -> tuple[int, int] | None:
        """Returns the index of the current item in its chunk, and the step; None between pages."""
        item, step, _ = self._values
        return None if item == _NO_PAGE else (int(item), int(step))

    def measure_page_seconds(self) -> float:
        """Returns the seconds since the current page began; 0 between pages."""
        item, _, start = self._values
        return 0.0 if item == _NO_PAGE else time.monotonic() - start


@dataclass
class _Job:
    """A chunk to work on, and its earlier failures.

    Attributes:
        number: Index of the chunk among all chunks.
        deaths: The item that each crashed worker was working on; None between pages.
    """

    number: int
    chunk: Chunk
    failures: Failures = field(default_factory=dict)
    deaths: list[int | None] = field(default_factory=list)


class _Worker:
    """A worker process and its current job."""

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
        """Sends a job to the process; a dead process is only noticed when the pool waits."""
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((job.chunk, job.failures))

    def kill_process(self) -> None:
        """Kills the process, and waits until it has ended."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """Worker processes that run `work` on chunks; as a context manager, kills them at the end.

    Args:
        config: Sets the number of processes, and the time and memory limits.
        work: Called in the workers for each chunk with items; see `Work`.
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
        """Yields each chunk with its result, in order; None is the result of chunks without items.

        Raises:
            RuntimeError: If a worker fails for a reason other than a page.
        """
        jobs = (_Job(number, chunk) for number, chunk in enumerate(chunks))
        has_more_jobs = True
        retries: deque[_Job] = deque()
        results: dict[int, tuple[Chunk, Any]] = {}  # by the number of the job, not yet yielded
        taken = 0  # number of jobs taken from `jobs`
        yielded = 0  # number of results yielded
        while has_more_jobs or taken > yielded:
            # Give each idle worker a job; chunks without items need no worker.
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
                        results[job.number] = (job.chunk, None)

            for job, result in self._wait_for_results(retries):
                results[job.number] = (job.chunk, result)
            while yielded in results:
                yield results.pop(yielded)
                yielded += 1

    def _wait_for_results(self, retries: deque[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Waits for results, and replaces workers that died or exceed the time limit of a page.

        Args:
            retries: Receives the jobs of replaced workers.

        Raises:
            RuntimeError: If a worker fails for a reason other than a page.
        """
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        ready = wait(list(busy), min(_MAX_POLL_S, self._page_seconds / 4)) if busy else []
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
            elif worker.status.measure_page_seconds() > self._page_seconds:
                retries.append(self._replace_worker(worker, TIME_LIMIT))

    def _replace_worker(self, worker: _Worker, reason: str) -> _Job:
        """Replaces a worker; returns its job, which skips the failed step if a page is to blame.

        Args:
            reason: `DIED` or `TIME_LIMIT`.

        Raises:
            RuntimeError: If workers die outside of pages.
        """
        job = worker.job
        assert job is not None
        worker.kill_process()
        item_and_step = worker.status.read_item_and_step()
        seconds = worker.status.measure_page_seconds()
        self._workers[self._workers.index(worker)] = self._start_worker()

        code = worker.process.exitcode
        if reason == DIED:
            item = None if item_and_step is None else item_and_step[0]
            job.deaths.append(item)
            if job.deaths.count(item) < _MIN_DEATHS_TO_BLAME:
                logger.warning("a worker ended (exit code %s); its chunk is redone", code)
                return job
        elif seconds <= self._page_seconds:
            return job  # the page was completed before the worker was killed
        if item_and_step is None:
            raise RuntimeError(
                f"workers end (exit code {code}) outside of pages; is worker_gb too small?"
            )

        job.failures[item_and_step] = reason
        logger.warning("a page: %s; it is counted, and its chunk is redone", reason)
        return job


def _run_worker(
    connection: Connection, work: Work, status: Status, memory_bytes: int, parent: int
) -> None:
    """Runs the main loop of a worker process."""
    kill_with_parent(parent)

    # Terminals and schedulers signal every process of a job; only the parent reacts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _limit_memory(memory_bytes)
    reduce_garbage_collection()

    while True:
        chunk, failures = connection.recv()
        error = ""
        result = None
        try:
            result = work(chunk, failures, status)
        except Exception:
            error = traceback.format_exc()
        status.end_page()
        connection.send((error, result))


def reduce_garbage_collection() -> None:
    """Excludes existing objects, such as models, from garbage collection, and makes it rare."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _limit_memory(more_bytes: int) -> None:
    """Limits the memory that this process may allocate beyond its current size.

    Further allocations raise MemoryError.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit == resource.RLIM_INFINITY or limit < hard_limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
