"""Makes the loaders of torch: their processes are forked, under every version of Python."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset


def make_loader(dataset: Dataset[Any], num_workers: int, **options: Any) -> DataLoader[Any]:
    """Makes a loader of items that need no collating.

    Its processes are forked, which is not the default from Python 3.14 on: they share the open
    files of this process, the time of the last report and the handling of signals, and end when
    this process ends.

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
