"""Plans a run: its annotators, and the shard to make or update for each input file.

An existing shard whose pages have the same text is updated column by column; otherwise it is
rebuilt. A rebuild that would lose columns, because the command does not recompute all of them, is
refused before anything is written.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from bsmeta.annotate import about_page, spans
from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.config import DROP, AnnotateConfig
from bsmeta.annotate.content import Content
from bsmeta.annotate.decisions import Decisions, marks_duplicates
from bsmeta.annotate.html.page import VERSION
from bsmeta.annotate.inputs.sources import InputFile, format_count
from bsmeta.annotate.marking import DuplicateMark
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
from bsmeta.core.errors import ConfigurationError, suggest_nearest
from bsmeta.core.files import measure_free_bytes

ANNOTATORS: dict[str, type[Annotator]] = {
    annotator_class.name: annotator_class
    for annotator_class in (
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
        DuplicateMark,
    )
}
"""The annotators, in the order in which rows list their columns; custom annotators follow."""

TYPICAL_SIZE_RATIO = 3.0
"""Typical size of a shard, relative to the compressed raw pages."""
SIZE_MARGIN = 1.1
"""Safety factor for the estimated size of shards."""
MAX_NAMED_SHARDS = 5
"""Maximum number of shards that a message names."""
_REQUIRED_ATTRIBUTES = ("name", "columns")  # of every annotator


def make_annotators(config: AnnotateConfig) -> list[Annotator]:
    """Makes the annotators of a run, each after the annotators of the columns that it needs.

    Raises:
        ConfigurationError: If names are unknown, classes cannot be imported or are not annotators,
            two annotators make the same column, or none makes a needed column; lists all problems.
    """
    classes = []
    problems = []
    for name in _list_names(config):
        try:
            classes.append(ANNOTATORS[name] if name in ANNOTATORS else _import_annotator(name))
        except ConfigurationError as error:
            problems.append(str(error))
    problems += _find_column_problems(classes)

    chosen_names = [annotator_class.name for annotator_class in classes]
    for key, names in (("replace", config.replace), ("only", config.only or [])):
        for name in names:
            if name not in chosen_names:
                suggestion = suggest_nearest(name, chosen_names)
                expected = f"some of `annotators`: {chosen_names}"
                problems.append(f"{key}: found {name}{suggestion}, expected {expected}")

    if problems:
        raise ConfigurationError("\n".join(problems))
    return [annotator_class(config) for annotator_class in _sort_by_needs(classes)]


def _list_names(config: AnnotateConfig) -> list[str]:
    """Lists the names of a run's annotators; `duplicate` is added if duplicates are marked.

    Raises:
        ConfigurationError: If `duplicate` is listed, but duplicates are not marked.
    """
    names = list(dict.fromkeys(config.annotators))
    if marks_duplicates(config):
        return names if DuplicateMark.name in names else [*names, DuplicateMark.name]
    if DuplicateMark.name in names:
        raise ConfigurationError(
            f"annotators: {DuplicateMark.name} needs duplicates=mark, or held_out with "
            f"held_out_copies=mark; found duplicates={config.duplicates}"
        )
    return names


def _import_annotator(name: str) -> type[Annotator]:
    """Imports a custom annotator by its dotted path.

    Raises:
        ConfigurationError: If it cannot be imported, or is not a complete subclass of `Annotator`.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigurationError(
            f"annotators: there is no {name}{suggest_nearest(name, ANNOTATORS)}; expected names of "
            f"{', '.join(ANNOTATORS)}, or classes as module.Class"
        )
    try:
        imported = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"annotators: {name} cannot be imported: {error} (the module must be on PYTHONPATH)"
        ) from error

    is_annotator = isinstance(imported, type) and issubclass(imported, Annotator)
    has_attributes = all(hasattr(imported, attribute) for attribute in _REQUIRED_ATTRIBUTES)
    if not is_annotator or inspect.isabstract(imported) or not has_attributes:
        raise ConfigurationError(
            f"annotators: {name} is not a class derived from bsmeta.annotate.annotator.Annotator "
            "with name, columns and annotate()"
        )
    return imported


