"""Shared code of the benchmarks: command line keys, memory of the process, shards of any size.

The scripts in this folder can import it because Python searches a script's own folder first.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from isal import igzip

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import list_shards

SAMPLE_PAGES = 1000
MB = 2**20


def own_arguments(defaults: dict[str, str]) -> dict[str, str]:
    """Remove a script's own keys from the command line; the rest is for Hydra."""
    pairs = [argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument]
    found = {name: value for name, value in pairs if name in defaults}
    sys.argv[1:] = [one for one in sys.argv[1:] if one.split("=", 1)[0] not in defaults]
    return defaults | found


def processes() -> list[psutil.Process]:
    """This process and its children."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def cpu_seconds() -> float:
    """CPU time of all threads of this process and its children."""
    times = [process.cpu_times() for process in processes()]
    return sum(one.user + one.system for one in times)


def resident_mb() -> float:
    """Resident memory of this process and its children, in MB."""
    return sum(process.memory_info().rss for process in processes()) / MB


def sample_pages(config: CausalLMConfig) -> list[bytes]:
    """Up to `SAMPLE_PAGES` lines of the training shards."""
    pages: list[bytes] = []
    for shard in list_shards(config.data_config):
        reader = open_shard(shard.path)
        pages += map(bytes, reader.read(0, SAMPLE_PAGES - len(pages)))
        reader.close()
    return pages


def large_shard(folder: Path, pages: list[bytes], raw_mb: float) -> tuple[Path, int]:
    """Write a `.jsonl.gz` with about `raw_mb` megabytes of lines, by repeating the pages.

    Returns:
        The path of the shard, and its number of lines.
    """
    path, size = folder / "large.jsonl.gz", 0
    with igzip.open(path, "wb") as file:
        for number, page in enumerate(itertools.cycle(pages)):
            if size >= raw_mb * MB:
                return path, number
            size += file.write(page + b"\n")
    raise AssertionError("there are no pages")


def best_ms(action: Callable[[], Any], repeats: int) -> float:
    """The minimum time of an action in milliseconds, which other processes disturb least."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return round(min(times) * 1000, 2)
