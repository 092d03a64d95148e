"""Named arrays in a folder: memory-mapped, and replaced or appended to in one operation.

Each array is a file of bare values. `manifest.json` says which files and how much of each belong to
the current version, so that replacing it is what changes the folder: values after the end of an
array, and files that it does not list, were left by an interrupted change. It also has a checksum
of each array. numpy's own `.npy` files can neither be appended to nor replaced together.

A folder may come from someone else. Which arrays there are, and their types, is a `Layout` in the
code of the reader; the manifest must agree with it, and names no file outside the folder. An array
of Python objects, which numpy would read as addresses in memory, is in no layout.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, TypeVar

import msgspec
import numpy as np
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.core.files import UnsafeNameError, path_inside
from bsmeta.core.parsing import decode_json

MANIFEST = "manifest.json"
FORMAT = 2
_BLOCK = 1 << 20  # values that are hashed at a time

Layout = Mapping[str, str]
"""Name of an array -> its numpy type, such as `<i4`. Every array has one dimension."""

Facts = TypeVar("Facts", bound=msgspec.Struct)

Count = Annotated[int, msgspec.Meta(ge=0)]


class ArrayFile(msgspec.Struct):
    """The manifest's entry for one array.

    Attributes:
        length: Number of values.
        xxh3: Checksum of the values in hexadecimal; None until it is computed.
    """

    file: str
    dtype: str
    length: Count
    xxh3: str | None = None


class _Version(msgspec.Struct):
    format: Any = None


class _Manifest(msgspec.Struct):
    format: int
    version: Count
    facts: msgspec.Raw
    arrays: dict[str, ArrayFile]


class ArrayFolder(Generic[Facts]):
    """The arrays of a folder as its manifest describes them when it is opened.

    Args:
        layout: The arrays that the folder must have, and no others.
        facts: Type of what the writer saves beside the arrays.
        verify: Whether to compare the arrays with their checksums: for the first process that
            opens the folder.

    Attributes:
        version: Number of changes of the folder.
        files: File, type, length and checksum of each array.

    Raises:
        DataError: If there is no such folder, or it is damaged.
    """

    def __init__(
        self, folder: Path, layout: Layout, facts: type[Facts], *, verify: bool = True
    ) -> None:
        self.folder = folder
        self._layout = layout
        self._facts_type = facts

        try:
            self._load()
        except FileNotFoundError:  # replaced since the manifest was read
            try:
                self._load()
            except FileNotFoundError as error:
                raise damaged_folder(folder, f"{error.filename} is missing") from error

        for name, entry in self.files.items() if verify else ():
            if _checksum(self._arrays[name]) != entry.xxh3:
                raise damaged_folder(folder, f"{entry.file} does not match its checksum")

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a name, of one dimension and the type that the layout says."""
        return self._arrays[name]

    def _load(self) -> None:
        manifest = _read_manifest(self.folder)
        self.version: int = manifest.version
        self.files = manifest.arrays

        try:
            self.facts: Facts = decode_json(manifest.facts, self._facts_type)
        except msgspec.MsgspecError as error:
            raise damaged_folder(self.folder, f"{MANIFEST}: facts: {error}") from error

        for name in [*self._layout, *self.files]:
            if name not in self.files:
                raise damaged_folder(self.folder, f"{MANIFEST} has no array {name!r}")
            if name not in self._layout:
                raise damaged_folder(self.folder, f"{MANIFEST} has an unknown array {name!r}")

        self._arrays = {name: self._map(name) for name in self._layout}

    def _map(self, name: str) -> np.ndarray:
        """Maps the file of an array, after its entry was compared with the layout."""
        entry = self.files[name]
        dtype = self._layout[name]
        if entry.dtype != dtype:
            raise damaged_folder(
                self.folder, f"{MANIFEST}: {name!r} is of type {entry.dtype!r}, expected {dtype!r}"
            )
        if re.fullmatch(rf"{name}(\.\d{{1,20}})?\.bin", entry.file) is None:
            raise damaged_folder(
                self.folder, f"{MANIFEST}: {name!r} names the file {entry.file!r}, not {name}.bin"
            )

        try:
            path = path_inside(self.folder, entry.file, str(self.folder / MANIFEST))
        except UnsafeNameError as error:  # a link that leads elsewhere
            raise damaged_folder(self.folder, str(error)) from error
        return map_array(path, dtype, entry.length)


