"""The table of entities that a mention may refer to, with the candidates of each alias.

Entities and aliases have numbers, from 0, which never change when entities are added: a prep store
or vectors that were built with a table remain valid for the table with more entities. Entity 0 is
NIL, which stands for no entity of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_each, report_progress
from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder
from bsmeta.tasks.disambiguation.string_table import (
    Names,
    Strings,
    check_length,
    check_lists,
    check_names,
    check_numbers,
    check_strings,
    list_layout,
    list_range,
    make_string_layout,
    name_layout,
)

NIL = 0
NIL_ID = "NIL"

ENTITY_LAYOUT = {
    **name_layout("ids"),
    **name_layout("aliases"),
    **make_string_layout("titles"),
    **make_string_layout("descriptions"),
    **make_string_layout("type_names"),
    **make_string_layout("relation_names"),
    **list_layout("types", "<i4"),  # of each entity: numbers of type names
    **list_layout("relations", "<i4"),  # of each entity: numbers of relation names
    "relation_objects": "<i4",  # of each relation: the entity that it leads to
    **list_layout("candidates", "<i4"),  # of each alias: entities
    "candidate_scores": "<f4",
}
"""The arrays of a table."""

_ALIASES_AT_ONCE = 1 << 16
_IS_PLAIN = np.zeros(256, bool)  # bytes that are the same in the caseless form
_IS_PLAIN[ord(" ") : ord("~") + 1] = True
_IS_PLAIN[ord("A") : ord("Z") + 1] = False


class TableVersion(msgspec.Struct):
    """A table as it was after a change.

    Attributes:
        fingerprint: Hash of its content.
        entities: Number of entities, including NIL.
    """

    fingerprint: str
    entities: int


class TableFacts(msgspec.Struct):
    """Facts about a table.

    Attributes:
        max_candidates: The most entities that an alias keeps.
        versions: All versions, oldest first.
    """

    max_candidates: Annotated[int, msgspec.Meta(ge=1)]
    versions: Annotated[list[TableVersion], msgspec.Meta(min_length=1)]


class Aliases(Names):
    """The aliases of a table, stored and looked up in their caseless form."""

    def find(self, string: str) -> int:
        """Returns the number of an alias in any case, composition and white space; -1: none."""
        return super().find(make_caseless(string))


class EntityTable:
    """The entities and aliases of a folder, which processes share in memory.

    A description may be empty; NIL's title is empty.

    Attributes:
        fingerprint: Hash of the content.
        max_candidates: The most entities that an alias keeps.
    """

    def __init__(self, arrays: ArrayFolder[TableFacts]) -> None:
        self.folder = arrays.folder
        self.ids = Names(arrays, "ids")
        self.aliases = Aliases(arrays, "aliases")
        self.titles = Strings(arrays, "titles")
        self.descriptions = Strings(arrays, "descriptions")
        self.type_names = Strings(arrays, "type_names")
        self.relation_names = Strings(arrays, "relation_names")

        self._arrays = arrays
        self.max_candidates = arrays.facts.max_candidates
        self._versions = arrays.facts.versions
        self.fingerprint = self._versions[-1].fingerprint

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> EntityTable:
        """Opens the table in a folder.

        Args:
            verify: Whether to check all values, which the first process that opens it does.

        Raises:
            DataError: If there is no table, or it is damaged.
        """
        arrays = ArrayFolder(folder, ENTITY_LAYOUT, TableFacts, verify=verify)
        if verify:
            check_table(arrays)
        return cls(arrays)

    def __reduce__(self) -> tuple[Callable[..., EntityTable], tuple[Path, bool]]:
        return EntityTable.open, (self.folder, False)  # another process maps the files, too

    def __len__(self) -> int:
        """Returns the number of entities, including NIL."""
        return len(self.ids)

    def summary(self) -> str:
        """Returns the numbers of entities, aliases, types and relations in one line of text."""
        counts = np.diff(self._arrays["candidates_ends"], prepend=0)
        return (
            f"{len(self) - 1:,} entities, {len(counts):,} aliases ({int((counts > 1).sum()):,} of "
            f"several entities, {int(counts.max(initial=0))} at most), {len(self.type_names):,} "
            f"types, {len(self._arrays['relations']):,} relations"
        )

    def count_entities_of(self, fingerprint: str) -> int | None:
        """Returns the number of entities of the version of this table with a fingerprint.

        Files that were built with that version are valid for this table. Returns None if no version
        had this fingerprint.
        """
        for version in self._versions:
            if version.fingerprint == fingerprint:
                return version.entities
        return None

    def candidates(self, alias: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the candidates of an alias (int32) and their scores (float32), highest first."""
        candidates = list_range(self._arrays["candidates_ends"], alias)
        return self._arrays["candidates"][candidates], self._arrays["candidate_scores"][candidates]

    def find_all_candidates(self, aliases: np.ndarray) -> np.ndarray:
        """Returns the distinct candidates of some aliases (-1: none) as int64, ascending."""
        distinct = np.unique(aliases)
        lists = [np.empty(0, np.int64)]
        for alias in report_each(distinct[distinct >= 0].tolist()):
            entities, _ = self.candidates(alias)
            lists.append(entities)
        return np.unique(np.concatenate(lists).astype(np.int64))

    def list_types(self, entity: int) -> list[str]:
        """Returns the names of an entity's types in all type systems."""
        types = self._arrays["types"][list_range(self._arrays["types_ends"], entity)]
        return [self.type_names[number] for number in types.tolist()]

    def list_relations(self, entity: int) -> list[tuple[str, int]]:
        """Returns the relations of an entity: name, and number of the entity it leads to."""
        relations = list_range(self._arrays["relations_ends"], entity)
        names = self._arrays["relations"][relations].tolist()
        objects = self._arrays["relation_objects"][relations].tolist()
        return [
            (self.relation_names[name], other) for name, other in zip(names, objects, strict=True)
        ]


