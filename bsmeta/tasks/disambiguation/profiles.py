"""Builds a table of entities from profiles, and adds entities to one.

A profile is a line of JSON (second generation):

    {"entity_id": "Q1", "mentions": [["alias", 10.0]], "title": "…", "description": "…",
     "types": {"system": ["type"]}, "relations": [{"relation": "…", "object": "Q2"}]}

An alias is kept in its caseless form (`Aliases`): `Paris` and `paris` are one alias, whose
candidates are those of both.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import building, writing
from bsmeta.core.progress import file_bar
from bsmeta.data.text.caseless import caseless
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, ArrayWriter
from bsmeta.tasks.disambiguation.entities import (
    ENTITY_LAYOUT,
    NIL_ID,
    EntityTable,
    TableFacts,
    TableVersion,
)
from bsmeta.tasks.disambiguation.lines import Problems, json_lines
from bsmeta.tasks.disambiguation.string_table import Names, Strings

log = logging.getLogger(__name__)

MAX_CANDIDATES = 30
LARGEST_SCORE = float(np.finfo(np.float32).max)
_LISTS = (
    "ids", "titles", "descriptions", "aliases", "type_names", "relation_names", "types",
    "relations",
)  # fmt: skip


class Relation(msgspec.Struct):
    """A relation of an entity to another."""

    relation: str
    object: str


class Profile(msgspec.Struct):
    """An entity as a line describes it."""

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

    An alias keeps at most `max_candidates` entities, those with the highest scores.

    Raises:
        ConfigurationError: If the folder exists.
        DataError: With the problems of the file.
    """
    problems = Problems(profiles)
    with file_bar(profiles, f"reading {profiles.name}") as advance:
        lines = json_lines(profiles, Profile, problems, advance)
        return write_table(lines, problems, folder, max_candidates=max_candidates)


def write_table(
    lines: Iterable[tuple[int, Profile]], problems: Problems, folder: Path, *, max_candidates: int
) -> EntityTable:
    """Writes a table of numbered profiles; see `build_entities`."""
    with writing(folder, f"the table {folder}"):
        if folder.exists():
            raise ConfigurationError(
                f"{folder} exists; name another folder, delete it to build it again, or add "
                "entities to it"
            )
        columns = _Columns(None)
        columns.add(0, Profile(NIL_ID, [], ""), problems)
        columns.add_all(lines, problems)
        with building(folder) as part:
            part.mkdir()
            columns.write(part, max_candidates)
    return EntityTable.open(folder)


def add_entities(profiles: Path, folder: Path) -> EntityTable:
    """Adds the entities of a file of profiles to a table; readers see all of them or none.

    The numbers of entities and aliases that the table has already do not change.

    Raises:
        DataError: With the problems of the file, or if there is no table.
    """
    problems = Problems(profiles)
    before = EntityTable.open(folder)  # or the lock file would create a folder of a wrong name
    # What an addition that does not fit has appended is after the end of the arrays.
    with writing(folder, f"the table {folder}"):
        columns = _Columns(ArrayFolder(folder, ENTITY_LAYOUT, TableFacts))
        columns.add_all(json_lines(profiles, Profile, problems), problems)
        columns.write(folder, before.max_candidates)
    return EntityTable.open(folder)


def is_score(score: float) -> bool:
    """Whether a number can be the score of a candidate."""
    return 0 <= score <= LARGEST_SCORE


class _Lists:
    """Lists one after the other, of bytes or of numbers; and where each ends."""

    def __init__(self, values: bytearray | array[int]) -> None:
        self.values = values
        self.ends = array("q")

    def add(self, values: Iterable[int]) -> None:
        self.values.extend(values)
        self.ends.append(len(self.values))