def _find_column_problems(classes: Sequence[type[Annotator]]) -> Iterator[str]:
    """Yields messages about columns that two annotators make, or that are needed but not made."""
    makers: dict[str, str] = {}
    for annotator_class in classes:
        for column in annotator_class.columns:
            if column in makers:
                yield (
                    f"annotators: {makers[column]} and {annotator_class.name} both make {column}"
                )
            makers[column] = annotator_class.name

    for annotator_class in classes:
        for column in set(annotator_class.needs) - makers.keys():
            names = (other.name for other in ANNOTATORS.values() if column in other.columns)
            maker = next(names, "an annotator that makes it")
            yield f"annotators: {annotator_class.name} needs {column}: add {maker}"


def _sort_by_needs(classes: Sequence[type[Annotator]]) -> list[type[Annotator]]:
    """Sorts annotators as in `ANNOTATORS`, but each after the annotators whose columns it needs.

    Raises:
        ConfigurationError: If annotators need each other.
    """
    ranks = {annotator_class: rank for rank, annotator_class in enumerate(ANNOTATORS.values())}
    classes = sorted(classes, key=lambda annotator_class: ranks.get(annotator_class, len(ranks)))

    makers: dict[str, type[Annotator]] = {}
    for annotator_class in classes:
        makers.update(dict.fromkeys(annotator_class.columns, annotator_class))
    sorter: TopologicalSorter[type[Annotator]] = TopologicalSorter()
    for annotator_class in classes:
        sorter.add(annotator_class, *{makers[column] for column in annotator_class.needs})

    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(annotator_class.name for annotator_class in error.args[1])
        raise ConfigurationError(
            f"annotators: each of {names} needs the next one; leave one of them out"
        ) from error


def list_all_columns(annotators: Sequence[Annotator]) -> list[str]:
    """Lists the columns of these and all built-in annotators, in the order of rows."""
    classes = list(ANNOTATORS.values())
    classes += [type(annotator) for annotator in annotators]
    columns: dict[str, None] = {}
    for annotator_class in classes:
        columns.update(dict.fromkeys(annotator_class.columns))
    return list(columns)


@dataclass(frozen=True)
class ShardPlan:
    """The work for an input file.

    Attributes:
        file: The input file.
        files: The files of its shard.
        header: The header of the shard to make; its `names` are the annotators to run.
        existing: The journal of the existing shard; None if its rows are not reused.
        is_complete: Whether there is nothing to do.
    """

    file: InputFile
    files: ShardFiles
    header: Header
    existing: Journal | None
    is_complete: bool


def refuse_lost_columns(
    config: AnnotateConfig, annotators: Sequence[Annotator], files: Iterable[InputFile]
) -> None:
    """Refuses to rebuild shards if columns would be lost.

    Raises:
        ConfigurationError: If columns would be lost; lists them by shard.
    """
    rebuilt = {
        annotator.name
        for annotator in annotators
        if config.only is None or annotator.name in config.only
    }
    if config.duplicates == DROP or config.held_out:
        rebuilt.add(DuplicateMark.name)  # the marks of an earlier run are decided again
    output = Path(config.output or "")
    losses: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        shard = ShardFiles(output, file.name)
        loss = _describe_loss(config, rebuilt, file, shard) if shard.shard.exists() else ""
        if loss:
            losses[loss].append(shard.shard.name)

    if losses:
        problems = "\n".join(f"  {_list_shards(names)}: {loss}" for loss, names in losses.items())
        without_only = " without `only`" if config.only is not None else ""
        raise ConfigurationError(
            f"output={output}: shards there would be overwritten, and columns that this "
            f"command does not recompute would be lost:\n{problems}\nNothing was changed. Undo the "
            f"change, repeat the command with all annotators of these shards{without_only}, or "
            "name another output"
        )


