"""Builds a table of entities from profiles, and adds entities to one.

A profile is a line of JSON (second generation):

    {"entity_id": "Q1", "mentions": [["alias", 10.0]], "title": "…", "description": "…",
     "types": {"system": ["type"]}, "relations": [{"relation": "…", "object": "Q2"}]}
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import building, unwritable
from bsmeta.core.progress import exclusively, file_bar
from bsmeta.tasks.disambiguation.entities import NIL_ID, ArrayFolder, ArrayWriter, EntityTable
from bsmeta.tasks.disambiguation.lines import JsonLines, Problems

log = logging.getLogger(__name__)

MAX_CANDIDATES = 30

Find = Callable[[str], int]


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
    """Builds a table from a file of profiles; an interrupted build leaves none.

    Args:
        profiles: A `.jsonl(.gz|.zst)` file.
        folder: Where the table goes; it must not exist.
        max_candidates: The most candidates that an alias keeps, those with the highest scores.

    Raises:
        ConfigurationError: If the folder exists.
        DataError: With the problems of the file.
    """
    problems = Problems(profiles)
    with file_bar(profiles, f"reading {profiles.name}") as advance:
        lines = JsonLines(profiles, Profile, problems, advance)
        return write_table(lines, problems, folder, max_candidates=max_candidates)


def write_table(
    lines: Iterable[tuple[int, Profile]], problems: Problems, folder: Path, *, max_candidates: int
) -> EntityTable:
    """Writes a table of numbered profiles; see `build_entities`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{folder}.lock", f"the table {folder}"):
            if folder.exists():
                raise ConfigurationError(
                    f"{folder} exists; name another folder, delete it to build it again, or add "
                    "entities to it"
                )
            columns = _Columns()
            columns.add(0, Profile(NIL_ID, [], ""), problems)
            columns.add_all(lines, problems)
            with building(folder) as part:
                part.mkdir()
                _write(columns, part, None, max_candidates)
    except OSError as error:
        raise unwritable(folder, error) from error
    return EntityTable.open(folder)


def add_entities(profiles: Path, folder: Path) -> EntityTable:
    """Adds the entities of a file of profiles to a table; readers see all of them or none.

    The numbers of entities and aliases that the table has already do not change.

    Args:
        profiles: A `.jsonl(.gz|.zst)` file.
        folder: The folder of the table.

    Raises:
        DataError: With the problems of the file, or if there is no table.
    """
    problems = Problems(profiles)
    before = EntityTable.open(folder)  # or the lock file would create a folder of a wrong name
    try:
        with exclusively(f"{folder}.lock", f"the table {folder}"):
            arrays = ArrayFolder(folder)
            columns = _Columns(EntityTable(arrays))
            columns.add_all(JsonLines(profiles, Profile, problems), problems)
            _write(columns, folder, arrays, before.max_candidates)
    except OSError as error:  # what was appended is after the end of the arrays
        raise unwritable(folder, error) from error
    return EntityTable.open(folder)


def is_score(score: float) -> bool:
    """Whether a number can be the score of a candidate."""
    return 0 <= score <= float(np.finfo(np.float32).max)


