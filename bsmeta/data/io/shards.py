"""Lists the training shards, without the held-out file, and identifies them by their content.

This is the first step of the stream. `list_shards` turns `data_config.train_file` into a sorted
list of `Shard`s, which `plan` deals to the logical streams.

A local shard is identified by samples of its content, so that a copy counts as the same file. One
rank samples all shards of a run. The hashes are stored in the fingerprint of the run and in the
cache folder, so that a restart samples only the shards that have changed. Before a process reads a
shard, it compares the shard with its hash, because another machine may have a different file of the
same name.
"""

from __future__ import annotations

import glob
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from bsmeta.config.data import REMOTE_SCHEMES, DataConfig, check_data, resolve_in_dataset
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import refuse_undecodable
from bsmeta.core.progress import report_each
from bsmeta.data.io.cache import Cache, keep_if_possible, read_arrays, write_arrays
from bsmeta.data.io.file_ref import DEFAULT_PATTERN, FileRef, RemoteSettings
from bsmeta.data.io.files import open_file
from bsmeta.data.io.samples import hash_samples

PARQUET = ".parquet"
SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl", ".json.gz", ".json.zst", PARQUET)
"""Suffixes of the shards in a folder. A `.json` file may be anything; it is read only by name."""

NUM_THREADS = 8  # for sampling shards; each takes a few milliseconds on a network file system
ITEMS_PER_TASK = 16  # of a thread, because submitting a task may cost more than a sample

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents: a JSON object per line, or a row of a Parquet table per document.

    Attributes:
        name: Identifies the shard in document names and seeds, wherever the data is: the file name;
            if several shards have the same file name, with the folders below their common folder.
        path: The local or remote file.
        size: Size of the file in bytes.
        change_time: Time of the last change of a local file, in ns since 1970; 0 if it is remote.
        samples_hash: Hash of samples of the content (see `add_sample_hashes`); "" if not computed.
    """

    name: str
    path: str | FileRef
    size: int
    change_time: int = 0
    samples_hash: str = ""


def is_parquet(path: str | FileRef) -> bool:
    """Returns whether a shard is a Parquet file, by its name."""
    return str(path).endswith(PARQUET)


def describe_position(path: str | FileRef, number: int) -> str:
    """Returns the position of a document in a shard for messages: `line 1`, or `row 1`.

    Args:
        number: The document's number, from 0.
    """
    unit = "row" if is_parquet(path) else "line"
    return f"{unit} {number + 1}"


def list_shards(config: DataConfig) -> list[Shard]:
    """Lists the training shards, sorted by name, without the validation file and excluded files.

    Raises:
        ConfigurationError: If `train_file` is not set, or two shards would have the same name.
        DataError: If a path is missing or not a file, a glob matches nothing, no shard remains, or
            a name is not in UTF-8.
    """
    paths: list[str | FileRef] = []
    for entry in list_entries(config):
        paths += list_entry_files(entry, config)
    files_by_identity = {file.identity: file for file in _stat_paths(sorted(paths, key=str))}

    held_out = _stat_held_out(config)
    files = [
        file
        for file in files_by_identity.values()
        if not is_excluded(file.path, config) and not file.is_same_file(held_out)
    ]
    if not files:
        find_validation_path(config)  # raises an error if it is a glob that matches all of them
        raise DataError(
            f"data_config.train_file={config.train_file} leaves no training shard: "
            f"all of its {len(files_by_identity)} files are the validation file "
            f"({config.validation_file}) or excluded ({config.exclude}); add other files"
        )
    refuse_undecodable([file.path for file in files], "data_config.train_file")
    check_are_files([file.path for file in files if not file.is_regular()])

    names = make_shard_names([file.path for file in files])
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"data_config.train_file={config.train_file}: several files would be called "
            f"{Counter(names).most_common(1)[0][0]}; read one revision of a data set"
        )
    shards = [file.to_shard(name) for name, file in zip(names, files, strict=True)]
    return sorted(shards, key=lambda shard: shard.name)


class _ListedFile(NamedTuple):
    """A listed path, and the file to which it resolves.

    Attributes:
        path: The path as listed, possibly a symbolic link.
        identity: The resolved path, the same for all links to the file.
        status: The file's status; None if it is remote or does not exist.
    """

    path: str | FileRef
    identity: str | FileRef
    status: os.stat_result | None

    def is_same_file(self, status: os.stat_result | None) -> bool:
        """Returns whether this is the local file with the given status; False for None."""
        if status is None or self.status is None:
            return False
        return os.path.samestat(self.status, status)

    def is_regular(self) -> bool:
        """Returns whether this is a regular local file."""
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    def to_shard(self, name: str) -> Shard:
        """Returns this file as a shard with the given name."""
        if isinstance(self.path, FileRef):
            return Shard(name, self.path, self.path.size)

        assert self.status is not None
        # Copying tools restore a file's mtime, but cannot set its ctime.
        change_time = max(self.status.st_mtime_ns, self.status.st_ctime_ns)
        return Shard(name, self.path, self.status.st_size, change_time)


def _stat_paths(paths: Sequence[str | FileRef]) -> list[_ListedFile]:
    """Resolves paths to files, with a single system call for a local path that is not a link."""
    folders = {os.path.dirname(path) for path in paths if not isinstance(path, FileRef)}
    real_folders = {folder: os.path.realpath(folder) for folder in folders}

    def stat_path(path: str | FileRef) -> _ListedFile:
        if isinstance(path, FileRef):
            return _ListedFile(path, path, None)

        folder, name = os.path.split(path)
        try:
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                return _ListedFile(path, os.path.join(real_folders[folder], name), status)
            return _ListedFile(path, os.path.realpath(path), os.stat(path))
        except OSError:
            return _ListedFile(path, os.path.realpath(path), None)

    return _map_in_threads(stat_path, paths)


def _map_in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Applies an I/O-bound function to items in threads; returns the results in order."""
    starts = range(0, len(items), ITEMS_PER_TASK)
    chunks = [items[start : start + ITEMS_PER_TASK] for start in starts]
    results: list[Result] = []
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        chunk_results = pool.map(lambda chunk: [function(item) for item in chunk], chunks)
        for chunk_result in report_each(chunk_results):
            results += chunk_result
    return results


