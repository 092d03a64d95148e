"""Stores the rows of a table on disk, where every process of a machine maps them into memory.

A store is a folder that `datasets` saves, built once per machine. Its `key.json` records everything
that determines the rows: the content hash of the source (`hash_files`) and every setting that
affects a row. A store that was built with different settings is refused; the message names the
differing settings.

Arrow files have no checksums, so `key.json` has the hashes of all files. The first process of each
machine compares them when it opens the store (16 GB per CPU second). A store may also come from
someone else, together with its hashes, so that process also checks the offsets and texts of all
arrays, which Arrow trusts, and refuses columns whose types open other files, such as images.
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

from bsmeta.core.errors import ConfigurationError, DataError, describe_differences
from bsmeta.core.files import (
    UnsafeNameError,
    build_atomically,
    hash_file,
    hold_write_lock,
    join_inside,
    write_json,
)
from bsmeta.core.parsing import decode_json
from bsmeta.core.progress import hold_lock, report_opaque_work, report_progress

if TYPE_CHECKING:
    import datasets

KEY_FILE = "key.json"
HASHES_FILE = "hashes.json"
DELETION = "delete the folder to build it again"
"""The advice on replacing a store."""

_STATE_FILE = "state.json"  # written by `datasets`: lists the Arrow files in order

# The errors that `datasets` raises for a damaged description of columns have no common class.
_READ_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    pa.ArrowException,
)


class SavedKey(msgspec.Struct):
    """The content of `key.json`.

    Attributes:
        key: Everything that determines the rows; see `open_store`.
        rows: Number of rows.
        files: Hash of each file in the store, by its name.
    """

    key: dict[str, Any]
    rows: int
    files: dict[str, str]


class _DataFile(msgspec.Struct):
    """The entry of an Arrow file in `state.json`."""

    filename: str


class _State(msgspec.Struct):
    """The content of `state.json`."""

    data_files: list[_DataFile] = msgspec.field(name="_data_files")


def open_store(
    folder: Path,
    key: Mapping[str, Any],
    build: Callable[[], datasets.Dataset | Iterable[pa.RecordBatch]],
    *,
    overwrite: bool = False,
    remedy: str = DELETION,
) -> datasets.Dataset:
    """Opens a store; builds it first if it does not exist.

    Every process of a run calls this function. One process per machine builds the store while the
    others wait.

    Args:
        folder: The folder of the store.
        key: Everything that determines the rows, as JSON types: the content hash of the source and
            every setting.
        build: Builds the rows: a dataset (it may use `Dataset.map(num_proc=...)`), or batches of
            rows, which are written as they arrive; the first batch must not be empty.
        overwrite: Whether to replace a store that was built from a different source or with
            different settings.
        remedy: Advice on replacing such a store, for the message that refuses it.

    Returns:
        The rows.

    Raises:
        ConfigurationError: If the store was built from a different source or with different
            settings.
        DataError: If the store is damaged, or cannot be written.
    """
    current = json.loads(json.dumps(key))  # as it is after loading: tuples become lists
    with hold_write_lock(folder, f"the rows of {folder}"):
        if overwrite and folder.exists() and _read_key(folder).key != current:
            shutil.rmtree(folder)  # other processes can still read the files that they have mapped
        if not folder.exists():
            with report_opaque_work():
                _write_store(folder, current, build())
    return load_store(folder, current, remedy=remedy)


def load_store(folder: Path, key: Mapping[str, Any], *, remedy: str = DELETION) -> datasets.Dataset:
    """Loads the rows of an existing store.

    Args:
        key: See `open_store`; as it is after loading from JSON.
        remedy: See `open_store`.

    Raises:
        ConfigurationError: If the store was built from a different source or with different
            settings.
        DataError: If the store is damaged.
    """
    from datasets import load_from_disk

    saved = _read_key(folder)
    differences = "\n".join(describe_differences(saved.key, key, "in the store"))
    if differences:
        raise ConfigurationError(
            f"{folder} was built with other settings; restore them, or {remedy}:\n{differences}"
        )

    # Only one process of each machine verifies the content.
    is_verifier = os.environ.get("LOCAL_RANK", "0") == "0"
    _check_data_files(folder, saved)
    if is_verifier:
        _check_hashes(folder, saved.files)

    try:
        rows = load_from_disk(str(folder))
        if is_verifier:
            _check_values(folder, rows)
    except _READ_ERRORS as error:
        raise _make_damage_error(folder, str(error)) from error

    if len(rows) != saved.rows:
        raise _make_damage_error(folder, f"{len(rows):,} rows instead of {saved.rows:,}")
    return rows


def read_saved_key(folder: Path) -> dict[str, Any]:
    """Returns the key of a store, as passed to `open_store`; empty if there is no store."""
    return _read_key(folder).key if folder.exists() else {}


def _write_store(
    folder: Path, key: dict[str, Any], rows: datasets.Dataset | Iterable[pa.RecordBatch]
) -> None:
    """Writes a store atomically: an interrupted build leaves no folder."""
    from datasets import Dataset

    with build_atomically(folder) as part:
        if isinstance(rows, Dataset):
            rows.save_to_disk(str(part))
            num_rows = len(rows)
        else:
            num_rows = _write_batches(iter(rows), part)
        files = {path.name: hash_file(path) for path in sorted(part.iterdir())}
        saved = {"key": key, "rows": num_rows, "files": files}
        (part / KEY_FILE).write_text(json.dumps(saved, indent=1))


def _write_batches(batches: Iterator[pa.RecordBatch], folder: Path) -> int:
    """Writes batches of rows to a saved dataset as they arrive; returns the number of rows."""
    from datasets import Dataset, Features

    # `datasets` writes the folder for the first batch.
    first = next(batches)
    features = Features.from_arrow_schema(first.schema)
    Dataset.from_dict(first.to_pydict(), features).save_to_disk(str(folder))

    # Its Arrow file is then replaced by a file with all batches.
    (path,) = folder.glob("*.arrow")
    num_rows = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as stream:
        for batch in chain([first], batches):
            stream.write(batch)
            num_rows += batch.num_rows
    return num_rows


def _check_data_files(folder: Path, saved: SavedKey) -> None:
    """Checks that `state.json` lists only files whose hashes are in `key.json`.

    Raises:
        DataError: If it lists others, or cannot be read.
    """
    try:
        content = (folder / _STATE_FILE).read_bytes()
        state = decode_json(content, _State)
    except (OSError, msgspec.MsgspecError) as error:
        raise _make_damage_error(folder, f"{_STATE_FILE}: {error}") from error

    for file in state.data_files:
        if file.filename not in saved.files:
            raise _make_damage_error(
                folder, f"{_STATE_FILE} lists {file.filename!r}, which {KEY_FILE} does not have"
            )


def _check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Checks that all files exist and are unchanged since the store was built.

    Raises:
        DataError: If a file is missing or was changed.
    """
    for name, expected in hashes.items():
        try:
            actual = hash_file(join_inside(folder, name, str(folder / KEY_FILE)))
        except (OSError, UnsafeNameError) as error:
            raise _make_damage_error(folder, str(error)) from error
        if actual != expected:
            raise _make_damage_error(folder, f"{name} was changed after it was written")


