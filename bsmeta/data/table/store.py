"""Rows of a table on disk: a store, built once per machine and memory-mapped by every process.

A store is an Arrow folder of `datasets`. `key.json` there has what determines the rows: the content
hash of the source (`file_hashes`) and every setting that affects a row. A store built with
different settings is rejected, naming the setting that differs.

Arrow files have no checksums, so `key.json` has the hashes of all files; the first process of each
machine compares them when it opens the store (16 GB per CPU second). A store may also come from
someone else, who writes the hashes, too. So that process checks the offsets and texts of all
arrays, which Arrow trusts, and refuses columns of types that open other files, such as images.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from bsmeta.core.errors import ConfigurationError, DataError, differing
from bsmeta.core.files import (
    UnsafeNameError,
    building,
    file_hash,
    path_inside,
    write_json,
    writing,
)
from bsmeta.core.parsing import decode_json
from bsmeta.core.progress import exclusively, opaque_work, report_progress

if TYPE_CHECKING:
    import datasets

KEY = "key.json"
HASHES = "hashes.json"

_STATE = "state.json"  # of `datasets`: the Arrow files in their order

# What `datasets` raises for a damaged description of its columns has no common class.
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException
)  # fmt: skip


class SavedKey(msgspec.Struct):
    """Content of `key.json`.

    Attributes:
        key: What the rows were built from, as given to `open_store`.
        rows: Number of rows.
        files: Hash of each file of the store, by name.
    """

    key: dict[str, Any]
    rows: int
    files: dict[str, str]


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")


def open_store(
    folder: Path,
    key: Mapping[str, Any],
    build: Callable[[], datasets.Dataset | Iterable[pa.RecordBatch]],
    *,
    overwrite: bool = False,
    remedy: str = "delete the folder to build it again",
) -> datasets.Dataset:
    """The rows of a store, which is built first if there is none.

    Every process of a run calls it: one process per machine builds while the others wait.

    Args:
        folder: Where the store is, or will be.
        key: What determines the rows, JSON-serializable: the source's content hash and every
            setting.
        build: Builds the rows: a dataset (`Dataset.map(num_proc=...)` inside), or batches of rows,
            the first not empty, which are written as they come.
        overwrite: Replace a store that was built from another source or with other settings.
        remedy: How to do so, for the message that refuses it.

    Raises:
        ConfigurationError: If the store was built from another source or with other settings.
        DataError: If the store is damaged, or cannot be written.
    """
    from datasets import load_from_disk

    now = json.loads(json.dumps(key))  # as it reads back: tuples are lists
    with writing(folder, f"the rows of {folder}"):
        if overwrite and folder.exists() and _read_key(folder).key != now:
            shutil.rmtree(folder)  # processes that have mapped its files keep them
        if not folder.exists():
            with opaque_work():
                _write(folder, now, build())
        saved = _read_key(folder)

    differences = "\n".join(differing(saved.key, now, "in the store"))
    if differences:
        raise ConfigurationError(
            f"{folder} was built with other settings; restore them, or {remedy}:\n{differences}"
        )

    verifies = os.environ.get("LOCAL_RANK", "0") == "0"
    _check_data_files(folder, saved)
    if verifies:
        _check_hashes(folder, saved.files)

    try:
        rows = load_from_disk(str(folder))
        if verifies:
            _check_values(folder, rows)
    except _UNREADABLE as error:
        raise _damaged(folder, str(error)) from error

    if len(rows) != saved.rows:
        raise _damaged(folder, f"{len(rows):,} rows instead of {saved.rows:,}")
    return rows


def saved_key(folder: Path) -> dict[str, Any]:
    """What a store was built from, as given to `open_store`; empty if there is no store."""
    return _read_key(folder).key if folder.exists() else {}


def _write(
    folder: Path, key: dict[str, Any], rows: datasets.Dataset | Iterable[pa.RecordBatch]
) -> None:
    """Writes a store; an interrupted build leaves none."""
    from datasets import Dataset

    with building(folder) as part:
        if isinstance(rows, Dataset):
            rows.save_to_disk(str(part))
            count = len(rows)
        else:
            count = _write_batches(iter(rows), part)
        files = {path.name: file_hash(path) for path in sorted(part.iterdir())}
        (part / KEY).write_text(json.dumps({"key": key, "rows": count, "files": files}, indent=1))


def _write_batches(batches: Iterator[pa.RecordBatch], folder: Path) -> int:
    """Writes batches of rows as they come, in the form of a saved dataset; returns the rows."""
    from datasets import Dataset, Features

    first = next(batches)
    features = Features.from_arrow_schema(first.schema)
    Dataset.from_dict(first.to_pydict(), features).save_to_disk(str(folder))
    (file,) = folder.glob("*.arrow")  # of the first batch, replaced by one with all of them
    count = 0
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_stream(opened, first.schema) as stream:
        for batch in chain([first], batches):
            stream.write(batch)
            count += batch.num_rows
    return count


def _check_data_files(folder: Path, saved: SavedKey) -> None:
    """Refuses a store whose Arrow files are not those that were written with it."""
    try:
        content = (folder / _STATE).read_bytes()
        state = decode_json(content, _State)
    except (OSError, msgspec.MsgspecError) as error:
        raise _damaged(folder, f"{_STATE}: {error}") from error

    for file in state.data_files:
        if file.filename not in saved.files:
            raise _damaged(folder, f"{_STATE} lists {file.filename!r}, which {KEY} does not have")


def _check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuses a store with a file that is missing or was changed after it was built."""
    for name, expected in hashes.items():
        try:
            actual = file_hash(path_inside(folder, name, str(folder / KEY)))
        except (OSError, UnsafeNameError) as error:
            raise _damaged(folder, str(error)) from error
        if actual != expected:
            raise _damaged(folder, f"{name}: other bytes than were written")


