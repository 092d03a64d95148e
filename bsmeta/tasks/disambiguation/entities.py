"""The entities that a mention may mean, and the candidates of each alias: memory-mapped tables.

Entities and aliases have numbers, from 0, which never change when entities are added: what was
built with a table (a prep store, encoded entities) remains valid for the table with more entities.
Entity 0 is NIL, no entity of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder

NIL = 0
NIL_ID = "NIL"

_ARRAYS = (
    *("ids", "titles", "descriptions", "aliases", "type_names", "relation_names"),
    *("types", "types_ends", "relations", "relations_ends", "relation_objects"),
    *("candidates", "candidate_scores", "candidates_ends"),
)
"""What a table has, beside the ends, hashes and orders of the texts."""


class Strings:
    """Strings in two arrays: UTF-8, and where each begins (and the last one ends).

    Args:
        arrays: The folder.
        name: `NAME` and `NAME_ends` are the arrays.
    """

    def __init__(self, arrays: ArrayFolder, name: str) -> None:
        self._text = arrays[name].data
        self._ends = arrays[f"{name}_ends"]

    def __len__(self) -> int:
        return len(self._ends)

    def bytes_of(self, index: int) -> memoryview:
        """A string as UTF-8."""
        start = int(self._ends[index - 1]) if index else 0
        return self._text[start : int(self._ends[index])]

    def __getitem__(self, index: int) -> str:
        return str(self.bytes_of(index), "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


class Lookup:
    """Finds strings by their hashes, which are sorted.

    Args:
        arrays: The folder.
        name: `NAME_hashes` and `NAME_order` are the arrays.
        strings: The strings.
    """

    def __init__(self, arrays: ArrayFolder, name: str, strings: Strings) -> None:
        self._hashes = arrays[f"{name}_hashes"]
        self._order = arrays[f"{name}_order"]
        self._strings = strings

    def __call__(self, string: str) -> int:
        """The number of a string; -1 if there is none."""
        data = string.encode()
        wanted = np.uint64(xxhash.xxh3_64_intdigest(data))
        place = int(self._hashes.searchsorted(wanted))
        while place < len(self._hashes) and self._hashes[place] == wanted:
            index = int(self._order[place])
            if self._strings.bytes_of(index) == data:
                return index
            place += 1
        return -1


class EntityTable:
    """The entities and aliases of a folder, which processes share in memory.

    Args:
        arrays: The opened folder; see `open`.

    Attributes:
        folder: The folder.
        max_candidates: The most candidates that an alias has.
        fingerprint: Hash of the content.
        type_names: The names of all types.
        relation_names: The names of all relations.
    """

    def __init__(self, arrays: ArrayFolder) -> None:
        for name in _ARRAYS:
            arrays[name]  # a table without one is refused now, not when it is needed
        self._arrays = arrays
        self.folder = arrays.folder
        self.max_candidates: int = arrays.fact("max_candidates")
        self._versions: list[dict[str, Any]] = arrays.fact("versions")
        self.fingerprint: str = self._versions[-1]["fingerprint"]
        self._ids = Strings(arrays, "ids")
        self._titles = Strings(arrays, "titles")
        self._descriptions = Strings(arrays, "descriptions")
        self.type_names = Strings(arrays, "type_names")
        self.relation_names = Strings(arrays, "relation_names")
        self._aliases = Strings(arrays, "aliases")
        self._find_id = Lookup(arrays, "ids", self._ids)
        self._find_alias = Lookup(arrays, "aliases", self._aliases)

    @classmethod
    def open(cls, folder: Path) -> EntityTable:
        """The table in a folder.

        Raises:
            DataError: If there is none, or it is damaged.
        """
        return cls(ArrayFolder(folder))

    def __reduce__(self) -> tuple[Callable[[Path], EntityTable], tuple[Path]]:
        return _mapped, (self.folder,)  # another process maps the files, too

    def __len__(self) -> int:
        """Number of entities, with NIL."""
        return len(self._ids)

    @property
    def num_aliases(self) -> int:
        """Number of aliases."""
        return len(self._aliases)

    def summary(self) -> str:
        """How much there is of everything, in a line."""
        counts = np.diff(self._arrays["candidates_ends"], prepend=0)
        return (
            f"{len(self) - 1:,} entities, {len(counts):,} aliases ({int((counts > 1).sum()):,} of "
            f"several entities, {int(counts.max(initial=0))} at most), {len(self.type_names):,} "
            f"types, {len(self._arrays['relations']):,} relations"
        )

    def entities_of(self, fingerprint: str) -> int | None:
        """How many entities this table had when it had a fingerprint.

        What was made with these entities is valid for this table. None: it never had it.
        """
        for version in self._versions:
            if version["fingerprint"] == fingerprint:
                return int(version["entities"])
        return None

    def alias_index(self, alias: str) -> int:
        """The number of an alias; -1 if it is unknown."""
        return self._find_alias(alias)

    def alias(self, alias_index: int) -> str:
        """The alias with a number."""
        return self._aliases[alias_index]

    def aliases(self) -> Iterator[str]:
        """All aliases, in the order of their numbers."""
        return iter(self._aliases)

    def candidates(self, alias_index: int) -> tuple[np.ndarray, np.ndarray]:
        """The entities that an alias may mean (int32) and their scores (float32), which fall."""
        rows = self._slice("candidates_ends", alias_index)
        return self._arrays["candidates"][rows], self._arrays["candidate_scores"][rows]

    def find(self, entity_id: str) -> int:
        """The number of an entity; -1 if it is unknown."""
        return self._find_id(entity_id)

    def index(self, entity_id: str) -> int:
        """The number of an entity.

        Raises:
            DataError: If it is unknown.
        """
        found = self._find_id(entity_id)
        if found < 0:
            raise DataError(f"{self.folder} has no entity {entity_id!r}")
        return found

    def entity_id(self, index: int) -> str:
        """The id of an entity."""
        return self._ids[index]

    def title(self, index: int) -> str:
        """The title of an entity; empty for NIL."""
        return self._titles[index]

    def description(self, index: int) -> str:
        """The description of an entity, which may be empty."""
        return self._descriptions[index]

    def types(self, index: int) -> list[str]:
        """The names of an entity's types, over all systems."""
        types = self._arrays["types"][self._slice("types_ends", index)]
        return [self.type_names[number] for number in types.tolist()]

    def relations(self, index: int) -> list[tuple[str, int]]:
        """The relations of an entity, each with the number of the entity that it leads to."""
        rows = self._slice("relations_ends", index)
        names = self._arrays["relations"][rows].tolist()
        objects = self._arrays["relation_objects"][rows].tolist()
        pairs = zip(names, objects, strict=True)
        return [(self.relation_names[name], entity) for name, entity in pairs]

    def _slice(self, name: str, index: int) -> slice:
        ends = self._arrays[name]
        return slice(int(ends[index - 1]) if index else 0, int(ends[index]))


def _mapped(folder: Path) -> EntityTable:
    return EntityTable(ArrayFolder(folder, verify=False))