def _check_values(folder: Path, rows: datasets.Dataset) -> None:
    """Checks that all columns have plain values, and that the arrays are valid.

    Raises:
        DataError: If a column has values of another type.
        pa.ArrowException: If an offset is out of bounds, or a text is not UTF-8.
    """
    for column, feature in rows.features.items():
        if not _is_plain(feature):
            raise _make_damage_error(folder, f"column {column!r} is of type {feature}")

    with report_opaque_work():
        rows.data.table.validate(full=True)


def _is_plain(feature: Any) -> bool:
    """Returns whether the values of a feature are numbers, texts, or lists of them."""
    from datasets import LargeList, List, Value

    if isinstance(feature, (List, LargeList)):
        return _is_plain(feature.feature)
    return isinstance(feature, Value)


def _read_key(folder: Path) -> SavedKey:
    """Reads the `key.json` of a store.

    Raises:
        DataError: If it is missing or damaged.
    """
    try:
        return decode_json((folder / KEY_FILE).read_bytes(), SavedKey)
    except (OSError, msgspec.MsgspecError) as error:
        raise _make_damage_error(folder, f"{KEY_FILE}: {error}") from error


def _make_damage_error(folder: Path, reason: str) -> DataError:
    """Returns the error for a damaged store."""
    return DataError(f"{folder} is damaged ({reason}); {DELETION}")


class _SavedHash(msgspec.Struct):
    """The hash of a file, in `hashes.json`.

    Attributes:
        state: Size, modification time (ns since 1970) and inode of the file when it was hashed.
        hash: The xxh3 of its content, in hexadecimal.
    """

    state: list[int]
    hash: str


def hash_files(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """Returns the xxh3 of the content of each file, in hexadecimal.

    A file is read again only if its size, modification time or inode has changed.

    Args:
        folder: The folder in which the hashes are saved; created if it does not exist.

    Raises:
        OSError: If a file cannot be read, or the hashes cannot be saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HASHES_FILE
    hashes: dict[Path, str] = {}
    with hold_lock(f"{path}.lock", "hashing the data sets"):
        saved: dict[str, _SavedHash] = {}
        with contextlib.suppress(OSError, ValueError):  # without saved hashes, all are computed
            saved = decode_json(path.read_bytes(), dict[str, _SavedHash])

        for file in files:
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ino]
            name = str(file.resolve())
            if name not in saved or saved[name].state != state:
                saved[name] = _SavedHash(state, hash_file(file))
                report_progress()
            hashes[file] = saved[name].hash
        write_json(path, msgspec.to_builtins(saved))
    return hashes
