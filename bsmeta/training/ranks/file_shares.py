"""Divides the files of a run folder among the ranks that share it, to read, hash or upload them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.ranks.processes import Processes


def select_unique_files(
    measure_files: Callable[[], dict[str, int]], processes: Processes
) -> dict[str, int]:
    """Selects the files of this rank's folder that the folder of no lower rank has.

    All ranks call it, and get the same result if they share a folder.

    Args:
        measure_files: Returns the bytes of each file in the folder; the leaders call it.
    """
    sizes_by_rank = processes.run_on_all(lambda: measure_files() if processes.is_leader else {})
    earlier_files: set[str] = set()
    for sizes_of_rank in sizes_by_rank[: processes.leader]:
        earlier_files.update(sizes_of_rank)
    sizes_of_folder = sizes_by_rank[processes.leader]
    return {file: size for file, size in sizes_of_folder.items() if file not in earlier_files}


def divide_files(sizes: dict[str, int], processes: Processes) -> list[str]:
    """Returns this rank's share of the files in a folder, which its ranks divide by their sizes.

    Args:
        sizes: Bytes of each file, the same on all ranks that share the folder.
    """
    num_bytes = dict.fromkeys(processes.list_peers(), 0)
    share = []
    for file in sorted(sizes, key=lambda file: (-sizes[file], file)):
        rank = min(num_bytes, key=lambda rank: num_bytes[rank])
        num_bytes[rank] += sizes[file] + 1  # empty files are divided, too
        if rank == processes.rank:
            share.append(file)
    return share
