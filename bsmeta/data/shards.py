"""Which files are read: the list of shards, without the held-out one, and what identifies it.

First stage of the stream. `list_shards` turns `data_config.train_file` into a sorted list of
`Shard`s, from which `plan` cuts the logical streams.
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

from bsmeta.config.checks.data import check_data
from bsmeta.config.data import SCHEME, DataConfig, in_dataset
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.data.cache import Cache
from bsmeta.data.files import open_file, size_of
from bsmeta.data.hub import FileRef, HubSettings
from bsmeta.data.hub_listing import EVERYWHERE, HubPattern, hub_files

SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl")

SAMPLES, SAMPLE_BYTES = 4, 1 << 14
READERS = 8  # threads: a shard on a network costs a few milliseconds


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents, one JSON object a line.

    Attributes:
        name: What documents and seeds call it: the file name (with the folders in which the shards
            differ, where several have one file name). It does not depend on where the data lies.
        path: Where it is read; a `FileRef` for one on the Hub.
        size: Bytes of the file.
    """

    name: str
    path: str | FileRef
    size: int


def list_shards(config: DataConfig) -> list[Shard]:
    """The training shards, sorted by name, without the validation file and `exclude`.

    Raises:
        ConfigurationError: If `train_file` is not set, or two shards would have one name.
        DataError: If a path is missing or no file, a pattern matches nothing, or no shard is left.
    """
    found = [path for entry in entries_of(config) for path in expand(entry, config)]
    found.sort(key=str)
    found = list({real_path(path): path for path in found}.values())  # each file once
    kept = [path for path in found if not is_excluded(path, config)]
    if not kept:
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
    """What `train_file` and `dataset_name` name: paths and globs, also `hf://`.

    Raises:
        ConfigurationError: If neither is set.
    """
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
        ConfigurationError: If it begins with `hf://` and is of no known form.
        DataError: If there is none, or the Hub refuses or cannot be reached.
    """
    if entry.startswith(SCHEME):
        pattern = HubPattern.parse(entry, config.dataset_revision, "data_config.train_file")
        return [*hub_files(pattern, SUFFIXES, hub_settings(config))]
    return [os.path.abspath(path) for path in expand_local(entry)]


def expand_local(entry: str) -> list[str]:
    """What an entry names on the local disk: files, and what is called like a shard but is none."""
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
    """Refuses folders, links that lead nowhere, pipes: leaving them out could lose data unnoticed.

    Raises:
        DataError: Naming the first few.
    """
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
    """What a path that is no file leads to, in words."""
    if os.path.isdir(path):
        return "a folder"
    if os.path.islink(path) and not os.path.exists(path):
        return f"a link to {os.readlink(path)}, which leads to no file"
    return "no regular file"


def hub_settings(config: DataConfig) -> HubSettings:
    """How files are read from the Hub in a configuration.

    Raises:
        ConfigurationError: If a value is impossible.
    """
    check_data(config)
    folder = Cache(config.cache_dir).folder / "hub"
    return HubSettings(str(folder.absolute()), int(config.hub_cache_gb * 1e9), config.hub_retries)


def validation_path(config: DataConfig) -> str | FileRef | None:
    """Where the validation file is read; None without one.

    A local one may be missing: it then is left out of training by its name only.

    Raises:
        ConfigurationError: If it begins with `hf://` and is of no known form.
        DataError: If it is on the Hub and not one file there, or the Hub refuses or cannot be
            reached.
    """
    if not config.validation_file:
        return None
    entry = in_dataset(config.validation_file, config)
    if not entry.startswith(SCHEME):
        return entry
    pattern = HubPattern.parse(entry, config.dataset_revision, "data_config.validation_file")
    found = hub_files(pattern, SUFFIXES, hub_settings(config))
    if len(found) > 1:
        raise DataError(
            f"data_config.validation_file={config.validation_file}: expected one file, found "
            f"{len(found)}: {found[0]}, {found[1]}, ..."
        )
    return found[0]


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
    """Whether two paths lead to one file that is there."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def shard_names(paths: Sequence[str | FileRef]) -> list[str]:
    """File names; where two are the same, paths below the folder that all have in common."""
    names = [os.path.basename(str(path)) for path in paths]
    if len(set(names)) == len(names):
        return names
    places = [f"/{path.repo}/{path.file}" if isinstance(path, FileRef) else path for path in paths]
    common = os.path.commonpath([os.path.dirname(place) for place in places])
    return [Path(place).relative_to(common).as_posix() for place in places]


def real_path(path: str | FileRef) -> str | FileRef:
    """What tells files apart, whatever leads to them."""
    return path if isinstance(path, FileRef) else os.path.realpath(path)


def shards_fingerprint(
    shards: Sequence[Shard], opened: Callable[[str], BinaryIO] = open_file
) -> dict[str, Any]:
    """What a resumed run must find again; JSON-able.

    Of a shard on the Hub its size, and the commit of its data set. Of another its size, and a hash
    of some of its content: a copy of the file has the same, wherever it lies and whenever it was
    made, and other content of the same size almost surely has not (the end of a gzip file is a
    checksum of all of it).

    Args:
        shards: The shards.
        opened: Opens a shard that is not on the Hub.

    Raises:
        DataError: If a shard cannot be read.
    """
    refs = {shard.name: shard.path for shard in shards if isinstance(shard.path, FileRef)}
    others = [shard for shard in shards if shard.name not in refs]
    commits = {ref.dataset: ref.commit for ref in refs.values()}
    with ThreadPoolExecutor(READERS) as pool:
        hashes = pool.map(lambda shard: sampled_hash(shard, opened), others)
        samples = {
            shard.name: {"bytes": shard.size, "sampled_xxh3": found}
            for shard, found in zip(others, hashes, strict=True)
        }
    return {**commits, **{name: ref.size for name, ref in refs.items()}, **samples}


def sampled_hash(shard: Shard, opened: Callable[[str], BinaryIO]) -> str:
    """The xxh3 (hexadecimal) of the beginning, the end and a few places between of a shard.

    Raises:
        DataError: If it cannot be read.
    """
    found = xxhash.xxh3_64()
    last = max(shard.size - SAMPLE_BYTES, 0)
    try:
        with opened(str(shard.path)) as file:
            for place in range(SAMPLES):
                file.seek(last * place // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise DataError(f"data_config.train_file: {shard.path} cannot be read: {error}") from error
    return found.hexdigest()
