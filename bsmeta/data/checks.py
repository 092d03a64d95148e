"""Values of `data_config` that are wrong whatever the data; reads none."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator, Mapping

from bsmeta.config.data import (
    MOST_PARTS,
    REMOTE,
    SCHEME,
    DataConfig,
    in_dataset,
    parts_of,
    train_entries,
)
from bsmeta.core.problems import HYDRA, Problem, bound_problems, refuse, show

_HELD_OUT = "data_config.validation_file"
_WEB = ("http://", "https://")
_ALIASES = {"s3a://": "s3://", "s3n://": "s3://", "gcs://": "gs://"}
"""Other names of the schemes of buckets."""


def check_data(config: DataConfig) -> None:
    """Raises an error for values that are wrong whatever the data."""
    refuse([*data_problems(config)])


def data_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values."""
    yield from bound_problems(config, "data_config.")
    yield from _column_problems("data_config.columns", config.columns)
    yield from _source_problems(config)
    yield from _address_problems(config)
    yield from _pattern_problems(config)
    if config.dataset_revision is not None and not any(
        _takes_revision(entry) for _, entry in _entries(config)
    ):
        expected = "null: nothing is read from the Hub, or only at a revision of its own (@)"
        fix = "leave it out, or name the data as data_config.dataset_name or hf://datasets/…"
        yield _refused(config, "dataset_revision", expected, fix)


def _column_problems(key: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yields paths that no record can have, and paths inside the value of another path."""
    paths = {"text": "text", **columns} if columns else {}
    for name, path in paths.items():
        longer = next((other for other in paths.values() if other.startswith(f"{path}.")), None)
        if not all(path.split(".")):
            expected = "a path: the name of a column, or names joined by dots"
            fix = f"{key}.{name}=column.field"
            yield Problem(f"{key}.{name}", HYDRA, show(path), expected, fix)
        elif longer is not None:
            expected = f"a value; {longer} is a field of it"
            yield Problem(f"{key}.{name}", HYDRA, show(path), expected, "map only one of the two")


def _source_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields sources without a name, a file or a weight, of equal names, or beside `train_file`."""
    names = [source.name for source in config.sources]
    for number, source in enumerate(config.sources):
        key = f"data_config.sources.{number}"
        yield from _column_problems(f"{key}.columns", source.columns)
        if not re.fullmatch(r"[\w.-]+", source.name):
            expected = "a name of letters, digits, dots, hyphens and underscores"
            yield Problem(f"{key}.name", HYDRA, show(source.name), expected, f"{key}.name=web")
        elif source.name in names[:number]:
            expected = "a name of its own: another source has this one"
            yield Problem(
                f"{key}.name", HYDRA, show(source.name), expected, f"rename one {source.name}"
            )
        if not source.train_file:
            fix = f"{key}.train_file=FOLDER/*.jsonl.gz (or a list of files)"
            yield Problem(f"{key}.train_file", HYDRA, show(source.train_file), "its shards", fix)
    weights = [source.weight for source in config.sources]
    if (
        weights
        and all(0 < weight < math.inf for weight in weights)
        and sum(parts_of(weights)) > MOST_PARTS
    ):
        found = f"weights {', '.join(map(str, weights))}"
        expected = "weights whose shares are exact in fewer digits"
        fix = f"weights {', '.join(f'{weight / sum(weights):.3f}' for weight in weights)}"
        yield Problem("data_config.sources", HYDRA, found, expected, fix)
    if config.sources and config.train_file is not None:
        expected = "null, because data_config.sources names the shards"
        yield _refused(config, "train_file", expected, "data_config.train_file=null")


def _address_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields files on file systems that cannot be read, by the scheme of their addresses."""
    for key, entry in _entries(config):
        address = re.match(r"([a-z][a-z0-9+.-]*)://", entry, re.IGNORECASE)
        if address is None:
            continue
        by_tensorflow = config.reader == "tf" and key != _HELD_OUT
        scheme = address[0].lower()
        if by_tensorflow and scheme in (SCHEME, *_WEB):
            expected = "a path or address that TensorFlow reads (data_config.reader=tf)"
            yield Problem(key, HYDRA, show(entry), expected, "data_config.reader=native")
        elif not by_tensorflow and scheme not in REMOTE:
            expected = f"a path, or {SCHEME}datasets/OWNER/NAME/…, s3://BUCKET/… or gs://BUCKET/…"
            fix = f"copy the files here, or mount {scheme}… as a folder, and name the path"
            if scheme in _ALIASES:
                fix = f"{key}={_ALIASES[scheme]}{entry[len(scheme) :]}"
            elif key != _HELD_OUT and scheme not in _WEB:
                fix += "; data_config.reader=tf reads what TensorFlow has a file system for"
            if scheme == "file://":
                fix = f"{key}={entry[len(scheme) :]}"
            yield Problem(key, HYDRA, f"{show(entry)} ({scheme})", expected, fix)


def _pattern_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a local pattern in place of the held-out file: every shard that it matches is one."""
    path = in_dataset(config.validation_file or "", config)
    if "://" in path or not glob.has_magic(path) or os.path.exists(path):
        return
    files = sorted(glob.glob(path, recursive=True))
    matched = f"{len(files)} files" if files else "no file"
    fix = f"{_HELD_OUT}={(files or ['FILE'])[0]}"
    found = f"{show(path)}, a pattern that matches {'1 file' if len(files) == 1 else matched}"
    yield Problem(_HELD_OUT, HYDRA, found, "the path of one file", fix)


def _entries(config: DataConfig) -> Iterator[tuple[str, str]]:
    """The keys that name files and their values, resolved inside `dataset_name` if it is set."""
    entries = [*train_entries(config)]
    if not entries and config.dataset_name:
        entries = [("data_config.dataset_name", in_dataset("", config))]
    yield from entries
    if config.validation_file:
        yield _HELD_OUT, in_dataset(config.validation_file, config)


def _takes_revision(entry: str) -> bool:
    """Whether an entry is read from the Hub and does not name a revision itself."""
    return entry.startswith(SCHEME) and "@" not in "/".join(entry.split("/")[:5])


def _refused(config: DataConfig, name: str, expected: str, fix: str) -> Problem:
    return Problem(f"data_config.{name}", HYDRA, show(getattr(config, name)), expected, fix)
