"""Creates torch data loaders whose workers are forked, under every version of Python."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset


def make_loader(dataset: Dataset[Any], num_workers: int, **options: Any) -> DataLoader[Any]:
    """Creates a loader that yields the items of a dataset without collating them.

    Its processes are forked, which is not the default from Python 3.14 on: they inherit the open
    files of this process, the time of its last progress report and its signal handling, and end
    when it ends.

    Args:
        num_workers: Number of loader processes; 0 does all work in this process.
        options: Further arguments of `DataLoader`.
    """
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
        **options,
    )