def check_table(arrays: ArrayFolder[TableFacts]) -> None:
    """Checks the values of a table: every number in it must refer to an existing value.

    Checksums cannot show this, because whoever writes a folder also writes its checksums.

    Raises:
        DataError: If it is damaged.
    """
    entities = check_names(arrays, "ids")
    aliases = check_names(arrays, "aliases")
    _check_caseless(arrays)
    check_strings(arrays, "titles", entities)
    check_strings(arrays, "descriptions", entities)

    check_lists(arrays, "types", entities)
    check_numbers(arrays, "types", check_strings(arrays, "type_names"))

    check_lists(arrays, "relations", entities)
    check_numbers(arrays, "relations", check_strings(arrays, "relation_names"))
    check_length(arrays, "relation_objects", len(arrays["relations"]))
    check_numbers(arrays, "relation_objects", entities)

    check_lists(arrays, "candidates", aliases)
    check_numbers(arrays, "candidates", entities)
    check_length(arrays, "candidate_scores", len(arrays["candidates"]))


def _check_caseless(arrays: ArrayFolder[TableFacts]) -> None:
    """Checks that every alias is in its caseless form; others would never be found.

    Raises:
        DataError: If an alias is not.
    """
    aliases = Strings(arrays, "aliases")
    for first in range(0, len(aliases), _ALIASES_AT_ONCE):
        ends = arrays["aliases_ends"][first : first + _ALIASES_AT_ONCE]
        start = int(arrays["aliases_ends"][first - 1]) if first else 0
        text = arrays["aliases"][start : int(ends[-1])]
        unclear = start + _find_unclear_bytes(text, ends - start)

        # Only these few aliases are compared as strings.
        numbers = first + np.unique(np.searchsorted(ends, unclear, side="right"))
        for number in numbers.tolist():
            alias = aliases[number]
            if alias != make_caseless(alias):
                raise DataError(
                    f"{arrays.folder}: its alias {alias!r} is not in the form in which aliases are "
                    f"looked up, {make_caseless(alias)!r}: an earlier version of bsmeta has built "
                    "it; "
                    "delete the folder and build it again"
                )
        report_progress()


def _find_unclear_bytes(text: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the offsets of bytes that may not be in a caseless form as int64.

    These are capitals, bytes that are not printable ASCII, and spaces at the edges of a string or
    after another space.

    Args:
        text: uint8, concatenated strings.
        ends: The end offset of each string.
    """
    is_unclear = ~_IS_PLAIN[text]
    is_space = text == ord(" ")
    is_unclear[1:] |= is_space[1:] & is_space[:-1]

    starts = np.concatenate([[0], ends[:-1]])
    is_not_empty = ends > starts
    for edges in (starts[is_not_empty], ends[is_not_empty] - 1):
        is_unclear[edges] |= is_space[edges]
    return np.flatnonzero(is_unclear)
