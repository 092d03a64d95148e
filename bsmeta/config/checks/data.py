"""Values of `data_config` that no data can make right; also for entry points that do not train."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, refuse, show
from bsmeta.config.data import SCHEME, DataConfig, in_dataset

CHOICES = {
    "packing": ("best_fit", "pad"),
    "reader": ("native", "tf"),
    "bad_documents": ("strict", "skip"),
    "on_changed_data": ("error", "warn"),
    "on_test_overlap": ("error", "drop"),
    "tokenizer_backend": ("auto", "hf", "tiktoken", "gigatoken"),
}

AT_LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "num_streams": 1,
    "window_documents": 1,
    "num_workers": 0,
    "max_bad_documents": 0,
    "max_document_chars": 1,
    "hub_cache_gb": 0,
    "hub_retries": 0,
}


def check_data(config: DataConfig) -> None:
    """Refuses values that no data can make right.

    Raises:
        ConfigurationError: Listing all of them.
    """
    refuse([*data_problems(config)])


def data_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields what is wrong with single values, and with values together."""
    for name, choices in CHOICES.items():
        found = getattr(config, name)
        if found not in choices:
            expected = f"one of {', '.join(choices)}{nearest(found, choices)}"
            fix = f"data_config.{name}={closest(found, choices)}"
            yield _refused(config, name, expected, fix)
    for name, least in AT_LEAST.items():
        if not getattr(config, name) >= least:
            fix = f"data_config.{name}={show(getattr(DataConfig(), name))}, for example"
            yield _refused(config, name, f"{least} or more", fix)
    if config.dataset_revision is not None and not any(map(_takes_revision, _entries(config))):
        expected = "null: nothing is read from the Hub, or only at a revision of its own (@)"
        fix = "leave it out, or name the data as data_config.dataset_name or hf://datasets/…"
        yield _refused(config, "dataset_revision", expected, fix)


def _entries(config: DataConfig) -> Iterator[str]:
    """The files that the configuration names, those in `dataset_name` as they are found there."""
    files = config.train_file or ([""] if config.dataset_name else [])
    files = [files] if isinstance(files, (str, os.PathLike)) else files
    for entry in [*map(str, files), *filter(None, [config.validation_file])]:
        yield in_dataset(entry, config)


def _takes_revision(entry: str) -> bool:
    """Whether an entry is read from the Hub at no revision of its own."""
    return entry.startswith(SCHEME) and "@" not in "/".join(entry.split("/")[:5])


def _refused(config: DataConfig, name: str, expected: str, fix: str) -> Problem:
    return Problem(f"data_config.{name}", HYDRA, show(getattr(config, name)), expected, fix)
