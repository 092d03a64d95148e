"""The list of training shards, without the held-out file; and how a shard is recognized.

First stage of the stream. `list_shards` turns `data_config.train_file` into a sorted list of
`Shard`s, which `plan` deals to the logical streams.

A shard is recognized by samples of its content, wherever and whenever it was copied. One rank
samples all shards of a run. The hashes are in the fingerprint of the run, and in the cache folder,
from which a restart takes those of the shards that have not changed. Whoever opens a shard compares
it with its hash: another machine may have another file of that name.
"""

from __future__ import annotations

import glob
import itertools
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

from bsmeta.config.data import REMOTE, DataConfig, check_data, in_dataset
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import refuse_undecodable
from bsmeta.core.progress import reporting
from bsmeta.data.io.cache import Cache, kept_if_possible, read_arrays, write_arrays
from bsmeta.data.io.file_ref import EVERYWHERE, FileRef, RemoteSettings
from bsmeta.data.io.files import open_file
from bsmeta.data.io.samples import hash_of_samples

PARQUET = ".parquet"
SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl", ".json.gz", ".json.zst", PARQUET)
"""File names of shards in a folder. A `.json` there may be anything; it is read if it is named."""

READERS = 8  # threads: a shard on a network costs a few milliseconds
CHUNK = 16  # shards that a thread takes at once: to hand over each costs more than a local one

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents: one JSON object a line, or one row of a Parquet table each.

    Attributes:
        name: Its name for documents and seeds: the file name (with the folders in which the shards
            differ, if several share a file name). It does not depend on where the data is stored.
        size: Size of the file in bytes.
        changed: When a local file was last changed, in ns since 1970; 0 for others.
        samples: Hash of samples of its content (see `with_samples`); empty where none was computed.
    """

    name: str
    path: str | FileRef
    size: int
    changed: int = 0
    samples: str = ""


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
            left, or a name is not in UTF-8.
    """
    paths = sorted(
        (path for entry in entries_of(config) for path in expand(entry, config)), key=str
    )
    files = [*{file.identity: file for file in _look_up(paths)}.values()]  # each file once
    held_out = _held_out_status(config)
    kept = [
        file
        for file in files
        if not is_excluded(file.path, config)
        and not (held_out and file.status and os.path.samestat(file.status, held_out))
    ]
    if not kept:
        validation_path(config)  # refused where it is a pattern that matches them all
        raise DataError(
            f"data_config.train_file={config.train_file} leaves no training shard: "
            f"all of its {len(files)} files are the validation file "
            f"({config.validation_file}) or excluded ({config.exclude}); add other files"
        )
    refuse_undecodable([file.path for file in kept], "data_config.train_file")
    check_are_files(
        [file.path for file in kept if file.status is None or not stat.S_ISREG(file.status.st_mode)]
    )
    names = shard_names([file.path for file in kept])
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"data_config.train_file={config.train_file}: several files would be called "
            f"{Counter(names).most_common(1)[0][0]}; read one revision of a data set"
        )
    shards = [file.shard(name) for name, file in zip(names, kept, strict=True)]
    return sorted(shards, key=lambda shard: shard.name)


class _Listed(NamedTuple):
    """A path in a listing, and the file that it leads to.

    Attributes:
        identity: The same for all paths that lead to the file by links.
        status: None for a remote file, or if a link leads to no file.
    """

    path: str | FileRef
    identity: str | FileRef
    status: os.stat_result | None

    def shard(self, name: str) -> Shard:
        """The shard of this name. Copying tools set back a file's mtime, but not its ctime."""
        if isinstance(self.path, FileRef):
            return Shard(name, self.path, self.path.size)
        assert self.status is not None
        changed = max(self.status.st_mtime_ns, self.status.st_ctime_ns)
        return Shard(name, self.path, self.status.st_size, changed)


def _look_up(paths: Sequence[str | FileRef]) -> list[_Listed]:
    """The files that paths lead to; a local one that is no link costs a single request."""
    folders = {os.path.dirname(path) for path in paths if not isinstance(path, FileRef)}
    real = {folder: os.path.realpath(folder) for folder in folders}

    def listed(path: str | FileRef) -> _Listed:
        if isinstance(path, FileRef):
            return _Listed(path, path, None)
        folder, name = os.path.split(path)
        try:
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                return _Listed(path, os.path.join(real[folder], name), status)
            return _Listed(path, os.path.realpath(path), os.stat(path))
        except OSError:
            return _Listed(path, os.path.realpath(path), None)

    return _in_threads(listed, paths)


