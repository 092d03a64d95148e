"""Named arrays in a folder: memory-mapped for reading, replaced or appended to atomically.

Each array is a file of bare values. `manifest.json` says which files and how much of each belong to
the current version, so that replacing it is what changes the folder: values after the end of an
array, and files that it does not name, were left by an interrupted change.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bsmeta.config.errors import DataError

MANIFEST = "manifest.json"
FORMAT = 1

_BLOCK = 1 << 20  # values that are hashed at a time


class ArrayFolder:
    """The arrays of a folder, as its manifest describes them when it is opened.

    Args:
        folder: The folder.

    Attributes:
        folder: The folder.
        facts: What the writer has saved beside the arrays.
        version: Counts the changes of the folder.

    Raises:
        DataError: If there is no such folder, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = _read_manifest(folder)
        try:
            self._load(manifest)
        except FileNotFoundError:  # replaced since the manifest was read
            self._load(_read_manifest(folder))

    def _load(self, manifest: dict[str, Any]) -> None:
        self.version: int = manifest["version"]
        self.facts: dict[str, Any] = manifest["facts"]
        self.files: dict[str, dict[str, Any]] = manifest["arrays"]
        self._arrays = {name: _map(self.folder, **entry) for name, entry in self.files.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]


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
        entry["length"] += len(values)

    def replace(self, name: str, values: np.ndarray) -> None:
        """Writes an array to a new file; readers of the version before keep theirs."""
        file_name = f"{name}.{self._version}.bin"
        with open(self._folder / file_name, "wb") as file:
            _write(file, values)
        self._files[name] = {"file": file_name, "dtype": values.dtype.str, "length": len(values)}

    def content_hash(self) -> str:
        """The xxh3 of all arrays as they will be, in hexadecimal."""
        content = xxhash.xxh3_128()
        for name, entry in sorted(self._files.items()):
            values = _map(self._folder, **entry)
            content.update(f"{name} {values.nbytes} ".encode())
            for start in range(0, len(values), _BLOCK):
                content.update(values[start : start + _BLOCK].data)
        return content.hexdigest()

    def commit(self, facts: dict[str, Any]) -> None:
        """Makes the change visible, and removes files that are no longer used."""
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


def _map(folder: Path, file: str, dtype: str, length: int) -> np.ndarray:
    path = folder / file
    size = length * np.dtype(dtype).itemsize
    found = path.stat().st_size
    if found < size:
        raise _damaged(folder, f"{file} has {found:,} bytes instead of {size:,}")
    if length == 0:  # which cannot be mapped
        return np.empty(0, dtype)
    # A plain array over the mapping: indexing a memmap costs several times as much.
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(length,)))


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
        raise _damaged(folder, f"{MANIFEST} is not of format {FORMAT}")
    return manifest


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete the folder and build it again")