def _check_values(folder: Path, rows: datasets.Dataset) -> None:
    """Refuses arrays whose offsets lead out of them, and columns that are no plain values."""
    for column, feature in rows.features.items():
        if not _is_plain(feature):
            raise _damaged(folder, f"column {column!r} is of type {feature}")

    with opaque_work():
        rows.data.table.validate(full=True)


def _is_plain(feature: Any) -> bool:
    """Whether a feature holds numbers, texts, or lists of them, and no paths of files to open."""
    from datasets import LargeList, List, Value

    if isinstance(feature, (List, LargeList)):
        return _is_plain(feature.feature)
    return isinstance(feature, Value)


def _read_key(folder: Path) -> SavedKey:
    try:
        return decode_json((folder / KEY).read_bytes(), SavedKey)
    except (OSError, msgspec.MsgspecError) as error:
        raise _damaged(folder, f"{KEY}: {error}") from error


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete the folder to build it again")


class _KeptHash(msgspec.Struct):
    """The hash of a file in `hashes.json`, and the size, time and inode that it had then."""

    state: list[int]
    hash: str


def file_hashes(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The xxh3 of each file's content, in hexadecimal.

    A file is read again only if its size, its time of modification or its inode has changed.

    Args:
        folder: Where the hashes are kept; created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / HASHES
    hashes: dict[Path, str] = {}
    with exclusively(f"{store}.lock", "hashing the data sets"):
        kept: dict[str, _KeptHash] = {}
        with contextlib.suppress(OSError, ValueError):  # otherwise, all are computed again
            kept = decode_json(store.read_bytes(), dict[str, _KeptHash])
        for file in files:
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ino]
            name = str(file.resolve())
            if name not in kept or kept[name].state != state:
                kept[name] = _KeptHash(state, file_hash(file))
                report_progress()
            hashes[file] = kept[name].hash
        write_json(store, msgspec.to_builtins(kept))
    return hashes
