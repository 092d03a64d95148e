"""The table of entities that mentions may refer to, with the candidates of each alias.

Entities and aliases are numbered from 0. Numbers do not change when the table is edited, so prep
stores and vectors remain valid. A removed entity keeps its number, but is not a candidate and has
no content. Entity 0 is NIL, which stands for any entity not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_each, report_progress
from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, Count
from bsmeta.tasks.disambiguation.string_table import (
    Names,
    Strings,
    check_length,
    check_lists,
    check_names,
    check_numbers,
    check_strings,
    find_list_range,
    make_list_layout,
    make_name_layout,
    make_string_layout,
)

NIL = 0
NIL_ID = "NIL"

ENTITY_LAYOUT = {
    **make_name_layout("ids"),
    **make_name_layout("aliases"),
    **make_string_layout("titles"),
    **make_string_layout("descriptions"),
    **make_string_layout("type_names"),
    **make_string_layout("relation_names"),
    **make_list_layout("types", "<i4"),  # for each entity, numbers of type names
    **make_list_layout("relations", "<i4"),  # for each entity, numbers of relation names
    "relation_objects": "<i4",  # for each relation, its object
    **make_list_layout("candidates", "<i4"),  # for each alias, entities
    "candidate_scores": "<f4",
    "removed": "<i4",  # entities that were removed, ascending
}
"""The arrays of a table."""

_ALIAS_BATCH_SIZE = 1 << 16  # aliases that are checked together
_IS_PLAIN = np.zeros(256, bool)  # by byte: whether the caseless form leaves it unchanged
_IS_PLAIN[ord(" ") : ord("~") + 1] = True
_IS_PLAIN[ord("A") : ord("Z") + 1] = False


Action = Literal["built", "added", "updated", "removed", "rescored"]
"""What a version of a table did with its entities."""

MAX_EXAMPLES = 5
"""Maximum number of ids that versions of a table and messages name."""


class TableVersion(msgspec.Struct):
    """A version of a table; each change makes a new one.

    Attributes:
        fingerprint: Hash of the content.
        action: The change that made this version.
        count: Number of changed entities.
        examples: Ids of the first changed entities.
    """

    fingerprint: str
    action: Action
    count: Count
    examples: list[str]


class TableFacts(msgspec.Struct):
    """Facts about a table.

    Attributes:
        max_candidates: Maximum number of candidates of an alias.
        versions: All versions, oldest first.
    """

    max_candidates: Annotated[int, msgspec.Meta(ge=1)]
    versions: Annotated[list[TableVersion], msgspec.Meta(min_length=1)]


def format_examples(examples: Sequence[str], count: int) -> str:
    """Formats the first ids of `count`, with an ellipsis if there are more."""
    return ", ".join(examples) + (", …" if count > len(examples) else "")


def describe_versions(versions: Sequence[TableVersion]) -> str:
    """Describes the changes of versions by action: `2 added (Q1, Q2), 1 removed (Q94)`."""
    parts = []
    for action in dict.fromkeys(version.action for version in versions):
        count = 0
        examples: list[str] = []
        for version in versions:
            if version.action == action:
                count += version.count
                examples += version.examples
        names = format_examples(examples[:MAX_EXAMPLES], count)
        parts.append(f"{count:,} {action} ({names})" if names else f"{count:,} {action}")
    return ", ".join(parts)


class Aliases(Names):
    """The aliases of a table, stored and looked up in their caseless form."""

    def find(self, string: str) -> int:
        """Returns the number of an alias; -1 if there is none.

        Differences in case, Unicode composition and white space are ignored.
        """
        return super().find(make_caseless(string))


class EntityTable:
    """The entities and aliases in a folder, memory-mapped, so that processes share them.

    A description may be empty; the title of NIL is empty.

    Attributes:
        folder: The folder of the table.
        ids: Identifiers of the entities.
        aliases: The aliases, in caseless form.
        titles: Titles of the entities.
        descriptions: Descriptions of the entities.
        type_names: Names of types.
        relation_names: Names of relations.
        max_candidates: Maximum number of candidates of an alias.
        removed: Numbers of the removed entities, int32, ascending.
        fingerprint: Hash of the content.
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
        self.removed = arrays["removed"]
        self.max_candidates = arrays.facts.max_candidates
        self._versions = arrays.facts.versions
        self.fingerprint = self._versions[-1].fingerprint

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> EntityTable:
        """Opens the table in a folder.

        Args:
            verify: Whether to check checksums and values; forked or spawned processes need not
                repeat this.

        Raises:
            DataError: If there is no table, or it is damaged.
        """
        arrays = ArrayFolder(folder, ENTITY_LAYOUT, TableFacts, verify=verify)
        if verify:
            check_table(arrays)
        return cls(arrays)

    def __reduce__(self) -> tuple[Callable[..., EntityTable], tuple[Path, str]]:
        return _reopen_table, (self.folder, self.fingerprint)  # the other process maps the files

    def __len__(self) -> int:
        """Returns the number of entities, including NIL and removed ones."""
        return len(self.ids)

    def find_entity(self, entity_id: str) -> int:
        """Returns the number of an entity; -1 if there is none, or it was removed."""
        entity = self.ids.find(entity_id)
        return -1 if self.is_removed(entity) else entity

    def is_removed(self, entity: int) -> bool:
        """Returns whether an entity was removed."""
        position = int(self.removed.searchsorted(entity))
        return position < len(self.removed) and int(self.removed[position]) == entity

    def find_alias(self, string: str) -> int:
        """Returns the number of an alias with candidates; -1 if there is none.

        Differences in case, Unicode composition and white space are ignored.
        """
        alias = self.aliases.find(string)
        return alias if alias >= 0 and self.has_candidates(np.array([alias]))[0] else -1

    def has_candidates(self, aliases: np.ndarray) -> np.ndarray:
        """Returns whether each alias has a candidate, bool; removals may leave none."""
        ends = self._arrays["candidates_ends"]
        starts = np.where(aliases > 0, ends[aliases - 1], 0)
        return np.asarray(ends[aliases] > starts)

    def summary(self) -> str:
        """Describes the table in one line: numbers of entities, aliases, types and relations."""
        counts = np.diff(self._arrays["candidates_ends"], prepend=0)
        return (
            f"{len(self) - 1 - len(self.removed):,} entities, {int((counts > 0).sum()):,} aliases "
            f"({int((counts > 1).sum()):,} of "
            f"several entities, {int(counts.max(initial=0))} at most), {len(self.type_names):,} "
            f"types, {len(self._arrays['relations']):,} relations"
        )

    def list_changes(self, fingerprint: str) -> list[TableVersion] | None:
        """Returns the versions after the one with a fingerprint, oldest first.

        Returns:
            [] for the current fingerprint; None if the table never had this fingerprint.
        """
        for index in range(len(self._versions) - 1, -1, -1):
            if self._versions[index].fingerprint == fingerprint:
                return self._versions[index + 1 :]
        return None

    def candidates(self, alias: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the candidates of an alias (int32) and their scores (float32), highest first."""
        positions = find_list_range(self._arrays["candidates_ends"], alias)
        return self._arrays["candidates"][positions], self._arrays["candidate_scores"][positions]

    def find_all_candidates(self, aliases: np.ndarray) -> np.ndarray:
        """Returns the distinct candidates of aliases as int64, ascending; -1 is skipped."""
        distinct = np.unique(aliases)
        lists = [np.empty(0, np.int64)]
        for alias in report_each(distinct[distinct >= 0].tolist()):
            entities, _ = self.candidates(alias)
            lists.append(entities)
        return np.unique(np.concatenate(lists).astype(np.int64))

    def list_types(self, entity: int) -> list[str]:
        """Returns the names of an entity's types in all type systems."""
        types = self._arrays["types"][find_list_range(self._arrays["types_ends"], entity)]
        return [self.type_names[number] for number in types.tolist()]

    def list_relations(self, entity: int) -> list[tuple[str, int]]:
        """Returns the relations of an entity: the name and the object of each."""
        relations = find_list_range(self._arrays["relations_ends"], entity)
        names = self._arrays["relations"][relations].tolist()
        objects = self._arrays["relation_objects"][relations].tolist()
        return [
            (self.relation_names[name], other) for name, other in zip(names, objects, strict=True)
        ]


def _reopen_table(folder: Path, fingerprint: str) -> EntityTable:
    """Opens the table of another process, without verifying it again.

    Raises:
        DataError: If the table was edited in the meantime, other than by adding entities, which
            change nothing that the other process has read.
    """
    table = EntityTable.open(folder, verify=False)
    changes = table.list_changes(fingerprint)
    if changes is None or any(version.action != "added" for version in changes):
        raise DataError(f"{folder} was edited while it was being read; run the command again")
    return table


def check_table(arrays: ArrayFolder[TableFacts]) -> None:
    """Checks that all numbers and offsets in a table refer to existing values.

    Checksums cannot ensure this, because whoever writes a folder also writes its checksums.

    Raises:
        DataError: If the table is damaged.
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
    check_numbers(arrays, "removed", entities)


def _check_caseless(arrays: ArrayFolder[TableFacts]) -> None:
    """Checks that every alias is in its caseless form, because others would never be found.

    Raises:
        DataError: If an alias is not.
    """
    aliases = Strings(arrays, "aliases")
    for first in range(0, len(aliases), _ALIAS_BATCH_SIZE):
        ends = arrays["aliases_ends"][first : first + _ALIAS_BATCH_SIZE]
        start = int(arrays["aliases_ends"][first - 1]) if first else 0
        text = arrays["aliases"][start : int(ends[-1])]
        unclear = start + _find_unclear_bytes(text, ends - start)

        # Only aliases with such bytes, usually few, are compared as strings.
        numbers = first + np.unique(np.searchsorted(ends, unclear, side="right"))
        for number in numbers.tolist():
            alias = aliases[number]
            if alias != make_caseless(alias):
                raise DataError(
                    f"{arrays.folder}: its alias {alias!r} is not in the form in which aliases are "
                    f"looked up, {make_caseless(alias)!r}: an earlier version of bsmeta has built "
                    "it; delete the folder and build it again"
                )
        report_progress()


def _find_unclear_bytes(text: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the offsets of bytes that a caseless form may not have, as int64.

    These are capitals, bytes other than printable ASCII, and spaces at the edges of a string or
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
