"""Named arrays in a folder: memory-mapped for reading, replaced or appended to atomically.

Each array is a file of bare values. `manifest.json` says which files and how much of each belong to
the current version, so that replacing it is what changes the folder: values after the end of an
array, and files that it does not name, were left by an interrupted change. It also has a checksum
of each array. numpy's own `.npy` files can neither be appended to nor replaced together.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bsmeta.core.errors import DataError

MANIFEST = "manifest.json"
FORMAT = 2

_BLOCK = 1 << 20  # values that are hashed at a time


class ArrayFolder:
    """The arrays of a folder, as its manifest describes them when it is opened.

    Args:
        folder: The folder.
        verify: Compare the arrays with their checksums: for the first process that opens them.

    Attributes:
        folder: The folder.
        facts: What the writer has saved beside the arrays.
        version: Counts the changes of the folder.

    Raises:
        DataError: If there is no such folder, or it is damaged.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        manifest = _read_manifest(folder)
        try:
            self._load(manifest)
        except FileNotFoundError:  # replaced since the manifest was read
            try:
                self._load(_read_manifest(folder))
            except FileNotFoundError as error:
                raise _damaged(folder, f"{error.filename} is missing") from error
        if verify:
            self._verify()

    def _load(self, manifest: dict[str, Any]) -> None:
        try:
            self.version: int = manifest["version"]
            self.facts: dict[str, Any] = manifest["facts"]
            self.files: dict[str, dict[str, Any]] = manifest["arrays"]
            self._arrays = {name: _map(self.folder, entry) for name, entry in self.files.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise _damaged(self.folder, f"{MANIFEST}: {error!r}") from error

    def _verify(self) -> None:
        for name, entry in self.files.items():
            if _checksum(self._arrays[name]) != entry["xxh3"]:
                raise _damaged(self.folder, f"{entry['file']} does not match its checksum")

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

    The caller holds a lock: there is one writer at a time.

    Args:
        folder: The folder, which exists.
        before: Its content, to append to; None writes the first version.
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
        path = self._folder / entry["file"]
        with open(path, "r+b" if entry["length"] else "wb") as file:
            file.truncate(end)  # removes what an interrupted change has appended
            file.seek(end)
            _write(file, values)
        entry |= {"length": entry["length"] + len(values), "xxh3": None}

    def replace(self, name: str, values: np.ndarray) -> None:
        """Writes an array to a new file; readers of the version before keep theirs."""
        file_name = f"{name}.{self._version}.bin"
        with open(self._folder / file_name, "wb") as file:
            _write(file, values)
        self._files[name] = {"file": file_name, "dtype": values.dtype.str, "length": len(values),
                             "xxh3": _checksum(values)}  # fmt: skip

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
        manifest = {
            "format": FORMAT,
            "version": self._version,
            "facts": facts,
            "arrays": self._files,
        }
        written = self._folder / f"{MANIFEST}.part"
        with open(written, "w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / MANIFEST)
        used = {entry["file"] for entry in self._files.values()}
        for path in self._folder.glob("*.bin"):
            if path.name not in used:
                path.unlink(missing_ok=True)


def _map(folder: Path, entry: dict[str, Any]) -> np.ndarray:
    file, dtype, length = entry["file"], entry["dtype"], entry["length"]
    path = folder / file
    size = length * np.dtype(dtype).itemsize
    found = path.stat().st_size
    if found < size:
        raise _damaged(folder, f"{file} has {found:,} bytes instead of {size:,}")
    if length == 0:  # which cannot be mapped
        return np.empty(0, dtype)
    # A plain array over the mapping: indexing a memmap costs several times as much.
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(length,)))


def _checksum(values: np.ndarray) -> str:
    """The xxh3 of an array, in hexadecimal."""
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