def _describe_loss(
    config: AnnotateConfig, rebuilt: set[str], file: InputFile, files: ShardFiles
) -> str:
    """Describes why a shard would be rebuilt, and which columns that would lose; "" if none.

    Args:
        rebuilt: Names of the annotators whose columns are recomputed.
    """
    if os.path.samefile(files.shard, file.path):
        return "is the input file itself"

    complete = files.open_complete()
    journal = complete or read_journal(files.journal)
    if journal is None:
        return f"no journal of this version describes it ({files.journal})"

    changes = [] if complete is not None else ["it is damaged"]
    changes += journal.header.list_changes(_make_header(config, file, files))
    lost = [name for name in journal.header.annotators if name not in rebuilt]
    if not changes or not lost:
        return ""
    return f"{', '.join(changes)}; would lose {', '.join(lost)}"


def _list_shards(names: Sequence[str]) -> str:
    """Lists up to `MAX_NAMED_SHARDS` names, and the number of the others."""
    listed = ", ".join(names[:MAX_NAMED_SHARDS])
    num_others = len(names) - MAX_NAMED_SHARDS
    return f"{listed} and {num_others:,} more" if num_others > 0 else listed


def refuse_renamed_shards(output: Path, files: Sequence[InputFile]) -> None:
    """Refuses to make a second shard of the same pages.

    When an input file is added that has the name of an earlier one, the shards of both files are
    named after their folders, too, and the earlier shard keeps its old name.

    Raises:
        ConfigurationError: If the output has the pages of an input file in a shard of another name.
    """
    names = {file.name for file in files}
    new_shards = {
        file.xxh3: file.name
        for file in files
        if ShardFiles(output, file.name).open_complete() is None
    }
    for path in sorted((output / FOLDER).glob(f"*{JOURNAL_SUFFIX}")):
        name = path.name.removesuffix(JOURNAL_SUFFIX)
        if name in names:
            continue

        journal = ShardFiles(output, name).open_complete()
        if journal is None or not journal.sum_counts().rows:
            continue

        new_name = new_shards.get(journal.header.input_xxh3)
        if new_name is not None:
            raise ConfigurationError(
                f"output={output}: {name}{SHARD_SUFFIX} has the pages of the input file whose "
                f"shard is now named {new_name}{SHARD_SUFFIX}; training "
                f"would read them twice. Delete {name}{SHARD_SUFFIX}, or name another output"
            )


def plan_shards(
    config: AnnotateConfig, annotators: Sequence[Annotator], files: Iterable[InputFile]
) -> list[ShardPlan]:
    """Plans the work for each input file.

    If the pages and their text are unchanged, only some annotators run: new and changed ones, the
    ones in `replace`, and all that need columns of these. `only` restricts them further.
    """
    fingerprints = {
        annotator.name: annotator.fingerprint()
        for annotator in annotators
        if config.only is None or annotator.name in config.only
    }
    needs = _map_needed_annotators(annotators)
    replaced = set(config.replace)
    for name, needed in needs.items():  # annotators come after the annotators they need
        if not replaced.isdisjoint(needed):
            replaced.add(name)
    return [_plan_shard(config, file, fingerprints, needs, replaced) for file in files]


def _map_needed_annotators(annotators: Sequence[Annotator]) -> dict[str, list[str]]:
    """Maps the name of each annotator to the names of annotators whose columns it needs."""
    makers: dict[str, str] = {}
    for annotator in annotators:
        makers.update(dict.fromkeys(annotator.columns, annotator.name))

    needs: dict[str, list[str]] = {}
    for annotator in annotators:
        unique_makers = dict.fromkeys(makers[column] for column in annotator.needs)
        needs[annotator.name] = list(unique_makers)
    return needs