def list_entries(config: DataConfig) -> list[str]:
    """Returns the paths, globs and URLs in `train_file`; if it is not set, all of `dataset_name`.

    Raises:
        ConfigurationError: If neither is set.
    """
    entries = config.train_file
    if not entries:
        if config.dataset_name:
            return [resolve_in_dataset(DEFAULT_PATTERN, config)]
        raise ConfigurationError(
            "data_config.train_file is not set; expected a path, a glob, or a list of them "
            "(or data_config.dataset_name, a folder or a data set on the Hub)"
        )
    entries = [entries] if isinstance(entries, (str, os.PathLike)) else list(entries)
    return [resolve_in_dataset(str(entry), config) for entry in entries]


def list_entry_files(entry: str, config: DataConfig) -> list[str | FileRef]:
    """Lists the files that an entry of `train_file` names.

    Args:
        entry: The path or URL of a file or a folder, or a glob (with `**`).

    Raises:
        ConfigurationError: If the entry is a malformed URL.
        DataError: If there is no such file, or a server refuses or cannot be reached.
    """
    if entry.startswith(REMOTE_SCHEMES) or (config.reader == "tf" and "://" in entry):
        return list(_list_remote(entry, config, "data_config.train_file"))
    return [os.path.abspath(path) for path in _expand_local(entry)]


def _expand_local(entry: str) -> list[str]:
    """Lists the local paths that an entry names.

    Paths with the suffix of a shard are listed even if they are not files, so that
    `check_are_files` refuses them.

    Raises:
        DataError: If there are none.
    """
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
        problem = "matches no file" if glob.has_magic(entry) else "does not exist"
        raise DataError(f"data_config.train_file: {entry} {problem} (from {os.getcwd()})")
    return files


