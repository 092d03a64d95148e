"""Memory-mapped arrays in a folder, which are replaced or appended to atomically.

Each array is a file of bare values. `manifest.json` lists the files of the current version, with
the number of values and a checksum of each. Replacing the manifest changes the whole folder at
once: values after the end of an array, and files that are not listed, were left by an interrupted
change. numpy's own `.npy` files can neither be appended to nor replaced together.

A folder may come from someone else. The reader requires a `Layout` of names and types; the manifest
must agree with it, and files outside the folder are refused. No layout has arrays of Python
objects, whose values numpy would use as memory addresses.
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
from bsmeta.core.files import UnsafeNameError, join_inside
from bsmeta.core.parsing import decode_json

MANIFEST = "manifest.json"
FORMAT = 3
_BLOCK_VALUES = 1 << 20  # hashed at a time

Layout = Mapping[str, str]
"""The numpy type of each one-dimensional array, such as `<i4`, by its name."""

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


class _FormatOnly(msgspec.Struct):
    """The field that manifests of all formats have."""

    format: Any = None


class _Manifest(msgspec.Struct):
    """The manifest of this format."""

    format: int
    version: Count
    facts: msgspec.Raw
    arrays: dict[str, ArrayFile]


class ArrayFolder(Generic[Facts]):
    """The arrays of a folder, in the version that is current when it is opened.

    Args:
        layout: The arrays that the folder must have; others are refused.
        facts: Type of the facts that the writer saves beside the arrays.
        verify: Whether to check the checksums; forked or spawned processes need not repeat this.

    Attributes:
        version: Number of changes of the folder.
        files: The manifest's entries by the name of the array.
        facts: The saved facts.

    Raises:
        DataError: If the folder is missing or damaged.
    """

    def __init__(
        self, folder: Path, layout: Layout, facts: type[Facts], *, verify: bool = True
    ) -> None:
        self.folder = folder
        self._layout = layout
        self._facts_type = facts

        try:
            self._load()
        except FileNotFoundError:
            # A writer may have replaced a file after the manifest was read.
            try:
                self._load()
            except FileNotFoundError as error:
                raise make_damaged_folder_error(folder, f"{error.filename} is missing") from error

        if verify:
            self._compare_checksums()

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns an array by name; it has one dimension and the type in the layout."""
        return self._arrays[name]

    def _load(self) -> None:
        """Reads the manifest, and maps the arrays."""
        manifest = _read_manifest(self.folder)
        self.version: int = manifest.version
        self.files = manifest.arrays

        try:
            self.facts: Facts = decode_json(manifest.facts, self._facts_type)
        except msgspec.MsgspecError as error:
            raise make_damaged_folder_error(self.folder, f"{MANIFEST}: facts: {error}") from error

        for name in [*self._layout, *self.files]:
            if name not in self.files:
                raise make_damaged_folder_error(self.folder, f"{MANIFEST} has no array {name!r}")
            if name not in self._layout:
                raise make_damaged_folder_error(
                    self.folder, f"{MANIFEST} has an unknown array {name!r}"
                )

        self._arrays = {name: self._map_array(name) for name in self._layout}

    def _compare_checksums(self) -> None:
        """Raises DataError if an array does not match its checksum."""
        for name, entry in self.files.items():
            if _compute_checksum(self._arrays[name]) != entry.xxh3:
                raise make_damaged_folder_error(
                    self.folder, f"{entry.file} does not match its checksum"
                )

    def _map_array(self, name: str) -> np.ndarray:
        """Checks the entry of an array, and maps its file."""
        entry = self.files[name]
        dtype = self._layout[name]
        if entry.dtype != dtype:
            raise make_damaged_folder_error(
                self.folder, f"{MANIFEST}: {name!r} is of type {entry.dtype!r}, expected {dtype!r}"
            )
        if re.fullmatch(rf"{name}(\.\d{{1,20}})?\.bin", entry.file) is None:
            raise make_damaged_folder_error(
                self.folder, f"{MANIFEST}: {name!r} names the file {entry.file!r}, not {name}.bin"
            )

        try:
            path = join_inside(self.folder, entry.file, str(self.folder / MANIFEST))
        except UnsafeNameError as error:  # a link that leads elsewhere
            raise make_damaged_folder_error(self.folder, str(error)) from error
        return map_array(path, dtype, entry.length)


