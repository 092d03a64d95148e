"""A table of encoded examples on disk: built once per machine, never reused for other settings.

The store is an Arrow folder of `datasets`, memory-mapped by every process. It also stores what
determines the rows: the content hash of the source (`file_hashes`) and every setting that affects a
row. A store built with different settings is rejected, naming the setting that differs. Arrow files
have no checksums, so the hashes of all files are stored, too; the first process of each machine
compares them when it opens the store (16 GB per CPU second).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bsmeta.core.errors import ConfigurationError, DataError, differing
from bsmeta.core.files import building, file_hash, unwritable, write_json
from bsmeta.core.progress import exclusively, opaque_work, report_progress

if TYPE_CHECKING:
    from datasets import Dataset

KEY = "key.json"
HASHES = "hashes.json"


def open_store(
    folder: Path,
    key: Mapping[str, Any],
    build: Callable[[], Dataset | Iterable[pa.RecordBatch]],
    *,
    overwrite: bool = False,
    remedy: str = "delete the folder to build it again",
) -> Dataset:
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
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{folder}.lock", f"the rows of {folder}"):
            if overwrite and folder.exists() and _read_key(folder)["key"] != now:
                shutil.rmtree(folder)  # processes that have mapped its files keep them
            if not folder.exists():
                with opaque_work():
                    _write(folder, now, build())
            saved = _read_key(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    differences = "\n".join(differing(saved["key"], now, "in the store"))
    if differences:
        raise ConfigurationError(
            f"{folder} was built with other settings; restore them, or {remedy}:\n{differences}"
        )
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _check_files(folder, saved["files"])
    try:
        rows = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, str(error)) from error
    if len(rows) != saved["rows"]:
        raise _damaged(folder, f"{len(rows):,} rows instead of {saved['rows']:,}")
    return rows


def saved_key(folder: Path) -> dict[str, Any]:
    """What a store was built from, as given to `open_store`; empty if there is no store."""
    found: dict[str, Any] = _read_key(folder)["key"] if folder.exists() else {}
    return found


def _write(folder: Path, key: dict[str, Any], rows: Dataset | Iterable[pa.RecordBatch]) -> None:
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


def _check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuses a store with a file that is missing or was changed after it was built."""
    for name, expected in hashes.items():
        try:
            found = file_hash(folder / name)
        except OSError as error:
            raise _damaged(folder, str(error)) from error
        if found != expected:
            raise _damaged(folder, f"{name}: other bytes than were written")


def _read_key(folder: Path) -> dict[str, Any]:
    try:
        saved = json.loads((folder / KEY).read_text())
        return {"key": saved["key"], "rows": int(saved["rows"]), "files": dict(saved["files"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"{KEY}: {error}") from error


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete the folder to build it again")


def file_hashes(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The xxh3 of each file's content, in hexadecimal.

    A file is read again only if its size, its time of modification or its inode has changed.

    Args:
        files: The files.
        folder: Where the hashes are kept; created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / HASHES
    found: dict[Path, str] = {}
    with exclusively(f"{store}.lock", "hashing the data sets"):
        known = _read_hashes(store)
        for file in files:
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ino]
            name = str(file.resolve())
            if known.get(name, {}).get("state") != state:
                known[name] = {"state": state, "hash": file_hash(file)}
                report_progress()
            found[file] = known[name]["hash"]
        write_json(store, known)
    return found


def _read_hashes(store: Path) -> dict[str, dict[str, Any]]:
    try:
        known: dict[str, dict[str, Any]] = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}  # all are computed again
    return known
