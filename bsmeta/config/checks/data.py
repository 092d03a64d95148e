"""Checks of `data_config` that read no data; also for entry points that do not train."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bsmeta.config.checks.bounds import bound_problems
from bsmeta.config.checks.problems import HYDRA, Problem, refuse, show
from bsmeta.config.data import SCHEME, DataConfig, in_dataset


def check_data(config: DataConfig) -> None:
    """Raises an error for values that are wrong whatever the data.

    Raises:
        ConfigurationError: Listing all of them.
    """
    refuse([*data_problems(config)])


def data_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values."""
    yield from bound_problems(config, "data_config.")
    if config.dataset_revision is not None and not any(map(_takes_revision, _entries(config))):
        expected = "null: nothing is read from the Hub, or only at a revision of its own (@)"
        fix = "leave it out, or name the data as data_config.dataset_name or hf://datasets/…"
        yield _refused(config, "dataset_revision", expected, fix)


def _entries(config: DataConfig) -> Iterator[str]:
    """The files that the configuration names, resolved inside `dataset_name` if it is set."""
    files = config.train_file or ([""] if config.dataset_name else [])
    files = [files] if isinstance(files, (str, os.PathLike)) else files
    for entry in [*map(str, files), *filter(None, [config.validation_file])]:
        yield in_dataset(entry, config)


def _takes_revision(entry: str) -> bool:
    """Whether an entry is read from the Hub and does not name a revision itself."""
    return entry.startswith(SCHEME) and "@" not in "/".join(entry.split("/")[:5])


def _refused(config: DataConfig, name: str, expected: str, fix: str) -> Problem:
    return Problem(f"data_config.{name}", HYDRA, show(getattr(config, name)), expected, fix)
