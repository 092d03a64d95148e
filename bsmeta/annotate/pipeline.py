"""From input files to shards: what is to be done for each, and the workers that do it by chunks.

A shard is compared with what it would be made from now. While its pages and their text stay the
same, it is updated column by column. If they change, it is rebuilt. A rebuild that would lose
columns, because the command does not make all of them again, is refused before anything is written.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from pathlib import Path
from types import FrameType

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import Annotation, Chunk, Counts, Dropped
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.page import VERSION
from bsmeta.annotate.pool import Pool, Work
from bsmeta.annotate.registry import fingerprints, with_dependents
from bsmeta.annotate.shard import (
    FOLDER,
    JOURNAL_SUFFIX,
    SHARD_SUFFIX,
    Header,
    Journal,
    PageSettings,
    ShardFiles,
    ShardWriter,
    existing_rows,
    read_journal,
)
from bsmeta.annotate.sources import InputFile, counted, item_bytes, read_items
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import free_bytes

TYPICAL_SHARE = 3.0  # bytes of a shard for each byte of compressed raw pages
MARGIN = 1.1
NAMED_SHARDS = 5  # in a message

Advance = Callable[[int, Counts], None]
"""Called after each chunk with the bytes of input that are done, and what was found in it."""


@dataclass(frozen=True)
class Shard:
    """An input file and the shard that is there, if any.

    Attributes:
        file: The input.
        files: The files of its shard.
        journal: That of a whole shard.
    """

    file: InputFile
    files: ShardFiles
    journal: Journal | None


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


def find_shards(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    output: Path,
    files: Iterable[InputFile],
) -> list[Shard]:
    """The shards of the input files.

    Raises:
        ConfigurationError: If one of them would be rewritten with the loss of columns.
    """
    shards = []
    losses: defaultdict[str, list[str]] = defaultdict(list)
    rebuilt = {one.name for one in annotators if config.only is None or one.name in config.only}
    for file in files:
        shard_files = ShardFiles(output, file.name)
        shard = Shard(file, shard_files, shard_files.complete())
        for loss in _losses(config, rebuilt, shard):
            losses[loss].append(shard_files.shard.name)
        shards.append(shard)
    if losses:
        problems = "\n".join(f"  {_named(names)}: {loss}" for loss, names in losses.items())
        without_only = " without `only`" if config.only is not None else ""
        raise ConfigurationError(
            f"output={output}: shards there would be overwritten, and columns that this command "
            f"does not recompute would be lost:\n{problems}\nNothing was changed. Undo the change, "
            f"repeat the command with all annotators of these shards{without_only}, or name "
            "another output"
        )
    return shards


def _losses(config: AnnotateConfig, rebuilt: set[str], shard: Shard) -> Iterator[str]:
    """Yields the reasons why rewriting the shard would destroy something."""
    path = shard.files.shard
    if not path.exists():
        return
    if os.path.samefile(path, shard.file.path):
        yield "is the input file itself"
        return
    journal = shard.journal or read_journal(shard.files.journal)
    if journal is None:
        yield f"no journal of this version describes it ({shard.files.journal})"
        return
    changes = [] if shard.journal is not None else ["it is damaged"]
    changes += journal.header.changes(_header(config, shard.file))
    lost = [name for name in journal.header.annotators if name not in rebuilt]
    if changes and lost:
        yield f"{', '.join(changes)}; would lose {', '.join(lost)}"


def refuse_renamed(output: Path, files: Sequence[InputFile]) -> None:
    """Refuses a second shard of the same pages: a file's shard is named after its folder, too, as
    soon as another file has the same name.

    Raises:
        ConfigurationError: If the output has the pages of an input file in a shard of another name.
    """
    names = {file.name for file in files}
    shards = {
        file.xxh3: file.name for file in files if ShardFiles(output, file.name).complete() is None
    }
    for path in sorted((output / FOLDER).glob(f"*{JOURNAL_SUFFIX}")):
        name = path.name.removesuffix(JOURNAL_SUFFIX)
        journal = ShardFiles(output, name).complete() if name not in names else None
        if journal and journal.counts().rows and journal.header.input_xxh3 in shards:
            raise ConfigurationError(
                f"output={output}: {name}{SHARD_SUFFIX} has the pages of the input file whose "
                f"shard is now named {shards[journal.header.input_xxh3]}{SHARD_SUFFIX}; training "
                f"would read them twice. Delete {name}{SHARD_SUFFIX}, or name another output"
            )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_SHARDS
    return ", ".join(names[:NAMED_SHARDS]) + (f" and {more:,} more" if more > 0 else "")


def plan_shards(
    config: AnnotateConfig, annotators: Sequence[Annotator], shards: Iterable[Shard]
) -> list[ShardPlan]:
    """What is to be done for each input file.

    If pages and text are the same, only annotators that are new, have changed, or are named in
    `replace`, and those that need their columns run; with `only` no others than these.
    """
    own = {
        annotator.name: annotator.fingerprint()
        for annotator in annotators
        if config.only is None or annotator.name in config.only
    }
    replaced = with_dependents(annotators, config.replace)
    return [_plan(config, annotators, own, replaced, shard) for shard in shards]


def _plan(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    own: dict[str, str],
    replaced: set[str],
    shard: Shard,
) -> ShardPlan:
    header, existing = _header(config, shard.file), shard.journal
    if existing is None or existing.header.changes(header):
        header.names = list(own)
        header.annotators = fingerprints(annotators, own, {})
        if existing is not None:
            header.keeps_html |= existing.header.keeps_html
        return ShardPlan(shard.file, shard.files, header, None, is_complete=False)
    made = existing.header
    wanted = fingerprints(annotators, own, made.annotators)
    header.names = [
        name for name in own if made.annotators.get(name) != wanted[name] or name in replaced
    ]
    header.annotators = made.annotators | {name: wanted[name] for name in header.names}
    header.keeps_html |= made.keeps_html
    header.replaces = existing.end
    is_complete = not header.names and header.keeps_html == made.keeps_html
    return ShardPlan(shard.file, shard.files, header, existing, is_complete)


def _header(config: AnnotateConfig, file: InputFile) -> Header:
    """The header of the shard of a file, without annotators."""
    pages = PageSettings(VERSION, config.profile, config.page_mb)
    return Header(file.bytes, file.xxh3, pages, config.keep_html, {}, [])


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
    free = free_bytes(output)
    if needed > free:
        raise ConfigurationError(
            f"output={output} has {free / 1e9:.1f} GB free, but about {needed / 1e9:.1f} GB are "
            f"needed for {counted(len(left), 'shard')}: free some space, name another folder, or "
            "set check_disk=false"
        )


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
    items = read_items(path, int(config.page_mb * 1e6), skip)
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