def check_are_files(paths: Sequence[str | FileRef]) -> None:
    """Checks that all local paths are files, because skipping others could silently lose data.

    Raises:
        DataError: If one is a folder, a broken link, a pipe, ….
    """
    problems = [
        f"{path} is {describe_non_file(path)}"
        for path in paths
        if not isinstance(path, FileRef) and not os.path.isfile(path)
    ]
    if problems:
        omitted = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DataError(
            f"data_config.train_file: {'; '.join(problems[:3])}{omitted}; expected files; remove "
            "the others, or name them in data_config.exclude"
        )


def describe_non_file(path: str) -> str:
    """Describes a path that is not a file, such as `a folder`."""
    if os.path.isdir(path):
        return "a folder"
    if os.path.islink(path) and not os.path.exists(path):
        return f"a broken link to {os.readlink(path)}"
    return "not a regular file"


def read_remote_settings(config: DataConfig) -> RemoteSettings:
    """Returns the configured settings for reading remote files."""
    check_data(config)
    # Despite its name, the folder is for files of all servers.
    cache_folder = Cache(config.cache_dir).folder / "hub"
    return RemoteSettings(
        str(cache_folder.absolute()),
        cache_bytes=int(config.hub_cache_gb * 1e9),
        retries=config.hub_retries,
        uses_tensorflow=config.reader == "tf",
    )


def find_validation_path(config: DataConfig) -> str | FileRef | None:
    """Returns the path of the validation file; None if none is configured.

    A local file may be missing: training refuses this (`held_out.read_held_out`), unless its data
    is prepared, and was thus already filtered.

    Raises:
        ConfigurationError: If the path is a malformed URL.
        DataError: If a URL names several files, or the server refuses or cannot be reached.
    """
    if not config.validation_file:
        return None
    entry = resolve_in_dataset(config.validation_file, config)
    if not entry.startswith(REMOTE_SCHEMES):
        return entry

    native_config = replace(config, reader="native")
    files = _list_remote(entry, native_config, "data_config.validation_file")
    if len(files) > 1:
        raise DataError(
            f"data_config.validation_file={config.validation_file}: expected one file, found "
            f"{len(files)}: {files[0]}, {files[1]}, ..."
        )
    return files[0]


def _list_remote(entry: str, config: DataConfig, key: str) -> list[FileRef]:
    """Lists the remote files that a URL names; see `stores.list_remote_files`.

    Args:
        key: The configuration key that contains the URL.
    """
    from bsmeta.data.io.remote.stores import list_remote_files

    return list_remote_files(
        entry, config.dataset_revision, SUFFIXES, read_remote_settings(config), key
    )


def is_excluded(path: str | FileRef, config: DataConfig) -> bool:
    """Returns whether a file matches `exclude`, or has the name of the validation file."""
    name = os.path.basename(str(path))
    held_out = resolve_in_dataset(config.validation_file or "", config)
    held_out_name = os.path.basename(held_out)
    if name == held_out_name:
        return True
    if held_out.startswith(REMOTE_SCHEMES) and fnmatch(name, held_out_name):
        return True
    return any(fnmatch(name, pattern) or fnmatch(str(path), pattern) for pattern in config.exclude)


def _stat_held_out(config: DataConfig) -> os.stat_result | None:
    """Returns the status of a local validation file; None if there is none."""
    if not config.validation_file:
        return None
    try:
        return os.stat(resolve_in_dataset(config.validation_file, config))
    except OSError:
        return None


