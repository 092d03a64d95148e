"""The list of training shards, without the held-out file, and its fingerprint.

First stage of the stream. `list_shards` turns `data_config.train_file` into a sorted list of
`Shard`s, from which `dealing` cuts the logical streams.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from bsmeta.config.data import REMOTE, SCHEME, DataConfig, in_dataset
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_progress
from bsmeta.data.checks import check_data
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.files import open_file, size_of
from bsmeta.data.io.hub_listing import EVERYWHERE, HubPattern
from bsmeta.data.io.objects import ObjectPattern
from bsmeta.data.io.remote import FileRef, RemotePattern, RemoteSettings, remote_files

PARQUET = ".parquet"
SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl", ".json.gz", ".json.zst", PARQUET)
"""File names of shards in a folder. A `.json` there may be anything; it is read if it is named."""

SAMPLES, SAMPLE_BYTES = 4, 1 << 14
READERS = 8  # threads: a shard on a network costs a few milliseconds


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents: one JSON object a line, or one row of a Parquet table each.

    Attributes:
        name: Its name for documents and seeds: the file name (with the folders in which the shards
            differ, if several share a file name). It does not depend on where the data is stored.
        path: Its path; a `FileRef` for a remote shard.
        size: Size of the file in bytes.
    """

    name: str
    path: str | FileRef
    size: int


def is_parquet(path: str | FileRef) -> bool:
    """Whether a shard is a Parquet file, by its name."""
    return str(path).endswith(PARQUET)


def numbered(path: str | FileRef, number: int) -> str:
    """Names a document of a shard (counted from 0) for messages: `line 1`, or `row 1`."""
    return f"{'row' if is_parquet(path) else 'line'} {number + 1}"


def list_shards(config: DataConfig) -> list[Shard]:
    """The training shards, sorted by name, without the validation file and `exclude`.

    Raises:
        ConfigurationError: If `train_file` is not set, or two shards would have the same name.
        DataError: If a path is missing or not a file, a pattern matches nothing, or no shard is
            left.
    """
    found = [path for entry in entries_of(config) for path in expand(entry, config)]
    found.sort(key=str)
    found = list({real_path(path): path for path in found}.values())  # each file once
    kept = [path for path in found if not is_excluded(path, config)]
    if not kept:
        validation_path(config)  # refused where it is a pattern that matches them all
        raise DataError(
            f"data_config.train_file={config.train_file} leaves no training shard: "
            f"all of its {len(found)} files are the validation file "
            f"({config.validation_file}) or excluded ({config.exclude}); add other files"
        )
    check_are_files(kept)
    names = shard_names(kept)
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"data_config.train_file={config.train_file}: several files would be called "
            f"{Counter(names).most_common(1)[0][0]}; read one revision of a data set"
        )
    return sorted(
        (Shard(name, path, size_of(path)) for name, path in zip(names, kept, strict=True)),
        key=lambda shard: shard.name,
    )


def entries_of(config: DataConfig) -> list[str]:
    """The entries of `train_file` and `dataset_name`: paths, globs and URLs."""
    entries = config.train_file
    if not entries:
        if config.dataset_name:
            return [in_dataset(EVERYWHERE, config)]
        raise ConfigurationError(
            "data_config.train_file is not set; expected a path, a glob, or a list of them "
            "(or data_config.dataset_name, a folder or a data set on the Hub)"
        )
    entries = [entries] if isinstance(entries, (str, os.PathLike)) else list(entries)
    return [in_dataset(str(entry), config) for entry in entries]


def expand(entry: str, config: DataConfig) -> list[str | FileRef]:
    """The files that one entry of `train_file` names: a file, a folder, or a glob (with `**`).

    Raises:
        ConfigurationError: If it is a malformed URL.
        DataError: If there is none, or a server refuses or cannot be reached.
    """
    if entry.startswith(REMOTE):
        return [*_remote(entry, config, "data_config.train_file")]
    return [os.path.abspath(path) for path in expand_local(entry)]


def expand_local(entry: str) -> list[str]:
    """The local paths that an entry names: files, and non-files with the name of a shard."""
    if os.path.isdir(entry):
        paths = [os.path.join(entry, name) for name in os.listdir(entry)]
        files = [path for path in paths if path.endswith(SUFFIXES)]
        if not files:
            raise DataError(f"data_config.train_file: no file in {entry} ends in one of {SUFFIXES}")
        return files
    if os.path.lexists(entry):
        return [entry]
    paths = glob.glob(entry, recursive=True)
    files = [path for path in paths if path.endswith(SUFFIXES) or os.path.isfile(path)]
    if not files:
        what = "matches no file" if glob.has_magic(entry) else "does not exist"
        raise DataError(f"data_config.train_file: {entry} {what} (from {os.getcwd()})")
    return files