class _Names(_Lists):
    """Distinct strings, each with a number; those of a table (None: a new one) have one already."""

    def __init__(self, before: Strings | None) -> None:
        super().__init__(bytearray())
        self.hashes = array("Q")
        self._table = before if isinstance(before, Names) else None
        self._numbers = {}
        if before is not None and self._table is None:
            self._numbers = {name: number for number, name in enumerate(before)}
        self._next = 0 if before is None else len(before)

    def find(self, string: str) -> int:
        """The number of a string; -1 if it has none."""
        number = self._numbers.get(string, -1)
        return self._table.find(string) if number < 0 and self._table is not None else number

    def number(self, string: str) -> int:
        number = self.find(string)
        if number < 0:
            number = self._numbers[string] = self._next
            self._next += 1
            data = string.encode()
            self.add(data)
            self.hashes.append(xxhash.xxh3_64_intdigest(data))
        return number


class _AliasNames(_Names):
    """Aliases in their caseless form, with counts of those that were written in another."""

    def __init__(self, before: Strings | None) -> None:
        super().__init__(before)
        self._spellings: dict[str, int] = {}  # other than the caseless form -> number
        self._is_caseless = bytearray(b"\1" * self._next)  # by number: also written in that form

    def number(self, string: str) -> int:
        key = caseless(string)
        number = super().number(key)
        if number == len(self._is_caseless):
            self._is_caseless.append(0)
        if key == string:
            self._is_caseless[number] = 1
        else:
            self._spellings[string] = number
        return number

    def report(self, path: Path) -> None:
        """Logs how many aliases were changed, and how many became one with another."""
        if not self._spellings:
            return
        numbers = {*self._spellings.values()}
        written = len(self._spellings) + sum(self._is_caseless[number] for number in numbers)
        example = next(iter(self._spellings))
        log.warning(
            "%s: aliases that are kept in lower case, composed or with single spaces: %d, such as "
            "%r as %r; of these, one with another alias: %d", path, len(self._spellings), example,
            caseless(example), written - len(numbers),
        )  # fmt: skip