def select_shards(shards: Sequence[Shard], count: int = 3) -> list[Shard]:
    """Selects up to `count` evenly spaced shards, including the first and the last."""
    if not shards:
        return []
    indices = {step * (len(shards) - 1) // (count - 1) for step in range(count)}
    return [shards[index] for index in sorted(indices)]


def make_shard_names(paths: Sequence[str | FileRef]) -> list[str]:
    """Returns the names of shards: their file names or, if any repeats, their paths.

    The paths are relative to the common folder of all shards.
    """
    names = [os.path.basename(str(path)) for path in paths]
    if len(set(names)) == len(names):
        return names

    full_paths = [path.store_path if isinstance(path, FileRef) else path for path in paths]
    common_folder = os.path.commonpath([os.path.dirname(path) for path in full_paths])
    return [Path(path).relative_to(common_folder).as_posix() for path in full_paths]


def add_sample_hashes(shards: Sequence[Shard], cache: Cache | None = None) -> list[Shard]:
    """Returns the shards with the hashes of their samples; remote shards are unchanged.

    The hash is the same for every copy of a file, and almost surely differs for other content of
    the same size (a gzip file ends with a checksum of its content).

    Args:
        cache: Cache of the hashes. A shard whose size and change time are unchanged is not sampled
            again.

    Raises:
        DataError: If a shard cannot be read.
    """
    local_shards = [shard for shard in shards if not isinstance(shard.path, FileRef)]
    if cache is None:
        hashes = _map_in_threads(_hash_shard, local_shards)
    else:
        hashes = _hash_shards_with_cache(local_shards, cache)

    hashes_by_name = {
        shard.name: samples_hash for shard, samples_hash in zip(local_shards, hashes, strict=True)
    }
    return [replace(shard, samples_hash=hashes_by_name.get(shard.name, "")) for shard in shards]


def _hash_shards_with_cache(shards: Sequence[Shard], cache: Cache) -> list[str]:
    """Returns the hashes of the samples of local shards; computes and caches missing hashes."""
    paths = "\n".join(str(shard.path) for shard in shards)
    name = xxhash.xxh3_128_hexdigest(os.fsencode(paths))
    cache_file = cache.folder / "samples" / f"{name}.npz"
    states = np.array([(shard.size, shard.change_time) for shard in shards], np.int64)
    states = states.reshape(-1, 2)
    hashes = np.zeros(len(shards), "S16")  # 16 hexadecimal digits; empty if not known yet

    cached = read_arrays(cache_file)
    if cached:
        is_unchanged = (states == cached["stated"]).all(axis=1)
        has_time = states[:, 1] > 0
        is_cached = is_unchanged & has_time
        hashes[is_cached] = cached["hashes"][is_cached]

    missing = np.flatnonzero(hashes == b"").tolist()
    new_hashes = _map_in_threads(lambda index: _hash_shard(shards[index]), missing)
    hashes[missing] = [new_hash.encode() for new_hash in new_hashes]
    if missing:
        with keep_if_possible("the hashes of the shards are"):
            write_arrays(cache_file, {"stated": states, "hashes": hashes})
    return [samples_hash.decode() for samples_hash in hashes.tolist()]


def fingerprint_shards(shards: Sequence[Shard]) -> dict[str, Any]:
    """Returns the fingerprint of shards, which must be the same when a run resumes.

    Remote shards are identified by their listing (`FileRef.fingerprint`), local ones by their size
    and the hash of their samples.

    Args:
        shards: Shards from `add_sample_hashes`.

    Returns:
        A dict of JSON types.
    """
    fingerprint: dict[str, Any] = {}
    for shard in shards:
        if isinstance(shard.path, FileRef):
            fingerprint |= shard.path.fingerprint(shard.name)
        else:
            fingerprint[shard.name] = {"bytes": shard.size, "sampled_xxh3": shard.samples_hash}
    return fingerprint


def check_is_listed(shard: Shard) -> None:
    """Checks that a shard is still the file that was listed; accepts shards without a hash.

    Raises:
        DataError: If it is a different file, or cannot be read.
    """
    if shard.samples_hash and _hash_shard(shard) != shard.samples_hash:
        raise _make_different_file_error(shard)


def _hash_shard(shard: Shard) -> str:
    """Returns the hash of the samples of a local shard.

    Raises:
        DataError: If the file does not have the listed size, or cannot be read.
    """
    try:
        with open_file(shard.path) as file:
            samples_hash = hash_samples(file, shard.size)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DataError(f"data_config.train_file: {shard.path} cannot be read: {error}") from error

    if size != shard.size:
        raise _make_different_file_error(shard)
    return samples_hash


def _make_different_file_error(shard: Shard) -> DataError:
    """Returns the error for a shard that is not the listed file."""
    return DataError(
        f"data_config.train_file: {shard.path} on {socket.gethostname()} is not the file that was "
        f"listed at the start (of {shard.size:,} bytes); expected the same files on all machines, "
        "unchanged during a run: copy it there again, or start the run again"
    )
