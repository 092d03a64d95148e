"""Builds a table of entities from profiles, and edits the entities of a table.

A profile is a line of JSON (second generation):

    {"entity_id": "Q1", "mentions": [["alias", 10.0]], "title": "…", "description": "…",
     "types": {"system": ["type"]}, "relations": [{"relation": "…", "object": "Q2"}]}

An alias is kept in its caseless form (`Aliases`): `Paris` and `paris` are one alias, with the
candidates of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import build_atomically, hold_write_lock
from bsmeta.core.progress import show_file_bar
from bsmeta.data.io.file_start import describe_start
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder
from bsmeta.tasks.disambiguation.entities import (
    ENTITY_LAYOUT,
    Action,
    EntityTable,
    TableFacts,
    TableVersion,
)
from bsmeta.tasks.disambiguation.lines import (
    Problems,
    UnusedFields,
    read_json_lines,
    warn_of_unused_fields,
)
from bsmeta.tasks.disambiguation.table_changes import (
    EntityName,
    NewScores,
    Profile,
    ProfileUpdate,
    TableChanges,
)

MAX_CANDIDATES = 30
"""Default maximum number of candidates of an alias."""

Line = TypeVar("Line", bound=msgspec.Struct)


def build_entities(
    profiles: Path, folder: Path, *, max_candidates: int = MAX_CANDIDATES
) -> EntityTable:
    """Builds a table from a `.jsonl(.gz|.zst)` file of profiles; an interrupted build leaves none.

    Args:
        max_candidates: Maximum number of candidates of an alias, which are those with the highest
            scores.

    Raises:
        ConfigurationError: If the folder exists.
        DataError: Lists the problems of the file.
    """
    problems = Problems(profiles)
    lines = _read_lines(profiles, Profile, problems)
    return write_table(lines, problems, folder, max_candidates=max_candidates)


def write_table(
    lines: Iterable[tuple[int, Profile]], problems: Problems, folder: Path, *, max_candidates: int
) -> EntityTable:
    """Writes a table of profiles with their line numbers; see `build_entities`.

    Args:
        problems: The problems of the file; closed after the last line.
    """
    with hold_write_lock(folder, f"the table {folder}"):
        if folder.exists():
            raise ConfigurationError(
                f"{folder} exists; name another folder, delete it to build it again, or add "
                "entities to it"
            )

        changes = TableChanges(None)
        for number, profile in lines:
            changes.add(number, profile, problems)
        changes.close(problems)
        with build_atomically(folder) as part:
            part.mkdir()
            changes.write(part, max_candidates, "built")
    return EntityTable.open(folder)


@dataclass(frozen=True)
class EditedTable:
    """A table after an edit.

    Attributes:
        version: The version that the edit has made.
        entities: Numbers of the changed entities, int32.
    """

    table: EntityTable
    version: TableVersion
    entities: np.ndarray


def add_entities(profiles: Path, folder: Path) -> EditedTable:
    """Adds the entities of a file of profiles to a table.

    A removed entity is added with its former number. All edits are atomic for readers, and keep the
    numbers of entities and aliases.

    Raises:
        DataError: Lists the problems of the file; or there is no table.
    """
    return _edit_table(profiles, folder, "added", Profile, TableChanges.add)


def update_entities(updates: Path, folder: Path) -> EditedTable:
    """Replaces fields of entities of a table by those in the lines of a file (`ProfileUpdate`).

    See `add_entities`.
    """
    return _edit_table(updates, folder, "updated", ProfileUpdate, TableChanges.update)


def remove_entities(names: Path, folder: Path) -> EditedTable:
    """Removes the entities that the lines of a file name (`EntityName`), and relations to them.

    See `add_entities`.
    """
    return _edit_table(names, folder, "removed", EntityName, TableChanges.remove)


def rescore_entities(scores: Path, folder: Path) -> EditedTable:
    """Replaces scores of entities as candidates by those in the lines of a file (`NewScores`).

    See `add_entities`.
    """
    return _edit_table(scores, folder, "rescored", NewScores, TableChanges.rescore)


def _edit_table(
    path: Path,
    folder: Path,
    action: Action,
    form: type[Line],
    collect: Callable[[TableChanges, int, Line, Problems], None],
) -> EditedTable:
    """Edits a table by the lines of a file.

    Args:
        form: The type of a line.
        collect: Collects the change of a line, with its number.
    """
    problems = Problems(path)
    # Opened before the lock, whose file would otherwise create a folder with a misspelled name.
    EntityTable.open(folder)
    with hold_write_lock(folder, f"the table {folder}"):
        # Values that an interrupted edit left after the ends of arrays are overwritten.
        before = ArrayFolder(folder, ENTITY_LAYOUT, TableFacts)
        changes = TableChanges(before)
        for number, line in _read_lines(path, form, problems):
            collect(changes, number, line, problems)
        changes.close(problems)
        version = changes.write(folder, before.facts.max_candidates, action)
        table = EntityTable.open(folder)
    return EditedTable(table, version, np.array(changes.entities))


def _read_lines(path: Path, form: type[Line], problems: Problems) -> Iterator[tuple[int, Line]]:
    """Yields the lines of a file with their numbers; shows a progress bar.

    Unused fields of profiles are logged; misspelled ones are problems.

    Raises:
        DataError: If the file cannot be read, or is one of profiles without any.
    """
    unused = UnusedFields(form, problems) if form is Profile else None
    number = 0
    with show_file_bar(path, f"reading {path.name}") as advance:
        for number, line in read_json_lines(path, form, problems, advance, unused):
            yield number, line

    if unused is None:
        return
    warn_of_unused_fields(path, unused.counts)
    if number == 0:
        problems.close()
        raise DataError(f"{path} {describe_start(str(path))}; expected a profile on each line")
