"""Checks that all ranks train on the same data."""

from __future__ import annotations

import itertools
import json
from typing import Any

import xxhash

from bsmeta.core.errors import ConfigurationError, describe_differences
from bsmeta.training.ranks.processes import Processes

_MAX_DIFFERENCES_SHOWN = 20  # in a message


def check_same_data(fingerprint: dict[str, Any], processes: Processes) -> None:
    """Refuses to train if the ranks have read different data; each rank passes its fingerprint.

    A file, or a branch on the Hub, may change between the reads of two ranks. Ranks first exchange
    hashes, because a fingerprint may have megabytes.
    """
    text = json.dumps(fingerprint, sort_keys=True)
    hashes = processes.gather(xxhash.xxh3_128_hexdigest(text.encode()))
    if len(set(hashes)) == 1:
        return

    first_fingerprint = processes.broadcast(fingerprint)
    lines = describe_differences(
        first_fingerprint, fingerprint, "on rank 0", f"on rank {processes.rank}"
    )
    lines_by_rank = processes.gather([*itertools.islice(lines, _MAX_DIFFERENCES_SHOWN)])
    for rank, lines_of_rank in enumerate(lines_by_rank):
        if lines_of_rank:
            differing_keys = "\n".join(lines_of_rank)
            raise ConfigurationError(
                f"rank 0 and rank {rank} do not have the same training data (name a commit of a "
                "data set that is changing as data_config.dataset_revision; see that all machines "
                f"have the same files):\n{differing_keys}"
            )