def _in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of a function that waits for a file, in order."""
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    with ThreadPoolExecutor(READERS) as pool:
        results = pool.map(lambda chunk: [function(item) for item in chunk], chunks)
        return [*itertools.chain.from_iterable(reporting(results))]


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
    if entry.startswith(REMOTE) or (config.reader == "tf" and "://" in entry):
        return [*_remote(entry, config, "data_config.train_file")]
    return [os.path.abspath(path) for path in _expand_local(entry)]


def _expand_local(entry: str) -> list[str]:
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
        str(folder.absolute()),
        int(config.hub_cache_gb * 1e9),
        config.hub_retries,
        by_tensorflow=config.reader == "tf",
    )


def validation_path(config: DataConfig) -> str | FileRef | None:
    """The path of the validation file; None without one.

    A local file may be missing: training refuses that (`held_out.held_out`), unless its data is
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
    native = replace(config, reader="native")
    found = _remote(entry, native, "data_config.validation_file")
    if len(found) > 1:
        raise DataError(
            f"data_config.validation_file={config.validation_file}: expected one file, found "
            f"{len(found)}: {found[0]}, {found[1]}, ..."
        )
    return found[0]


def _remote(entry: str, config: DataConfig, key: str) -> list[FileRef]:
    from bsmeta.data.io.stores import remote_files

    return remote_files(entry, config.dataset_revision, SUFFIXES, remote_settings(config), key)


def is_excluded(path: str | FileRef, config: DataConfig) -> bool:
    """Whether a file is excluded by its name, or has that of the validation file."""
    name = os.path.basename(str(path))
    held_out = in_dataset(config.validation_file or "", config)
    held_out_name = os.path.basename(held_out)
    if name == held_out_name or (held_out.startswith(REMOTE) and fnmatch(name, held_out_name)):
        return True
    return any(fnmatch(name, pattern) or fnmatch(str(path), pattern) for pattern in config.exclude)


def _held_out_status(config: DataConfig) -> os.stat_result | None:
    """The status of a local validation file; None without one."""
    held_out = config.validation_file and in_dataset(config.validation_file, config)
    try:
        return os.stat(held_out) if held_out else None
    except OSError:
        return None


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


def with_samples(shards: Sequence[Shard], cache: Cache | None = None) -> list[Shard]:
    """The shards, those that are not remote with the hash of their samples.

    The hash is equal for a copy of the file, wherever and whenever it was made, and almost surely
    differs for other content of the same size (a gzip file ends with a checksum of its content).

    Args:
        cache: Where the hashes of the same shards may be found, and are kept.

    Raises:
        DataError: If a shard cannot be read.
    """
    local = [shard for shard in shards if not isinstance(shard.path, FileRef)]
    stated = np.array([(shard.size, shard.changed) for shard in local], np.int64).reshape(-1, 2)
    hashes = np.zeros(len(local), "S16")
    file = None
    if cache is not None:
        paths = "\n".join(str(shard.path) for shard in local)
        name = xxhash.xxh3_128_hexdigest(os.fsencode(paths))
        file = cache.folder / "samples" / f"{name}.npz"
    if file is not None and (kept := read_arrays(file)):
        is_known = (stated == kept["stated"]).all(axis=1) & (stated[:, 1] > 0)
        hashes[is_known] = kept["hashes"][is_known]
    others = np.flatnonzero(hashes == b"").tolist()
    found = _in_threads(lambda place: _sampled_hash(local[place]), others)
    hashes[others] = [one.encode() for one in found]
    if file is not None and others:
        with kept_if_possible("the hashes of the shards are"):
            write_arrays(file, {"stated": stated, "hashes": hashes})
    by_name = {shard.name: one.decode() for shard, one in zip(local, hashes.tolist(), strict=True)}
    return [replace(shard, samples=by_name.get(shard.name, "")) for shard in shards]


def shards_fingerprint(shards: Sequence[Shard]) -> dict[str, Any]:
    """The facts about shards that must not change before a run is resumed; JSON-serializable.

    Remote shards are identified by their listing (`FileRef.identity`), others by their size and the
    hash of their samples.

    Args:
        shards: Those that are not remote come from `with_samples`.
    """
    facts: dict[str, Any] = {}
    for shard in shards:
        if isinstance(shard.path, FileRef):
            facts |= shard.path.identity(shard.name)
        else:
            facts[shard.name] = {"bytes": shard.size, "sampled_xxh3": shard.samples}
    return facts


def check_is_listed(shard: Shard) -> None:
    """Refuses a file that is not the one that was listed, or no longer.

    Raises:
        DataError: If it is another one, or cannot be read.
    """
    if shard.samples and _sampled_hash(shard) != shard.samples:
        raise _other_file(shard)


def _sampled_hash(shard: Shard) -> str:
    """The hash of samples of a shard that is not remote; raises as `check_is_listed`."""
    try:
        with open_file(shard.path) as file:
            found = hash_of_samples(file, shard.size)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DataError(f"data_config.train_file: {shard.path} cannot be read: {error}") from error
    if size != shard.size:
        raise _other_file(shard)
    return found


def _other_file(shard: Shard) -> DataError:
    return DataError(
        f"data_config.train_file: {shard.path} on {socket.gethostname()} is not the file that was "
        f"listed at the start (of {shard.size:,} bytes); expected the same files on all machines, "
        "unchanged during a run: copy it there again, or start the run again"
    )