class ArrayWriter:
    """Changes the arrays of a folder; `commit` makes all changes visible together.

    The caller must hold a lock, so that there is one writer at a time.

    Args:
        before: The existing folder, whose arrays are appended to or replaced; None for a new one.
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
        """Appends values to an array, which is created if it does not exist."""
        values = self._check_type(name, values)
        entry = self._files.setdefault(name, ArrayFile(f"{name}.bin", self._layout[name], 0))

        end = entry.length * values.itemsize
        with open(self._folder / entry.file, "r+b" if entry.length else "wb") as file:
            file.truncate(end)  # removes values that an interrupted change has appended
            file.seek(end)
            _write_array(file, values)

        entry.length += len(values)
        entry.xxh3 = None

    def replace(self, name: str, values: np.ndarray) -> None:
        """Writes an array to a new file; readers of the previous version keep the old file."""
        values = self._check_type(name, values)
        file_name = f"{name}.{self._version}.bin"
        with open(self._folder / file_name, "wb") as file:
            _write_array(file, values)

        self._files[name] = ArrayFile(
            file_name, self._layout[name], len(values), _compute_checksum(values)
        )

    def compute_content_hash(self) -> str:
        """Computes the xxh3 of all arrays after the changes, in hexadecimal."""
        for entry in self._files.values():
            if entry.xxh3 is None:
                values = map_array(self._folder / entry.file, entry.dtype, entry.length)
                entry.xxh3 = _compute_checksum(values)

        content = [(name, entry.xxh3) for name, entry in sorted(self._files.items())]
        return xxhash.xxh3_128_hexdigest(json.dumps(content).encode())

    def commit(self, facts: msgspec.Struct) -> None:
        """Makes the changes visible, and removes unused files.

        Args:
            facts: Facts to save beside the arrays.
        """
        self.compute_content_hash()  # computes the missing checksums
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

        current_files = {entry.file for entry in self._files.values()}
        for path in self._folder.glob("*.bin"):
            if path.name not in current_files:
                path.unlink(missing_ok=True)

    def _check_type(self, name: str, values: np.ndarray) -> np.ndarray:
        """Asserts the type in the layout; returns contiguous values."""
        dtype = self._layout[name]
        assert values.dtype.str == dtype, f"{name}: {values.dtype.str} instead of {dtype}"
        return np.ascontiguousarray(values)


def map_array(path: Path, dtype: str, length: int) -> np.ndarray:
    """Maps the first `length` values of a file.

    Raises:
        DataError: If the file is shorter.
        FileNotFoundError: If the file is missing.
    """
    expected = length * np.dtype(dtype).itemsize
    actual = path.stat().st_size
    if actual < expected:
        raise make_damaged_folder_error(
            path.parent, f"{path.name} has {actual:,} bytes instead of {expected:,}"
        )
    if length == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)

    # A plain array over the mapping: indexing a memmap costs several times as much.
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(length,)))


def make_damaged_folder_error(folder: Path, reason: str) -> DataError:
    """Returns the error for a folder with content that `ArrayWriter` would not write."""
    return DataError(f"{folder} is damaged ({reason}); delete the folder and build it again")


def _read_manifest(folder: Path) -> _Manifest:
    """Reads the manifest of a folder.

    Raises:
        DataError: If it is missing, damaged, or of another format.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is not a folder of entities (it has no {MANIFEST}); build it with "
            "bsmeta/entities.py"
        ) from error
    except OSError as error:
        raise make_damaged_folder_error(folder, f"{MANIFEST}: {error}") from error

    try:
        if decode_json(content, _FormatOnly).format != FORMAT:
            raise DataError(
                f"{folder} is not of this version of bsmeta ({MANIFEST} is not of format {FORMAT});"
                " delete the folder and build it again"
            )
        return decode_json(content, _Manifest)
    except msgspec.MsgspecError as error:
        raise make_damaged_folder_error(folder, f"{MANIFEST}: {error}") from error


def _compute_checksum(values: np.ndarray) -> str:
    content = xxhash.xxh3_128()
    for start in range(0, len(values), _BLOCK_VALUES):
        content.update(np.ascontiguousarray(values[start : start + _BLOCK_VALUES]).data)
    return content.hexdigest()


def _write_array(file: BinaryIO, values: np.ndarray) -> None:
    """Writes the values of an array, and waits until they are on the disk."""
    file.write(values.data)
    file.flush()
    os.fsync(file.fileno())
