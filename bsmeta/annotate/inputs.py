"""The input files: found, named, and identified by their content."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from bsmeta.annotate.sources import SUFFIXES
from bsmeta.core.errors import ConfigurationError, DataError

READERS = 8
_BLOCK = 1 << 20


@dataclass(frozen=True)
class InputFile:
    """A file of pages.

    Attributes:
        path: Where it is.
        name: The name of its shard, without suffix.
        bytes: Its size.
        xxh3: The hash of its content.
    """

    path: str
    name: str
    bytes: int
    xxh3: str


def list_inputs(entries: Any) -> list[tuple[str, str]]:
    """Paths of the input files and the names of their shards, sorted.

    Args:
        entries: The key `input`: a path, a folder, a glob, or a list of them.

    Raises:
        ConfigurationError: If it is not set, or two files would have one name.
        DataError: If it names no file.
    """
    if not entries:
        raise ConfigurationError(
            f"input is not set; expected files, a folder or a glob: {', '.join(SUFFIXES)}"
        )
    entries = [entries] if isinstance(entries, str) else list(entries)
    paths = sorted({os.path.abspath(path) for entry in entries for path in _expand(str(entry))})
    stems = [_stem(path) for path in paths]
    if len(set(stems)) < len(stems):
        common = os.path.commonpath([os.path.dirname(path) for path in paths])
        stems = [_stem(os.path.relpath(path, common).replace(os.sep, "_")) for path in paths]
    name, count = Counter(stems).most_common(1)[0]
    if count > 1:
        raise ConfigurationError(
            f"input: {count} files would all become the shard {name}: rename some, or "
            "give each its own output"
        )
    return list(zip(paths, stems, strict=True))


def _expand(entry: str) -> Iterator[str]:
    if os.path.isdir(entry):
        paths = [os.path.join(entry, name) for name in os.listdir(entry)]
    elif glob.has_magic(entry) and not os.path.exists(entry):
        paths = glob.glob(entry, recursive=True)
    else:
        paths = [entry]
    found = [path for path in paths if path.endswith(SUFFIXES) and os.path.isfile(path)]
    if not found:
        what = "is missing or has another suffix" if paths == [entry] else "leads to no such file"
        raise DataError(f"input: {entry} {what}; expected files that end in {', '.join(SUFFIXES)}")
    yield from found


def _stem(path: str) -> str:
    name = os.path.basename(path)
    return name.removesuffix(next(suffix for suffix in SUFFIXES[::-1] if name.endswith(suffix)))


def identified(files: Sequence[tuple[str, str]]) -> Iterator[InputFile]:
    """The files with sizes and hashes, in order, each as soon as it has been read.

    Raises:
        DataError: If one cannot be read.
    """
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(lambda file: _identify(*file), files)


def _identify(path: str, name: str) -> InputFile:
    found, size = xxhash.xxh3_64(), 0
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
                size += len(block)
    except OSError as error:
        raise DataError(f"input: {path} cannot be read: {error}") from error
    return InputFile(path, name, size, found.hexdigest())


def output_folder(path: str | None) -> Path:
    """The folder of the key `output`, made if it is missing.

    Raises:
        ConfigurationError: If it is not set or cannot be made.
    """
    if not path:
        raise ConfigurationError("output is not set; expected the folder of the shards")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"output={path} cannot be made: {error}") from error
    return folder
