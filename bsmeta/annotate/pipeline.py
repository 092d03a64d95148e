"""From input files to shards: what is to be done, the chunks, and the workers that do it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from pathlib import Path
from types import FrameType

import msgspec
import xxhash

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import Annotation, Chunk, Counts
from bsmeta.annotate.inputs import InputFile
from bsmeta.annotate.page import VERSION
from bsmeta.annotate.pool import Pool, Work
from bsmeta.annotate.registry import fingerprints
from bsmeta.annotate.shard import Header, Journal, ShardFiles, ShardWriter, existing_rows
from bsmeta.annotate.sources import item_bytes, open_source
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError, DataError

TYPICAL_SHARE = 3.0  # bytes of a shard for each byte of compressed raw pages
MARGIN = 1.1

Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input that are done, and what was found in it."""


class Stopped(BaseException):
    """A signal asks the program to end; not an `Exception`, so that nothing catches it."""


@dataclass(frozen=True)
class ShardPlan:
    """What is to be done for an input file.

    Attributes:
        file: The input.
        files: The files of its shard.
        header: What the shard is made from; `names` are the annotators to run.
        existing: The journal of the existing shard, if its rows are used.
        is_complete: Whether there is nothing to do.
    """

    file: InputFile
    files: ShardFiles
    header: Header
    existing: Journal | None
    is_complete: bool


def plan_shards(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    output: Path,
    files: Iterable[InputFile],
) -> list[ShardPlan]:
    """What is to be done for each input file."""
    wanted = fingerprints(annotators)
    return [plan_shard(config, wanted, output, file) for file in files]


def plan_shard(
    config: AnnotateConfig, wanted: Mapping[str, str], output: Path, file: InputFile
) -> ShardPlan:
    """Compares what an existing shard was made from with what it would be made from now.

    If pages and text are the same, only annotators that are new, have changed, or are named in
    `replace` run; with `only` no others than these.

    Args:
        config: The configuration.
        wanted: The fingerprints of the annotators.
        output: The folder of the shards.
        file: The input.
    """
    files = ShardFiles(output, file.name)
    text = _text_fingerprint(config)
    header = Header(file.bytes, file.xxh3, text, dict(wanted), list(wanted))
    existing = files.complete()
    if existing is None or not existing.header.is_same_page_text(header):
        if config.only is not None:
            header.names = [name for name in header.names if name in config.only]
            header.annotators = {name: wanted[name] for name in header.names}
        return ShardPlan(file, files, header, None, is_complete=False)
    made = existing.header.annotators
    changed = [name for name in wanted if made.get(name) != wanted[name] or name in config.replace]
    header.names = [name for name in changed if config.only is None or name in config.only]
    header.annotators = made | {name: wanted[name] for name in header.names}
    header.replaces = existing.end
    return ShardPlan(file, files, header, existing, is_complete=not header.names)


def _text_fingerprint(config: AnnotateConfig) -> str:
    """Identifies what shapes rows beside the annotators."""
    settings = [VERSION, config.profile, config.keep_html, config.page_mb]
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(settings))


def check_disk(output: Path, plans: Sequence[ShardPlan]) -> None:
    """Refuses to start if the shards will probably not fit.

    Their size is estimated from those that are complete.

    Raises:
        ConfigurationError: With what is needed and what is free.
    """
    complete = [plan for plan in plans if plan.existing is not None]
    read = sum(plan.file.bytes for plan in complete)
    share = sum(plan.existing.end for plan in complete if plan.existing) / read if read else 0
    left = [plan for plan in plans if not plan.is_complete]
    written = sum(plan.files.part.stat().st_size for plan in left if plan.files.part.exists())
    needed = MARGIN * (share or TYPICAL_SHARE) * sum(plan.file.bytes for plan in left) - written
    free = shutil.disk_usage(output).free
    if needed > free:
        raise ConfigurationError(
            f"output={output} has {free / 1e9:.1f} GB free, and the {len(left)} shards that are "
            f"left need about {needed / 1e9:.1f} GB: free some space, name another folder, or set "
            "check_disk=false"
        )


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
            rows: Iterator[bytes | None] = repeat(None)
            if plan.existing is not None:
                rows = islice(existing_rows(plan.files, plan.existing), writer.pages, None)
            first = Chunk(number, names=frozenset(plan.header.names))
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
    rows: Iterable[bytes | None] = repeat(None),
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
