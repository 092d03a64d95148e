"""The entities that a mention may mean, and the candidates of each alias: memory-mapped tables.

Entities and aliases have numbers, from 0, which never change when entities are added: what was
built with a table (a prep store, encoded entities) remains valid for the table with more entities.
Entity 0 is NIL, no entity of the table.

A table is a folder of named arrays, replaced or appended to atomically. Each array is a file of
bare values. `manifest.json` says which files and how much of each belong to the current version, so
that replacing it is what changes the folder: values after the end of an array, and files that it
does not name, were left by an interrupted change. It also has a checksum of each array. numpy's own
`.npy` files can neither be appended to nor replaced together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.core.progress import reporting

MANIFEST = "manifest.json"
FORMAT = 2
NIL = 0
NIL_ID = "NIL"
_BLOCK = 1 << 20  # values that are hashed at a time


class ArrayFolder:
    """The arrays of a folder, as its manifest describes them when it is opened.

    `verify` compares them with their checksums: for the first process that opens them.

    Attributes:
        facts: What the writer has saved beside the arrays.
        version: Counts the changes of the folder.
        files: File, type, length and checksum of each array.

    Raises:
        DataError: If there is no such folder, or it is damaged.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        try:
            self._load()
        except FileNotFoundError:  # replaced since the manifest was read
            try:
                self._load()
            except FileNotFoundError as error:
                raise _damaged(folder, f"{error.filename} is missing") from error
        for name, entry in self.files.items() if verify else ():
            if _checksum(self._arrays[name]) != entry["xxh3"]:
                raise _damaged(folder, f"{entry['file']} does not match its checksum")

    def _load(self) -> None:
        manifest = _read_manifest(self.folder)
        try:
            self.version: int = manifest["version"]
            self.facts: dict[str, Any] = manifest["facts"]
            self.files: dict[str, dict[str, Any]] = manifest["arrays"]
            self._arrays = {name: _map(self.folder, entry) for name, entry in self.files.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise _damaged(self.folder, f"{MANIFEST}: {error!r}") from error

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise _damaged(self.folder, f"{MANIFEST} has no array {name!r}")
        return self._arrays[name]

    def fact(self, name: str) -> Any:
        """What the writer has saved under a name."""
        if name not in self.facts:
            raise _damaged(self.folder, f"{MANIFEST} has no fact {name!r}")
        return self.facts[name]


class ArrayWriter:
    """Changes the arrays of a folder; the change is visible after `commit`, and then completely.

    The caller holds a lock: there is one writer at a time. It appends to what there was `before`.
    """

    def __init__(self, folder: Path, before: ArrayFolder | None = None) -> None:
        self._folder = folder
        self._version = before.version + 1 if before else 1
        self._files = {name: dict(entry) for name, entry in before.files.items()} if before else {}

    def append(self, name: str, values: np.ndarray) -> None:
        """Appends values to an array, which is created if there is none."""
        new = {"file": f"{name}.bin", "dtype": values.dtype.str, "length": 0}
        entry = self._files.setdefault(name, new)
        assert entry["dtype"] == values.dtype.str, f"{name}: {entry['dtype']} and {values.dtype}"
        end = entry["length"] * values.dtype.itemsize
        with open(self._folder / entry["file"], "r+b" if entry["length"] else "wb") as file:
            file.truncate(end)  # removes what an interrupted change has appended
            file.seek(end)
            _write(file, values)
        entry |= {"length": entry["length"] + len(values), "xxh3": None}

    def replace(self, name: str, values: np.ndarray) -> None:
        """Writes an array to a new file; readers of the version before keep theirs."""
        entry = {"file": f"{name}.{self._version}.bin", "dtype": values.dtype.str}
        with open(self._folder / entry["file"], "wb") as file:
            _write(file, values)
        self._files[name] = {**entry, "length": len(values), "xxh3": _checksum(values)}

    def content_hash(self) -> str:
        """The xxh3 of all arrays as they will be, in hexadecimal."""
        for entry in self._files.values():
            if entry["xxh3"] is None:
                entry["xxh3"] = _checksum(_map(self._folder, entry))
        content = [(name, entry["xxh3"]) for name, entry in sorted(self._files.items())]
        return xxhash.xxh3_128_hexdigest(json.dumps(content).encode())

    def commit(self, facts: dict[str, Any]) -> None:
        """Makes the change visible, and removes files that are no longer used."""
        self.content_hash()  # every array has its checksum
        manifest = {"format": FORMAT, "version": self._version, "facts": facts}
        written = self._folder / f"{MANIFEST}.part"
        with open(written, "w") as file:
            json.dump({**manifest, "arrays": self._files}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / MANIFEST)
        used = {entry["file"] for entry in self._files.values()}
        for path in self._folder.glob("*.bin"):
            if path.name not in used:
                path.unlink(missing_ok=True)


def _map(folder: Path, entry: dict[str, Any]) -> np.ndarray:
    file, dtype, length = entry["file"], entry["dtype"], entry["length"]
    size = length * np.dtype(dtype).itemsize
    found = (folder / file).stat().st_size
    if found < size:
        raise _damaged(folder, f"{file} has {found:,} bytes instead of {size:,}")
    if length == 0:  # which cannot be mapped
        return np.empty(0, dtype)
    # A plain array over the mapping: indexing a memmap costs several times as much.
    return np.asarray(np.memmap(folder / file, dtype, mode="r", shape=(length,)))


def _checksum(values: np.ndarray) -> str:
    content = xxhash.xxh3_128()
    for start in range(0, len(values), _BLOCK):
        content.update(np.ascontiguousarray(values[start : start + _BLOCK]).data)
    return content.hexdigest()


def _write(file: Any, values: np.ndarray) -> None:
    file.write(np.ascontiguousarray(values).data)
    file.flush()
    os.fsync(file.fileno())


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is no folder of entities (it has no {MANIFEST}); build it with "
            "bsmeta/entities.py"
        ) from error
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{MANIFEST}: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder} is not of this version of bsmeta ({MANIFEST} is not of format {FORMAT}); "
            "delete the folder and build it again"
        )
    return manifest


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete the folder and build it again")