class ArrayWriter:
    """Changes the arrays of a folder; the change is visible after `commit`, and then completely.

    The caller holds a lock: there is one writer at a time.

    Args:
        before: The folder as it is, whose arrays are appended to or replaced; None: a new one.
    """

    def __init__(
        self, folder: Path, layout: Layout, before: ArrayFolder[Any] | None = None
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._version = before.version + 1 if before else 1
        self._files: dict[str, ArrayFile] = {}
        if before is not None:
            self._files = {
                name: msgspec.structs.replace(file) for name, file in before.files.items()
            }

    def append(self, name: str, values: np.ndarray) -> None:
        """Appends values to an array, which is created if there is none."""
        values = self._typed(name, values)
        entry = self._files.setdefault(name, ArrayFile(f"{name}.bin", self._layout[name], 0))

        end = entry.length * values.itemsize
        with open(self._folder / entry.file, "r+b" if entry.length else "wb") as file:
            file.truncate(end)  # removes what an interrupted change has appended
            file.seek(end)
            _write(file, values)

        entry.length += len(values)
        entry.xxh3 = None

    def replace(self, name: str, values: np.ndarray) -> None:
        """Writes an array to a new file; readers of the version before keep theirs."""
        values = self._typed(name, values)
        file_name = f"{name}.{self._version}.bin"
        with open(self._folder / file_name, "wb") as file:
            _write(file, values)

        self._files[name] = ArrayFile(file_name, self._layout[name], len(values), _checksum(values))

    def content_hash(self) -> str:
        """The xxh3 of all arrays as they will be, in hexadecimal."""
        for entry in self._files.values():
            if entry.xxh3 is None:
                values = map_array(self._folder / entry.file, entry.dtype, entry.length)
                entry.xxh3 = _checksum(values)

        content = [(name, entry.xxh3) for name, entry in sorted(self._files.items())]
        return xxhash.xxh3_128_hexdigest(json.dumps(content).encode())

    def commit(self, facts: msgspec.Struct) -> None:
        """Makes the change visible, and removes files that are no longer used."""
        self.content_hash()  # every array has its checksum
        assert self._files.keys() == self._layout.keys()

        manifest = {
            "format": FORMAT,
            "version": self._version,
            "facts": msgspec.to_builtins(facts),
            "arrays": msgspec.to_builtins(self._files),
        }
        part = self._folder / f"{MANIFEST}.part"
        with open(part, "w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._folder / MANIFEST)

        used = {entry.file for entry in self._files.values()}
        for path in self._folder.glob("*.bin"):
            if path.name not in used:
                path.unlink(missing_ok=True)

    def _typed(self, name: str, values: np.ndarray) -> np.ndarray:
        dtype = self._layout[name]
        assert values.dtype.str == dtype, f"{name}: {values.dtype.str} instead of {dtype}"
        return np.ascontiguousarray(values)


def map_array(path: Path, dtype: str, length: int) -> np.ndarray:
    """Maps the first `length` values of a file.

    Raises:
        DataError: If the file is shorter.
        FileNotFoundError: If there is none.
    """
    expected = length * np.dtype(dtype).itemsize
    actual = path.stat().st_size
    if actual < expected:
        raise damaged_folder(
            path.parent, f"{path.name} has {actual:,} bytes instead of {expected:,}"
        )
    if length == 0:  # which cannot be mapped
        return np.empty(0, dtype)

    # A plain array over the mapping: indexing a memmap costs several times as much.
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(length,)))


def damaged_folder(folder: Path, reason: str) -> DataError:
    """The error for a folder whose content cannot be what its writer wrote."""
    return DataError(f"{folder} is damaged ({reason}); delete the folder and build it again")


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is no folder of entities (it has no {MANIFEST}); build it with "
            "bsmeta/entities.py"
        ) from error
    except OSError as error:
        raise damaged_folder(folder, f"{MANIFEST}: {error}") from error

    try:
        if decode_json(content, _Version).format != FORMAT:
            raise DataError(
                f"{folder} is not of this version of bsmeta ({MANIFEST} is not of format {FORMAT});"
                " delete the folder and build it again"
            )
        return decode_json(content, _Manifest)
    except msgspec.MsgspecError as error:
        raise damaged_folder(folder, f"{MANIFEST}: {error}") from error


def _checksum(values: np.ndarray) -> str:
    content = xxhash.xxh3_128()
    for start in range(0, len(values), _BLOCK):
        content.update(np.ascontiguousarray(values[start : start + _BLOCK]).data)
    return content.hexdigest()


def _write(file: BinaryIO, values: np.ndarray) -> None:
    file.write(values.data)
    file.flush()
    os.fsync(file.fileno())
