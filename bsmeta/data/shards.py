"""Which files are read: the list of shards, without the held-out one, and what identifies it.

First stage of the stream. `list_shards` turns `data_config.train_file` into a sorted list of
`Shard`s, from which `plan` cuts the logical streams.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.data.hub import hub_files, hub_settings
from bsmeta.data.hub_paths import EVERYWHERE, SCHEME, HubPath, HubPattern, in_dataset
from bsmeta.data.remote import size_of

SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents, one JSON object a line.

    Attributes:
        name: What documents and seeds call it: the file name (with the folders in which the shards
            differ, where several have one file name). It does not depend on where the data lies.
        path: Where it is read; a `HubPath` for one on the Hub.
        size: Bytes of the file.
    """

    name: str
    path: str
    size: int


def list_shards(config: DataConfig) -> list[Shard]:
    """The training shards, sorted by name, without the validation file and `exclude`.

    Raises:
        ConfigurationError: If `train_file` is not set, or two shards would have one name.
        DataError: If a path is missing, a pattern matches nothing, or no shard is left.
    """
    found = sorted(path for entry in entries_of(config) for path in expand(entry, config))
    found = list({real_path(path): path for path in found}.values())  # each file once
    kept = [path for path in found if not is_excluded(path, config)]
    if not kept:
        raise DataError(
            f"data_config.train_file={config.train_file} leaves no training shard: "
            f"all of its {len(found)} files are the validation file "
            f"({config.validation_file}) or excluded ({config.exclude}); add other files"
        )
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
            "(or data_config.dataset_name, a data set on the Hub)"
        )
    entries = [entries] if isinstance(entries, (str, os.PathLike)) else list(entries)
    return [in_dataset(str(entry), config) for entry in entries]


def expand(entry: str, config: DataConfig) -> list[str]:
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
    """The files on the local disk that an entry names."""
    if os.path.isdir(entry):
        paths = [os.path.join(entry, name) for name in os.listdir(entry)]
        files = [path for path in paths if path.endswith(SUFFIXES)]
        if not files:
            raise DataError(f"data_config.train_file: no file in {entry} ends in one of {SUFFIXES}")
        return files
    if os.path.exists(entry):
        return [entry]
    files = [path for path in glob.glob(entry, recursive=True) if os.path.isfile(path)]
    if not files:
        what = "matches no file" if glob.has_magic(entry) else "does not exist"
        raise DataError(f"data_config.train_file: {entry} {what} (from {os.getcwd()})")
    return files


def validation_path(config: DataConfig) -> str | None:
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


def is_excluded(path: str, config: DataConfig) -> bool:
    """Whether a file is the validation file (by its name, or a link to it) or excluded."""
    name, held_out = os.path.basename(path), config.validation_file
    if held_out and fnmatch(name, os.path.basename(held_out)):
        return True
    if held_out and all(map(os.path.exists, (path, held_out))) and os.path.samefile(path, held_out):
        return True
    return any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in config.exclude)


def shard_names(paths: Sequence[str]) -> list[str]:
    """File names; where two are the same, paths below the folder that all have in common."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    places = [f"/{path.repo}/{path.file}" if isinstance(path, HubPath) else path for path in paths]
    common = os.path.commonpath([os.path.dirname(place) for place in places])
    return [Path(place).relative_to(common).as_posix() for place in places]


def real_path(path: str) -> str:
    """What tells files apart, whatever leads to them."""
    return path if isinstance(path, HubPath) else os.path.realpath(path)


def shards_fingerprint(shards: Sequence[Shard]) -> dict[str, int | str]:
    """What a resumed run must find again: the size of each shard, the commit of each data set."""
    of_hub = [shard.path for shard in shards if isinstance(shard.path, HubPath)]
    commits = {path.dataset: path.commit for path in of_hub}
    return {**commits, **{shard.name: shard.size for shard in shards}}