class Strings:
    """Strings by their numbers: `NAME` is their UTF-8, `NAME_ends` where each ends."""

    def __init__(self, arrays: ArrayFolder, name: str) -> None:
        self._text = arrays[name].data
        self._ends = arrays[f"{name}_ends"]

    def __len__(self) -> int:
        return len(self._ends)

    def utf8(self, number: int) -> memoryview:
        """A string as UTF-8."""
        return self._text[_range(self._ends, number)]

    def __getitem__(self, number: int) -> str:
        return str(self.utf8(number), "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))


class Names(Strings):
    """Distinct strings that are found by their hashes: `NAME_hashes` sorted, `NAME_order` whose."""

    def __init__(self, arrays: ArrayFolder, name: str) -> None:
        super().__init__(arrays, name)
        self._hashes = arrays[f"{name}_hashes"]
        self._order = arrays[f"{name}_order"]

    def find(self, string: str) -> int:
        """The number of a string; -1 if there is none."""
        data = string.encode()
        wanted = np.uint64(xxhash.xxh3_64_intdigest(data))
        place = int(self._hashes.searchsorted(wanted))
        while place < len(self._hashes) and self._hashes[place] == wanted:
            number = int(self._order[place])
            if self.utf8(number) == data:
                return number
            place += 1
        return -1


class EntityTable:
    """The entities and aliases of a folder, which processes share in memory.

    A description may be empty, and NIL's title is. `fingerprint` is a hash of the content.
    """

    def __init__(self, arrays: ArrayFolder) -> None:
        self.folder = arrays.folder
        self.ids, self.aliases = Names(arrays, "ids"), Names(arrays, "aliases")
        self.titles, self.descriptions = Strings(arrays, "titles"), Strings(arrays, "descriptions")
        self.type_names = Strings(arrays, "type_names")
        self.relation_names = Strings(arrays, "relation_names")
        # A table without one of these is refused now, not when it is needed.
        self._candidates, self._scores = arrays["candidates"], arrays["candidate_scores"]
        self._types, self._relations = arrays["types"], arrays["relations"]
        self._objects = arrays["relation_objects"]
        lists = ("candidates", "types", "relations")
        self._ends = {name: arrays[f"{name}_ends"] for name in lists}
        self.max_candidates: int = arrays.fact("max_candidates")
        self._versions: list[dict[str, Any]] = arrays.fact("versions")
        self.fingerprint: str = self._versions[-1]["fingerprint"]

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> EntityTable:
        """The table in a folder; raises DataError if there is none, or it is damaged."""
        return cls(ArrayFolder(folder, verify=verify))

    def __reduce__(self) -> tuple[Callable[..., EntityTable], tuple[Path, bool]]:
        return EntityTable.open, (self.folder, False)  # another process maps the files, too

    def __len__(self) -> int:
        """Number of entities, with NIL."""
        return len(self.ids)

    def summary(self) -> str:
        """How much there is of everything, in a line."""
        counts = np.diff(self._ends["candidates"], prepend=0)
        return (
            f"{len(self) - 1:,} entities, {len(counts):,} aliases ({int((counts > 1).sum()):,} of "
            f"several entities, {int(counts.max(initial=0))} at most), {len(self.type_names):,} "
            f"types, {len(self._relations):,} relations"
        )

    def entities_of(self, fingerprint: str) -> int | None:
        """How many entities this table had when it had a fingerprint.

        What was made with these entities is valid for this table. None: it never had it.
        """
        for version in self._versions:
            if version["fingerprint"] == fingerprint:
                return int(version["entities"])
        return None

    def candidates(self, alias: int) -> tuple[np.ndarray, np.ndarray]:
        """The entities that an alias may mean (int32) and their scores (float32), which fall."""
        own = _range(self._ends["candidates"], alias)
        return self._candidates[own], self._scores[own]

    def all_candidates(self, aliases: np.ndarray) -> np.ndarray:
        """int64: the distinct candidates of some aliases (-1: none), ascending."""
        own = np.unique(aliases)
        lists = [self.candidates(alias)[0] for alias in reporting(own[own >= 0].tolist())]
        return np.unique(np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64))

    def types(self, entity: int) -> list[str]:
        """The names of an entity's types, over all systems."""
        types = self._types[_range(self._ends["types"], entity)]
        return [self.type_names[number] for number in types.tolist()]

    def relations(self, entity: int) -> list[tuple[str, int]]:
        """The relations of an entity, each with the number of the entity that it leads to."""
        own = _range(self._ends["relations"], entity)
        pairs = zip(self._relations[own].tolist(), self._objects[own].tolist(), strict=True)
        return [(self.relation_names[name], other) for name, other in pairs]


def _range(ends: np.ndarray, number: int) -> slice:
    """Where the values of a number are, of all numbers' values one after the other."""
    return slice(int(ends[number - 1]) if number else 0, int(ends[number]))
