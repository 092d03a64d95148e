"""From input files to shards: the chunks, and the workers that annotate them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import accumulate, islice, repeat
from types import FrameType

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import Annotation, Chunk, Counts, Dropped
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.plans import ShardPlan
from bsmeta.annotate.pool import Pool, Work
from bsmeta.annotate.shard import ShardWriter, existing_rows
from bsmeta.annotate.sources import item_bytes, open_source
from bsmeta.core.errors import DataError

Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input that are done, and what was found in it."""


class Stopped(BaseException):
    """A signal asks the program to end; not an `Exception`, so that nothing catches it."""


def run(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    plans: Sequence[ShardPlan],
    advance: Advance,
) -> list[str]:
    """Makes the shards that are not complete.

    Args:
        config: The configuration.
        annotators: In the order in which they run.
        plans: What is to be done.
        advance: Called after each chunk.

    Returns:
        A message for each input file that is damaged; its shard is left incomplete.

    Raises:
        ConfigurationError: If a shard cannot be written, or the disk is full.
        Stopped: If a signal arrives; what is written is continued by the next run.
    """
    problems: list[str] = []
    writers: dict[int, ShardWriter] = {}
    work = Annotation(config, annotators)
    before = [0, *accumulate(plan.file.bytes for plan in plans)]
    try:
        with stopped_by_signals(), make_pool(config, work) as pool:
            for chunk, written in pool.map(_chunks(config, plans, writers)):
                if written is not None:
                    writers[chunk.shard].add(written)
                    advance(before[chunk.shard] + chunk.position, written.counts)
                    continue
                writer = writers.pop(chunk.shard)
                if chunk.problem:
                    problems.append(chunk.problem)
                    writer.close()
                else:
                    writer.finish()
                advance(before[chunk.shard] + plans[chunk.shard].file.bytes, Counts())
    finally:
        for writer in writers.values():
            writer.close()
    return problems


def make_pool(config: AnnotateConfig, work: Work) -> Pool:
    """The workers that the configuration asks for."""
    workers = config.workers or len(os.sched_getaffinity(0))
    return Pool(work, workers, config.page_seconds, int(config.worker_gb * 1e9))


def _chunks(
    config: AnnotateConfig, plans: Sequence[ShardPlan], writers: dict[int, ShardWriter]
) -> Iterator[Chunk]:
    """The chunks that are not yet written; adds a writer for each shard that begins."""
    for number, plan in enumerate(plans):
        if plan.is_complete:
            continue
        writer = writers[number] = ShardWriter(plan.files, plan.header)
        end = Chunk(number)
        if not writer.is_complete:
            rows: Iterator[bytes | Dropped | None] = repeat(None)
            if plan.existing is not None:
                rows = islice(existing_rows(plan.files, plan.existing), writer.pages, None)
            first = Chunk(
                number, names=frozenset(plan.header.names), keeps_html=plan.header.keeps_html
            )
            try:
                yield from chunks_of_file(config, first, plan.file.path, writer.pages, rows)
            except DataError as error:
                end.problem = str(error)
        yield end


def chunks_of_file(
    config: AnnotateConfig,
    first: Chunk,
    path: str,
    skip: int = 0,
    rows: Iterable[bytes | Dropped | None] = repeat(None),
) -> Iterator[Chunk]:
    """The records of a file in chunks.

    Args:
        config: The configuration.
        first: An empty chunk, of which all are copies.
        path: The file.
        skip: Number of records at its beginning that are left out.
        rows: The existing rows of the others.

    Raises:
        DataError: If the file is damaged, after the chunks before the damage.
    """
    items = open_source(path, int(config.page_mb * 1e6)).items(skip)
    chunk, size = deepcopy(first), 0
    damage = None
    try:
        for (item, position), row in zip(items, rows, strict=False):
            if len(chunk.items) >= config.chunk_pages or size >= config.chunk_mb * 1e6:
                yield chunk
                chunk, size = deepcopy(first), 0
            chunk.items.append(item)
            chunk.rows.append(row)
            chunk.position = position
            size += item_bytes(item)
    except DataError as error:
        damage = error
    if chunk.items:
        yield chunk
    if damage is not None:
        raise damage


@contextmanager
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
