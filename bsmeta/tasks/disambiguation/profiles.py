"""Builds a table of entities from profiles, and adds entities to one.

A profile is a line of JSON (second generation):

    {"entity_id": "Q1", "mentions": [["alias", 10.0]], "title": "…", "description": "…",
     "types": {"system": ["type"]}, "relations": [{"relation": "…", "object": "Q2"}]}

An alias is kept in its caseless form (`Aliases`): `Paris` and `paris` are one alias, with the
candidates of both.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import build_atomically, hold_write_lock
from bsmeta.core.progress import show_file_bar
from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, ArrayWriter
from bsmeta.tasks.disambiguation.entities import (
    ENTITY_LAYOUT,
    NIL_ID,
    EntityTable,
    TableFacts,
    TableVersion,
)
from bsmeta.tasks.disambiguation.lines import Problems, read_json_lines
from bsmeta.tasks.disambiguation.string_table import Names, Strings

log = logging.getLogger(__name__)

MAX_CANDIDATES = 30
"""Default maximum number of candidates of an alias."""
MAX_SCORE = float(np.finfo(np.float32).max)
"""Maximum score of a candidate."""


class Relation(msgspec.Struct):
    """A relation of an entity."""

    relation: str  # its name
    object: str  # id of the other entity


class Profile(msgspec.Struct):
    """A line of a file of profiles."""

    entity_id: str
    mentions: list[tuple[str, float]]
    title: str
    description: str | None = None
    types: dict[str, list[str]] = {}
    relations: list[Relation] = []


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
    with show_file_bar(profiles, f"reading {profiles.name}") as advance:
        lines = read_json_lines(profiles, Profile, problems, advance)
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

        columns = _Columns(None)
        columns.add(0, Profile(NIL_ID, [], ""), problems)
        columns.add_all(lines, problems)
        with build_atomically(folder) as part:
            part.mkdir()
            columns.write(part, max_candidates)
    return EntityTable.open(folder)


def add_entities(profiles: Path, folder: Path) -> EntityTable:
    """Adds the entities of a file of profiles to a table; readers see all of them or none.

    The numbers of existing entities and aliases do not change.

    Raises:
        DataError: Lists the problems of the file; or there is no table.
    """
    problems = Problems(profiles)
    # Opened before the lock, whose file would otherwise create a folder with a misspelled name.
    before = EntityTable.open(folder)
    with hold_write_lock(folder, f"the table {folder}"):
        # Values that a failed addition left after the ends of arrays are overwritten.
        columns = _Columns(ArrayFolder(folder, ENTITY_LAYOUT, TableFacts))
        columns.add_all(read_json_lines(profiles, Profile, problems), problems)
        columns.write(folder, before.max_candidates)
    return EntityTable.open(folder)


def is_score(score: float) -> bool:
    """Returns whether a number can be the score of a candidate."""
    return 0 <= score <= MAX_SCORE


class _Lists:
    """Concatenated lists (bytes or numbers) with their end offsets."""

    def __init__(self, values: bytearray | array[int]) -> None:
        self.values = values
        self.ends = array("q")

    def add(self, values: Iterable[int]) -> None:
        self.values.extend(values)
        self.ends.append(len(self.values))


class _NewNames(_Lists):
    """Distinct new strings, numbered after the strings of the table.

    Args:
        before: The existing strings of the table; None for a new table.
    """

    def __init__(self, before: Strings | None) -> None:
        super().__init__(bytearray())
        self.hashes = array("Q")

        # `Names` are looked up on disk by hash; other strings are few, and held in memory.
        self._table = before if isinstance(before, Names) else None
        self._numbers = {}
        if before is not None and self._table is None:
            self._numbers = {name: number for number, name in enumerate(before)}
        self._next = 0 if before is None else len(before)

    def find(self, string: str) -> int:
        """Returns the number of a string; -1 if it is new."""
        number = self._numbers.get(string, -1)
        if number < 0 and self._table is not None:
            return self._table.find(string)
        return number

    def find_or_add(self, string: str) -> int:
        """Returns the number of a string; adds a new one."""
        number = self.find(string)
        if number >= 0:
            return number

        number = self._next
        self._numbers[string] = number
        self._next += 1
        data = string.encode()
        self.add(data)
        self.hashes.append(xxhash.xxh3_64_intdigest(data))
        return number


class _NewAliases(_NewNames):
    """New aliases in caseless form, and a record of those in other spellings."""

    def __init__(self, before: Strings | None) -> None:
        super().__init__(before)
        self._respelled: dict[str, int] = {}  # numbers by spelling, if that is not caseless
        self._is_caseless = bytearray(b"\1" * self._next)  # whether the caseless spelling occurs

    def find_or_add(self, string: str) -> int:
        key = make_caseless(string)
        number = super().find_or_add(key)
        if number == len(self._is_caseless):
            self._is_caseless.append(0)

        if key == string:
            self._is_caseless[number] = 1
        else:
            self._respelled[string] = number
        return number

    def log_respelled(self, path: Path) -> None:
        """Logs the number of aliases that were normalized, and of those merged with another."""
        if not self._respelled:
            return

        # Each alias has its normalized spellings, and perhaps one that is caseless already; those
        # beyond the first have been merged.
        numbers = {*self._respelled.values()}
        spellings = len(self._respelled) + sum(self._is_caseless[number] for number in numbers)
        merged = spellings - len(numbers)
        example = next(iter(self._respelled))
        log.warning(
            "%s: %d aliases were normalized (lower case, Unicode composition, single spaces), such "
            "as %r to %r; merged with another alias: %d",
            path,
            len(self._respelled),
            example,
            make_caseless(example),
            merged,
        )


class _Target(NamedTuple):
    """An entity that is the object of relations."""

    number: int  # among all objects of relations
    line: int  # first line with such a relation


class _Columns:
    """Columns of new entities, which are appended to the columns of a table.

    Args:
        before: The existing arrays of the table; None for a new table.
    """

    def __init__(self, before: ArrayFolder[TableFacts] | None) -> None:
        self._before = before
        table = None if before is None else EntityTable(before)
        self.ids = _NewNames(None if table is None else table.ids)
        self.aliases = _NewAliases(None if table is None else table.aliases)
        self.type_names = _NewNames(None if table is None else table.type_names)
        self.relation_names = _NewNames(None if table is None else table.relation_names)

        self.titles = _Lists(bytearray())
        self.descriptions = _Lists(bytearray())
        self.types = _Lists(array("i"))
        self.relations = _Lists(array("i"))
        self._relation_targets = array("i")  # for each relation, the number of its `_Target`
        self._relation_objects = array("i")  # for each relation, its entity; resolved at the end

        self._mention_aliases = array("i")
        self._mention_entities = array("i")
        self._mention_scores = array("f")

        self._lines: dict[str, int] = {}  # line by the id of the entity
        self._targets: dict[str, _Target] = {}  # by the id of the entity

    def add_all(self, lines: Iterable[tuple[int, Profile]], problems: Problems) -> None:
        """Adds the profiles of a file, resolves their relations, and closes its problems."""
        for number, profile in lines:
            self.add(number, profile, problems)

        # Relations may lead to entities that come later, so they are resolved at the end.
        entities = []
        for entity_id, target in self._targets.items():
            entity = self.ids.find(entity_id)
            if entity < 0:
                reason = f"a relation leads to {entity_id!r}, which is no entity"
                problems.add(target.line, reason)
            entities.append(entity)
        problems.close()
        self._relation_objects.extend(entities[number] for number in self._relation_targets)

        self.aliases.log_respelled(problems.path)

    def add(self, line: int, profile: Profile, problems: Problems) -> None:
        """Adds an entity even if it is invalid, so relations to it still resolve."""
        for reason in self._find_problems(profile):
            problems.add(line, reason)
        self._lines[profile.entity_id] = line

        entity = self.ids.find_or_add(profile.entity_id)
        self.titles.add(profile.title.encode())
        self.descriptions.add((profile.description or "").encode())

        types = []
        for system_types in profile.types.values():
            types += [self.type_names.find_or_add(name) for name in system_types]
        self.types.add(types)

        relations = profile.relations
        self.relations.add(self.relation_names.find_or_add(entry.relation) for entry in relations)
        for entry in relations:
            new_target = _Target(number=len(self._targets), line=line)
            target = self._targets.setdefault(entry.object, new_target)
            self._relation_targets.append(target.number)

        scores: dict[int, float] = {}
        for alias, score in profile.mentions:
            number = self.aliases.find_or_add(alias)
            scores[number] = min(scores.get(number, 0.0) + score, MAX_SCORE)
        self._mention_aliases.extend(scores)
        self._mention_entities.extend([entity] * len(scores))
        self._mention_scores.extend(scores.values())

    def _find_problems(self, profile: Profile) -> Iterator[str]:
        """Yields the problems of a profile: its id, and its mentions."""
        entity_id = profile.entity_id
        if not entity_id:
            yield "entity_id is empty"
        elif entity_id in self._lines and self._lines[entity_id] == 0:
            yield f"entity_id {entity_id!r} is reserved for mentions without an entity"
        elif entity_id in self._lines:
            yield f"entity_id {entity_id!r} is that of line {self._lines[entity_id]:,}, too"
        elif self.ids.find(entity_id) >= 0:
            yield f"entity_id {entity_id!r} is in the table already"

        checked_aliases = set()
        for alias, score in profile.mentions:
            if not make_caseless(alias):
                yield "a mention is empty"
            if alias in checked_aliases:
                yield f"mention {alias!r} is there twice"
            if not is_score(score):
                yield f"mention {alias!r} has the score {score}; expected a number from 0"
            checked_aliases.add(alias)

    def write(self, folder: Path, max_candidates: int) -> None:
        """Appends the columns to the table in a folder, as a new version."""
        writer = ArrayWriter(folder, ENTITY_LAYOUT, self._before)
        columns = {
            "ids": self.ids,
            "titles": self.titles,
            "descriptions": self.descriptions,
            "aliases": self.aliases,
            "type_names": self.type_names,
            "relation_names": self.relation_names,
            "types": self.types,
            "relations": self.relations,
        }
        for name, column in columns.items():
            values = np.array(column.values)
            start = len(self._read_existing(name, values.dtype))
            writer.append(name, values)
            writer.append(f"{name}_ends", np.array(column.ends) + start)
        writer.append("relation_objects", np.array(self._relation_objects))

        self._write_hashes(writer, "ids", self.ids)
        self._write_hashes(writer, "aliases", self.aliases)
        self._write_candidates(writer, max_candidates)

        entities = len(self._read_existing("ids_ends", np.int64)) + len(self.ids.ends)
        versions = [*self._before.facts.versions] if self._before else []
        versions.append(TableVersion(writer.compute_content_hash(), entities))
        writer.commit(TableFacts(max_candidates, versions))

    def _read_existing(self, name: str, dtype: Any) -> np.ndarray:
        """Returns an existing array of the table; an empty one for a new table."""
        return self._before[name] if self._before else np.empty(0, dtype)

    def _write_hashes(self, writer: ArrayWriter, name: str, strings: _NewNames) -> None:
        """Writes the sorted hashes of all strings of a name, and the number of each string."""
        order = self._read_existing(f"{name}_order", np.int32)
        hashes = np.empty(len(order), np.uint64)
        hashes[order] = self._read_existing(f"{name}_hashes", np.uint64)
        hashes = np.concatenate([hashes, np.array(strings.hashes, np.uint64)])

        order = np.argsort(hashes, kind="stable").astype(np.int32)
        writer.replace(f"{name}_order", order)
        writer.replace(f"{name}_hashes", hashes[order])

    def _write_candidates(self, writer: ArrayWriter, max_candidates: int) -> None:
        """Writes the `max_candidates` entities with the highest scores of each alias, best first.

        Of equal scores, entities with lower numbers come first.
        """
        counts_before = np.diff(self._read_existing("candidates_ends", np.int64), prepend=0)
        aliases_before = np.repeat(np.arange(len(counts_before)), counts_before)
        entities_before = self._read_existing("candidates", np.int32)
        scores_before = self._read_existing("candidate_scores", np.float32)

        aliases = np.concatenate([aliases_before, self._mention_aliases])
        entities = np.concatenate([entities_before, self._mention_entities]).astype(np.int32)
        scores = np.concatenate([scores_before, self._mention_scores])

        order = np.lexsort((entities, -scores, aliases))
        aliases = aliases[order]
        ranks = np.arange(len(aliases)) - np.searchsorted(aliases, aliases)
        is_kept = ranks < max_candidates

        writer.replace("candidates", entities[order][is_kept])
        writer.replace("candidate_scores", scores[order][is_kept].astype(np.float32))
        num_aliases = len(counts_before) + len(self.aliases.ends)
        counts = np.bincount(aliases[is_kept], minlength=num_aliases)
        writer.replace("candidates_ends", np.cumsum(counts, dtype=np.int64))