def check_are_files(paths: Sequence[str | FileRef]) -> None:
    """Rejects folders, broken links and pipes: skipping them could silently lose data."""
    problems = [
        f"{path} is {what_it_is(path)}"
        for path in paths
        if not isinstance(path, FileRef) and not os.path.isfile(path)
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DataError(
            f"data_config.train_file: {'; '.join(problems[:3])}{more}; expected files; remove what "
            "is none, or name it in data_config.exclude"
        )


def what_it_is(path: str) -> str:
    """Describes what a path that is not a file refers to."""
    if os.path.isdir(path):
        return "a folder"
    if os.path.islink(path) and not os.path.exists(path):
        return f"a link to {os.readlink(path)}, which leads to no file"
    return "no regular file"


def remote_settings(config: DataConfig) -> RemoteSettings:
    """The configured settings for reading remote files."""
    check_data(config)
    folder = Cache(config.cache_dir).folder / "hub"  # of all servers
    return RemoteSettings(
        str(folder.absolute()), int(config.hub_cache_gb * 1e9), config.hub_retries
    )


def validation_path(config: DataConfig) -> str | FileRef | None:
    """The path of the validation file; None without one.

    A local file may be missing: training refuses that (`live.held_out`), unless its data is
    prepared and has been filtered.

    Raises:
        ConfigurationError: If it is a malformed URL.
        DataError: If it is remote but not a single file, or the server refuses or cannot be
            reached.
    """
    if not config.validation_file:
        return None
    entry = in_dataset(config.validation_file, config)
    if not entry.startswith(REMOTE):
        return entry
    found = _remote(entry, config, "data_config.validation_file")
    if len(found) > 1:
        raise DataError(
            f"data_config.validation_file={config.validation_file}: expected one file, found "
            f"{len(found)}: {found[0]}, {found[1]}, ..."
        )
    return found[0]


def _remote(entry: str, config: DataConfig, key: str) -> list[FileRef]:
    pattern: RemotePattern
    if entry.startswith(SCHEME):
        pattern = HubPattern.parse(entry, config.dataset_revision, key)
    else:
        pattern = ObjectPattern.parse(entry, key)
    return remote_files(pattern, SUFFIXES, remote_settings(config), key)


def is_excluded(path: str | FileRef, config: DataConfig) -> bool:
    """Whether a file is the validation file (by its name, or a link to it) or excluded."""
    name = os.path.basename(str(path))
    held_out = config.validation_file and in_dataset(config.validation_file, config)
    if held_out and fnmatch(name, os.path.basename(held_out)):
        return True
    if held_out and isinstance(path, str) and is_same_file(path, held_out):
        return True
    return any(fnmatch(name, pattern) or fnmatch(str(path), pattern) for pattern in config.exclude)


def is_same_file(path: str, other: str) -> bool:
    """Whether two paths lead to the same existing file."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def some_of(shards: Sequence[Shard], count: int = 3) -> list[Shard]:
    """Up to `count` of some shards, from the first to the last, the same on every rank."""
    places = {number * (len(shards) - 1) // (count - 1) for number in range(count)}
    return [shards[place] for place in sorted(places)] if shards else []


def shard_names(paths: Sequence[str | FileRef]) -> list[str]:
    """File names; if two are equal, paths relative to the common folder of all files."""
    names = [os.path.basename(str(path)) for path in paths]
    if len(set(names)) == len(names):
        return names
    places = [path.place if isinstance(path, FileRef) else path for path in paths]
    common = os.path.commonpath([os.path.dirname(place) for place in places])
    return [Path(place).relative_to(common).as_posix() for place in places]


def real_path(path: str | FileRef) -> str | FileRef:
    """The identity of a file, independent of links to it."""
    return path if isinstance(path, FileRef) else os.path.realpath(path)


def shards_fingerprint(
    shards: Sequence[Shard], opened: Callable[[str], BinaryIO] = open_file
) -> dict[str, Any]:
    """The facts about shards that must not change before a run is resumed; JSON-serializable.

    Remote shards are identified by their listing (`FileRef.identity`), others by their size and a
    hash of samples of the content, which is equal for a copy of the file, wherever and whenever it
    was made, and almost surely differs for other content of the same size (a gzip file ends with a
    checksum of its content).

    Args:
        opened: Opens a shard that is not remote.
    """
    refs = {shard.name: shard.path for shard in shards if isinstance(shard.path, FileRef)}
    others = [shard for shard in shards if shard.name not in refs]
    listed: dict[str, Any] = {}
    for name, ref in refs.items():
        listed |= ref.identity(name)
    with ThreadPoolExecutor(READERS) as pool:
        hashes = pool.map(lambda shard: sampled_hash(shard, opened), others)
        samples = {
            shard.name: {"bytes": shard.size, "sampled_xxh3": found}
            for shard, found in zip(others, hashes, strict=True)
        }
    return listed | samples


def sampled_hash(shard: Shard, opened: Callable[[str], BinaryIO]) -> str:
    """The xxh3 (hexadecimal) of the beginning and end of a shard and a few places in between."""
    found = xxhash.xxh3_64()
    last = max(shard.size - SAMPLE_BYTES, 0)
    try:
        with opened(str(shard.path)) as file:
            for place in range(SAMPLES):
                file.seek(last * place // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
                report_progress()
    except OSError as error:
        raise DataError(f"data_config.train_file: {shard.path} cannot be read: {error}") from error
    return found.hexdigest()
