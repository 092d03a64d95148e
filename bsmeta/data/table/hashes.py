"""Hashes of the content of files, which are computed once while the files stay as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bsmeta.core.files import file_hash, write_json
from bsmeta.core.progress import exclusively, report_progress

FILE = "hashes.json"


def file_hashes(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The xxh3 of each file's content, in hexadecimal.

    A file is read again only if its size, its time of modification or its inode has changed.

    Args:
        files: The files.
        folder: Where the hashes are kept; created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / FILE
    found: dict[Path, str] = {}
    with exclusively(f"{store}.lock", "hashing the data sets"):
        known = _read(store)
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


def _read(store: Path) -> dict[str, dict[str, Any]]:
    try:
        known: dict[str, dict[str, Any]] = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}  # all are computed again
    return known