def _plan_shard(
    config: AnnotateConfig,
    file: InputFile,
    fingerprints: Mapping[str, str],
    needs: Mapping[str, Sequence[str]],
    replaced: AbstractSet[str],
) -> ShardPlan:
    """Plans the work for an input file.

    Args:
        fingerprints: Fingerprints of the annotators that may run, by name.
        needs: The annotators whose columns each annotator needs, by name.
        replaced: Annotators to run even if nothing has changed.
    """
    files = ShardFiles(Path(config.output or ""), file.name)
    header = _make_header(config, file, files)
    existing = files.open_complete()
    if existing is not None:
        header.keeps_html |= existing.header.keeps_html
        if existing.header.list_changes(header):
            existing = None

    if DuplicateMark.name in fingerprints:
        marked = Decisions.read(config, files.duplicates).hash_marked()
        marks = f"{fingerprints[DuplicateMark.name]}{marked}"
        fingerprints = {**fingerprints, DuplicateMark.name: marks}
    old_fingerprints = existing.header.annotators if existing else {}
    new_fingerprints = _update_fingerprints(old_fingerprints, fingerprints, needs)
    header.annotators = new_fingerprints
    header.names = [
        name
        for name in fingerprints
        if old_fingerprints.get(name) != new_fingerprints[name] or name in replaced
    ]

    if existing is None:
        return ShardPlan(file, files, header, None, is_complete=False)
    header.replaces = existing.end
    is_complete = not header.names and header.keeps_html == existing.header.keeps_html
    return ShardPlan(file, files, header, existing, is_complete)


def _update_fingerprints(
    old_fingerprints: Mapping[str, str],
    fingerprints: Mapping[str, str],
    needs: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Returns the fingerprints of a shard's annotators after the given annotators have run.

    The fingerprint of an annotator is joined with the fingerprints of the annotators whose columns
    it needs, because its records depend on theirs.

    Args:
        old_fingerprints: The fingerprints in the existing shard, by annotator.
        fingerprints: The fingerprints of the annotators that run.
        needs: The annotators whose columns each annotator needs, by name.
    """
    updated = dict(old_fingerprints)
    for name, needed in needs.items():  # annotators come after the annotators they need
        if name in fingerprints:
            needed_fingerprints = [updated.get(other, "") for other in needed]
            updated[name] = "+".join([fingerprints[name], *needed_fingerprints])
    return updated


def _make_header(config: AnnotateConfig, file: InputFile, files: ShardFiles) -> Header:
    """Makes the header of a shard of these pages, without annotators."""
    pages = PageSettings(VERSION, config.profile, config.page_mb)
    dropped = Decisions.read(config, files.duplicates).hash_dropped()
    return Header(file.bytes, file.xxh3, pages, config.keep_html, dropped_duplicates=dropped)


def check_disk(output: Path, plans: Sequence[ShardPlan]) -> None:
    """Refuses to start if the shards will probably not fit on the disk.

    Their size is estimated from complete shards, or with `TYPICAL_SIZE_RATIO` if there are none.

    Raises:
        ConfigurationError: If the estimated size exceeds the free space.
    """
    input_bytes = 0
    shard_bytes = 0
    for plan in plans:
        if plan.existing is not None:
            input_bytes += plan.file.bytes
            shard_bytes += plan.existing.end
    ratio = shard_bytes / input_bytes if shard_bytes and input_bytes else TYPICAL_SIZE_RATIO

    incomplete = [plan for plan in plans if not plan.is_complete]
    parts = [plan.files.part for plan in incomplete]
    written_bytes = sum(part.stat().st_size for part in parts if part.exists())
    expected_bytes = SIZE_MARGIN * ratio * sum(plan.file.bytes for plan in incomplete)
    needed_bytes = expected_bytes - written_bytes

    free_bytes = measure_free_bytes(output)
    if needed_bytes > free_bytes:
        raise ConfigurationError(
            f"output={output} has {free_bytes / 1e9:.1f} GB free, but about "
            f"{needed_bytes / 1e9:.1f} GB are needed for "
            f"{format_count(len(incomplete), 'shard')}: free some space, name another "
            "folder, or set check_disk=false"
        )