class _Texts:
    """Strings, encoded one after the other, and their hashes."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.ends = array("q")
        self.hashes = array("Q")

    def add(self, string: str) -> None:
        data = string.encode()
        self.text += data
        self.ends.append(len(self.text))
        self.hashes.append(xxhash.xxh3_64_intdigest(data))


class _Names(_Texts):
    """Distinct strings, each with a number.

    Args:
        find: The number that a string has in the table already, or -1.
        count: How many strings have one.
    """

    def __init__(self, find: Find, count: int) -> None:
        super().__init__()
        self._find = find
        self._count = count
        self._new: dict[str, int] = {}

    def find(self, string: str) -> int:
        """The number of a string; -1 if it has none."""
        number = self._new.get(string, -1)
        return self._find(string) if number < 0 else number

    def number(self, string: str) -> int:
        """The number of a string, which is added if it has none."""
        number = self.find(string)
        if number < 0:
            number = self._count + len(self._new)
            self._new[string] = number
            self.add(string)
        return number


class _Columns:
    """The columns of new entities.

    Args:
        before: The table that they are added to; None for a new one.
    """

    def __init__(self, before: EntityTable | None = None) -> None:
        if before is None:
            names = [_Names(lambda _: -1, 0) for _ in range(4)]
        else:
            types = {name: number for number, name in enumerate(before.type_names)}
            relations = {name: number for number, name in enumerate(before.relation_names)}
            names = [
                _Names(before.find, len(before)),
                _Names(before.alias_index, before.num_aliases),
                _Names(lambda name: types.get(name, -1), len(types)),
                _Names(lambda name: relations.get(name, -1), len(relations)),
            ]
        self.ids, self.aliases, self.type_names, self.relation_names = names
        self.titles, self.descriptions = _Texts(), _Texts()
        self.types, self.type_ends = array("i"), array("q")
        self.relations, self.relation_ends = array("i"), array("q")
        self.relation_objects = array("i")
        self.mention_aliases, self.mention_entities = array("i"), array("i")
        self.mention_scores = array("f")
        self._lines: dict[str, int] = {}
        self._objects: dict[str, tuple[int, int]] = {}  # id -> its place, the first line with it

    def add_all(self, lines: Iterable[tuple[int, Profile]], problems: Problems) -> None:
        """Adds the profiles of a file, and ends its problems."""
        for number, profile in lines:
            self.add(number, profile, problems)
        objects = []
        for entity_id, (_, line) in self._objects.items():
            objects.append(self.ids.find(entity_id))
            if objects[-1] < 0:
                problems.add(line, f"a relation leads to {entity_id!r}, which is no entity")
        problems.close()
        self.relation_objects = array("i", [objects[place] for place in self.relation_objects])

    def add(self, line: int, profile: Profile, problems: Problems) -> None:
        """Adds an entity; one with problems, too, so that relations to it are no problem."""
        for reason in self._problems(profile):
            problems.add(line, reason)
        self._lines[profile.entity_id] = line
        entity = self.ids.number(profile.entity_id)
        self.titles.add(profile.title)
        self.descriptions.add(profile.description or "")
        for types in profile.types.values():
            for name in types:
                self.types.append(self.type_names.number(name))
        self.type_ends.append(len(self.types))
        for relation in profile.relations:
            place, _ = self._objects.setdefault(relation.object, (len(self._objects), line))
            self.relations.append(self.relation_names.number(relation.relation))
            self.relation_objects.append(place)
        self.relation_ends.append(len(self.relations))
        for alias, score in profile.mentions:
            self.mention_aliases.append(self.aliases.number(alias))
            self.mention_entities.append(entity)
            self.mention_scores.append(score)

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
            if not alias.strip():
                yield "a mention is empty"
            if alias in seen:
                yield f"mention {alias!r} is there twice"
            if not is_score(score):
                yield f"mention {alias!r} has the score {score}; expected a number from 0"
            seen.add(alias)


def _write(
    columns: _Columns, folder: Path, before: ArrayFolder | None, max_candidates: int
) -> None:
    """Writes the columns of new entities after those of a table."""
    writer = ArrayWriter(folder, before)

    def old(name: str, dtype: Any) -> np.ndarray:
        return before[name] if before else np.empty(0, dtype)

    def append(name: str, values: array[int] | bytearray, ends: array[int]) -> None:
        dtype = np.uint8 if isinstance(values, bytearray) else np.int32
        start = len(old(name, dtype))
        writer.append(name, np.array(values, dtype))
        writer.append(f"{name}_ends", np.array(ends, np.int64) + start)

    texts = {
        "ids": columns.ids,
        "titles": columns.titles,
        "descriptions": columns.descriptions,
        "aliases": columns.aliases,
        "type_names": columns.type_names,
        "relation_names": columns.relation_names,
    }
    for name, strings in texts.items():
        append(name, strings.text, strings.ends)
    append("types", columns.types, columns.type_ends)
    append("relations", columns.relations, columns.relation_ends)
    writer.append("relation_objects", np.array(columns.relation_objects, np.int32))
    for name in ("ids", "aliases"):
        hashes = np.empty(len(old(f"{name}_order", np.int32)), np.uint64)
        hashes[old(f"{name}_order", np.int32)] = old(f"{name}_hashes", np.uint64)
        hashes = np.concatenate([hashes, np.array(texts[name].hashes, np.uint64)])
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        writer.replace(f"{name}_order", order)
        writer.replace(f"{name}_hashes", hashes[order])

    counts = np.diff(old("candidates_ends", np.int64), prepend=0)
    lists = candidate_lists(
        np.concatenate([np.repeat(np.arange(len(counts)), counts), columns.mention_aliases]),
        np.concatenate([old("candidates", np.int32), columns.mention_entities]).astype(np.int32),
        np.concatenate([old("candidate_scores", np.float32), columns.mention_scores]),
        len(counts) + len(columns.aliases.ends),
        max_candidates,
    )
    for name, values in zip(
        ("candidates", "candidate_scores", "candidates_ends"), lists, strict=True
    ):
        writer.replace(name, values)
    version = {
        "fingerprint": writer.content_hash(),
        "entities": len(old("ids_ends", np.int64)) + len(columns.ids.ends),
    }
    versions = [*(before.facts["versions"] if before else []), version]
    writer.commit({"max_candidates": max_candidates, "versions": versions})


def candidate_lists(
    aliases: np.ndarray, entities: np.ndarray, scores: np.ndarray, count: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entities of each alias with the highest scores, best first.

    Args:
        aliases: Numbers of aliases.
        entities: An entity that each of them may mean, int32.
        scores: The scores of these entities, float32.
        count: The number of all aliases.
        most: The most entities that an alias keeps; of equal scores, those with lower numbers.

    Returns:
        Entities, their scores, and where the list of each alias ends, int64[count].
    """
    order = np.lexsort((entities, -scores, aliases))
    aliases = aliases[order]
    ranks = np.arange(len(aliases)) - np.searchsorted(aliases, aliases)
    kept = ranks < most
    ends = np.cumsum(np.bincount(aliases[kept], minlength=count), dtype=np.int64)
    return entities[order][kept], scores[order][kept].astype(np.float32), ends
