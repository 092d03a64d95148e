"""What a run does: its annotators, and for each input file the shard that is made or updated.

A shard is compared with what it would be made from now. While its pages and their text stay the
same, it is updated column by column. If they change, it is rebuilt. A rebuild that would lose
columns, because the command does not make all of them again, is refused before anything is written.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from bsmeta.annotate import about_page, spans
from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.content import Content
from bsmeta.annotate.page import VERSION
from bsmeta.annotate.shard import (
    FOLDER,
    JOURNAL_SUFFIX,
    SHARD_SUFFIX,
    Header,
    Journal,
    PageSettings,
    ShardFiles,
    read_journal,
)
from bsmeta.annotate.sources import InputFile, counted
from bsmeta.core.errors import ConfigurationError, nearest
from bsmeta.core.files import free_bytes

ANNOTATORS: dict[str, type[Annotator]] = {
    kind.name: kind
    for kind in (
        about_page.Html,
        Content,
        about_page.Url,
        about_page.Title,
        about_page.Timestamp,
        about_page.WebsiteDescription,
        about_page.Datasource,
        spans.Length,
        spans.Paragraph,
        about_page.Language,
        spans.Spelling,
        spans.Label,
        spans.Entity,
        spans.EntityParagraph,
    )
}
"""The annotators; rows list their columns in this order, followed by those of custom annotators."""

TYPICAL_SHARE = 3.0  # bytes of a shard for each byte of compressed raw pages
MARGIN = 1.1
NAMED_SHARDS = 5  # in a message
_DECLARED = ("name", "columns")  # by every annotator


def make_annotators(config: AnnotateConfig) -> list[Annotator]:
    """The annotators of a run, each after those whose columns it needs.

    Raises:
        ConfigurationError: Listing names that are unknown, classes that cannot be imported or are
            no annotators, columns that two of them make, and columns that none makes.
    """
    kinds, problems = [], []
    for name in dict.fromkeys(config.annotators):
        try:
            kinds.append(ANNOTATORS[name] if name in ANNOTATORS else _imported(name))
        except ConfigurationError as error:
            problems.append(str(error))
    problems += _column_problems(kinds)
    known = [kind.name for kind in kinds]
    for key, names in (("replace", config.replace), ("only", config.only or [])):
        for name in names:
            if name not in known:
                expected = f"some of `annotators`: {known}"
                problems.append(f"{key}: found {name}{nearest(name, known)}, expected {expected}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return [kind(config) for kind in _in_order(kinds)]


def _imported(name: str) -> type[Annotator]:
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigurationError(
            f"annotators: there is no {name}{nearest(name, ANNOTATORS)}; expected names of "
            f"{', '.join(ANNOTATORS)}, or classes as module.Class"
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"annotators: {name} cannot be imported: {error} (the module must be on PYTHONPATH)"
        ) from error
    if (
        not (isinstance(kind, type) and issubclass(kind, Annotator))
        or inspect.isabstract(kind)
        or not all(hasattr(kind, name) for name in _DECLARED)
    ):
        raise ConfigurationError(
            f"annotators: {name} is no class derived from bsmeta.annotate.annotator.Annotator with "
            "name, columns and annotate()"
        )
    return kind


def _column_problems(kinds: Sequence[type[Annotator]]) -> Iterator[str]:
    """Columns that two annotators make, and columns that are needed and that none makes."""
    makers: dict[str, str] = {}
    for kind in kinds:
        for column in kind.columns:
            if column in makers:
                yield f"annotators: {makers[column]} and {kind.name} both make {column}"
            makers[column] = kind.name
    for kind in kinds:
        for column in set(kind.needs) - makers.keys():
            names = (other.name for other in ANNOTATORS.values() if column in other.columns)
            maker = next(names, "an annotator that makes it")
            yield f"annotators: {kind.name} needs {column}: add {maker}"


def _in_order(kinds: Sequence[type[Annotator]]) -> list[type[Annotator]]:
    """Sorted so that each comes after those whose columns it needs, else as in `ANNOTATORS`."""
    places = {kind: place for place, kind in enumerate(ANNOTATORS.values())}
    kinds = sorted(kinds, key=lambda kind: places.get(kind, len(places)))
    makers = {column: kind for kind in kinds for column in kind.columns}
    sorter = TopologicalSorter({kind: {makers[one] for one in kind.needs} for kind in kinds})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(kind.name for kind in error.args[1])
        raise ConfigurationError(f"annotators: each of {names} needs the next one") from error


def columns_of_all(annotators: Sequence[Annotator]) -> list[str]:
    """The columns of all annotators, also of those that do not run, in the order of rows."""
    kinds: list[type[Annotator]] = [*ANNOTATORS.values(), *map(type, annotators)]
    return list(dict.fromkeys(column for kind in kinds for column in kind.columns))


@dataclass(frozen=True)
class ShardPlan:
    """What is to be done for an input file."""

    file: InputFile
    files: ShardFiles
    header: Header  # what the shard is made from; `names` are the annotators to run
    existing: Journal | None  # of the existing shard, if its rows are used
    is_complete: bool  # whether there is nothing to do


def refuse_losses(
    config: AnnotateConfig, annotators: Sequence[Annotator], files: Iterable[InputFile]
) -> None:
    """Refuses to rewrite shards with the loss of columns.

    Raises:
        ConfigurationError: With what would be lost.
    """
    losses: defaultdict[str, list[str]] = defaultdict(list)
    rebuilt = {one.name for one in annotators if config.only is None or one.name in config.only}
    output = Path(config.output or "")
    for file in files:
        shard = ShardFiles(output, file.name)
        loss = _loss(config, rebuilt, file, shard) if shard.shard.exists() else ""
        if loss:
            losses[loss].append(shard.shard.name)
    if losses:
        problems = "\n".join(f"  {_named(names)}: {loss}" for loss, names in losses.items())
        without_only = " without `only`" if config.only is not None else ""
        raise ConfigurationError(
            f"output={output}: shards there would be overwritten, and columns that this "
            f"command does not recompute would be lost:\n{problems}\nNothing was changed. Undo the "
            f"change, repeat the command with all annotators of these shards{without_only}, or "
            "name another output"
        )


def _loss(config: AnnotateConfig, rebuilt: set[str], file: InputFile, files: ShardFiles) -> str:
    """Why rewriting an existing shard would destroy something; empty if it would not."""
    if os.path.samefile(files.shard, file.path):
        return "is the input file itself"
    complete = files.complete()
    journal = complete or read_journal(files.journal)
    if journal is None:
        return f"no journal of this version describes it ({files.journal})"
    changes = [] if complete is not None else ["it is damaged"]
    changes += journal.header.changes(_header(config, file))
    lost = [name for name in journal.header.annotators if name not in rebuilt]
    return f"{', '.join(changes)}; would lose {', '.join(lost)}" if changes and lost else ""


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_SHARDS
    return ", ".join(names[:NAMED_SHARDS]) + (f" and {more:,} more" if more > 0 else "")


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


def plan_shards(
    config: AnnotateConfig, annotators: Sequence[Annotator], files: Iterable[InputFile]
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
    makers = {column: one.name for one in annotators for column in one.columns}
    needed = {one.name: dict.fromkeys(makers[name] for name in one.needs) for one in annotators}
    replaced = set(config.replace)
    for name, others in needed.items():  # each after those that it needs
        if not replaced.isdisjoint(others):
            replaced.add(name)

    def plan(file: InputFile) -> ShardPlan:
        files, header = ShardFiles(Path(config.output or ""), file.name), _header(config, file)
        existing = files.complete()
        if existing is not None:
            header.keeps_html |= existing.header.keeps_html
            if existing.header.changes(header):
                existing = None
        made = existing.header.annotators if existing else {}
        # The records of an annotator depend on those that it needs, too.
        header.annotators = now = dict(made)
        for name, others in needed.items():
            if name in own:
                now[name] = "+".join([own[name], *(now.get(other, "") for other in others)])
        header.names = [name for name in own if made.get(name) != now[name] or name in replaced]
        if existing is None:
            return ShardPlan(file, files, header, None, is_complete=False)
        header.replaces = existing.end
        is_complete = not header.names and header.keeps_html == existing.header.keeps_html
        return ShardPlan(file, files, header, existing, is_complete)

    return [plan(file) for file in files]


def _header(config: AnnotateConfig, file: InputFile) -> Header:
    pages = PageSettings(VERSION, config.profile, config.page_mb)
    return Header(file.bytes, file.xxh3, pages, config.keep_html)


def check_disk(output: Path, plans: Sequence[ShardPlan]) -> None:
    """Refuses to start if the shards, estimated from those that are complete, will hardly fit.

    Raises:
        ConfigurationError: With what is needed and what is free.
    """
    complete = [(plan.file.bytes, plan.existing.end) for plan in plans if plan.existing is not None]
    read, made = (sum(sizes) for sizes in zip((0, 0), *complete, strict=True))
    left = [plan for plan in plans if not plan.is_complete]
    written = sum(plan.files.part.stat().st_size for plan in left if plan.files.part.exists())
    share = made / read if made and read else TYPICAL_SHARE
    needed = MARGIN * share * sum(plan.file.bytes for plan in left) - written
    free = free_bytes(output)
    if needed > free:
        raise ConfigurationError(
            f"output={output} has {free / 1e9:.1f} GB free, but about {needed / 1e9:.1f} GB are "
            f"needed for {counted(len(left), 'shard')}: free some space, name another folder, or "
            "set check_disk=false"
        )