class _Columns:
    """The columns of new entities, by the names of their arrays, which may have values before."""

    def __init__(self, before: ArrayFolder[TableFacts] | None) -> None:
        self._before = before
        strings: list[Strings | None] = [None] * 4
        if before is not None:
            table = EntityTable(before)
            strings = [table.aliases, table.ids, table.type_names, table.relation_names]
        self.ids, self.type_names, self.relation_names = map(_Names, strings[1:])
        self.aliases = _AliasNames(strings[0])
        self.titles, self.descriptions = _Lists(bytearray()), _Lists(bytearray())
        self.types, self.relations = _Lists(array("i")), _Lists(array("i"))
        self._objects = array("i")
        self._mention_aliases, self._mention_entities = array("i"), array("i")
        self._mention_scores = array("f")
        self._lines: dict[str, int] = {}
        # The id of an entity that relations lead to -> its place, and the first line with it.
        self._leads_to: dict[str, tuple[int, int]] = {}

    def add_all(self, lines: Iterable[tuple[int, Profile]], problems: Problems) -> None:
        """Adds the profiles of a file, and ends its problems."""
        for number, profile in lines:
            self.add(number, profile, problems)
        entities = []
        for entity_id, (_, line) in self._leads_to.items():
            entities.append(self.ids.find(entity_id))
            if entities[-1] < 0:
                problems.add(line, f"a relation leads to {entity_id!r}, which is no entity")
        problems.close()
        self.aliases.report(problems.path)
        self._objects = array("i", [entities[place] for place in self._objects])

    def add(self, line: int, profile: Profile, problems: Problems) -> None:
        """Adds an entity; one with problems, too, so that relations to it are no problem."""
        for reason in self._problems(profile):
            problems.add(line, reason)
        self._lines[profile.entity_id] = line
        entity = self.ids.number(profile.entity_id)
        self.titles.add(profile.title.encode())
        self.descriptions.add((profile.description or "").encode())
        types = (name for system in profile.types.values() for name in system)
        self.types.add(map(self.type_names.number, types))
        self.relations.add(self.relation_names.number(one.relation) for one in profile.relations)
        for relation in profile.relations:
            place, _ = self._leads_to.setdefault(relation.object, (len(self._leads_to), line))
            self._objects.append(place)
        scores: dict[int, float] = {}
        for alias, score in profile.mentions:
            number = self.aliases.number(alias)
            scores[number] = min(scores.get(number, 0.0) + score, LARGEST_SCORE)
        self._mention_aliases.extend(scores)
        self._mention_entities.extend([entity] * len(scores))
        self._mention_scores.extend(scores.values())

    def _problems(self, profile: Profile) -> Iterator[str]:
        name = profile.entity_id
        if not name:
            yield "entity_id is empty"
        elif name in self._lines and self._lines[name] == 0:
            yield f"entity_id {name!r} is reserved for mentions without an entity"
        elif name in self._lines:
            yield f"entity_id {name!r} is that of line {self._lines[name]:,}, too"
        elif self.ids.find(name) >= 0:
            yield f"entity_id {name!r} is in the table already"
        seen = set()
        for alias, score in profile.mentions:
            if not caseless(alias):
                yield "a mention is empty"
            if alias in seen:
                yield f"mention {alias!r} is there twice"
            if not is_score(score):
                yield f"mention {alias!r} has the score {score}; expected a number from 0"
            seen.add(alias)

    def _old(self, name: str, dtype: Any) -> np.ndarray:
        return self._before[name] if self._before else np.empty(0, dtype)

    def write(self, folder: Path, max_candidates: int) -> None:
        writer = ArrayWriter(folder, ENTITY_LAYOUT, self._before)
        for name in _LISTS:
            column = getattr(self, name)
            values = np.array(column.values)
            start = len(self._old(name, values.dtype))
            writer.append(name, values)
            writer.append(f"{name}_ends", np.array(column.ends) + start)
        writer.append("relation_objects", np.array(self._objects))
        for name in ("ids", "aliases"):
            order = self._old(f"{name}_order", np.int32)
            hashes = np.empty(len(order), np.uint64)
            hashes[order] = self._old(f"{name}_hashes", np.uint64)
            hashes = np.concatenate([hashes, np.array(getattr(self, name).hashes, np.uint64)])
            order = np.argsort(hashes, kind="stable").astype(np.int32)
            writer.replace(f"{name}_order", order)
            writer.replace(f"{name}_hashes", hashes[order])
        self._write_candidates(writer, max_candidates)
        entities = len(self._old("ids_ends", np.int64)) + len(self.ids.ends)
        versions = [*self._before.facts.versions] if self._before else []
        versions.append(TableVersion(writer.content_hash(), entities))
        writer.commit(TableFacts(max_candidates, versions))

    def _write_candidates(self, writer: ArrayWriter, most: int) -> None:
        """Writes, for each alias, the entities with the `most` highest scores, best first.

        Of equal scores, those with lower numbers are kept.
        """
        counts = np.diff(self._old("candidates_ends", np.int64), prepend=0)
        before = np.repeat(np.arange(len(counts)), counts)
        aliases = np.concatenate([before, self._mention_aliases])
        entities = np.concatenate([self._old("candidates", np.int32), self._mention_entities])
        entities = entities.astype(np.int32)
        scores = np.concatenate([self._old("candidate_scores", np.float32), self._mention_scores])
        order = np.lexsort((entities, -scores, aliases))
        aliases = aliases[order]
        ranks = np.arange(len(aliases)) - np.searchsorted(aliases, aliases)
        kept = ranks < most
        writer.replace("candidates", entities[order][kept])
        writer.replace("candidate_scores", scores[order][kept].astype(np.float32))
        numbers = np.bincount(aliases[kept], minlength=len(counts) + len(self.aliases.ends))
        writer.replace("candidates_ends", np.cumsum(numbers, dtype=np.int64))
