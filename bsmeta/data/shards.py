"""Which files are read: the list of shards, without the held-out one, and what identifies it.

First stage of the stream. `list_shards` turns `data_config.train_file` into a sorted list of
`Shard`s, from which `plan` cuts the logical streams.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError, DataError

SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of documents, one JSON object a line.

    Attributes:
        name: What documents and seeds call it: the file name (with the folders in which the shards
            differ, where several have one file name). It does not depend on where the data lies.
        path: Where it is read.
        size: Bytes on disk.
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
    entries = config.train_file
    if not entries:
        raise ConfigurationError(
            "data_config.train_file is not set; expected a path, a glob, or a list of them"
        )
    entries = [entries] if isinstance(entries, (str, os.PathLike)) else list(entries)
    found = sorted(os.path.abspath(path) for entry in entries for path in expand(str(entry)))
    found = list({os.path.realpath(path): path for path in found}.values())  # each file once
    kept = [path for path in found if not is_excluded(path, config)]
    if not kept:
        raise DataError(
            f"data_config.train_file={config.train_file} leaves no training shard: "
            f"all of its {len(found)} files are the validation file "
            f"({config.validation_file}) or excluded ({config.exclude}); add other files"
        )
    names = shard_names(kept)
    return sorted(
        (Shard(name, path, os.path.getsize(path)) for name, path in zip(names, kept, strict=True)),
        key=lambda shard: shard.name,
    )


def expand(entry: str) -> list[str]:
    """The files that one entry of `train_file` names: a file, a folder, or a glob (with `**`)."""
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


def is_excluded(path: str, config: DataConfig) -> bool:
    """Whether a file is the validation file (by its name, or a link to it) or excluded."""
    name, held_out = os.path.basename(path), config.validation_file
    if held_out and name == os.path.basename(held_out):
        return True
    if held_out and os.path.exists(held_out) and os.path.samefile(path, held_out):
        return True
    return any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in config.exclude)


def shard_names(paths: Sequence[str]) -> list[str]:
    """File names; where two are the same, paths below the folder that all have in common."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [Path(path).relative_to(common).as_posix() for path in paths]


def shards_fingerprint(shards: Sequence[Shard]) -> dict[str, int]:
    """What a resumed run must find again: the size of each shard by name."""
    return {shard.name: shard.size for shard in shards}
