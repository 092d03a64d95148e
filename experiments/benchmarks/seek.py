"""Measures the time to reach a document in the middle of a large compressed shard.

    python experiments/benchmarks/seek.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' raw_mb=700 repeats=5

writes one `.jsonl.gz` with `raw_mb` megabytes of lines to a temporary folder (the pages of the
training shards, repeated) and compares two ways to read the document at 10, 50 and 90% of it, each
in a newly opened file: `seek_ms` starts at the nearest access point (and includes loading the index
from the cache), `reread_ms` decompresses everything before the document. Prints one JSON line, with
the build time and the size of the index (`index_s`, `index_mb`), which is built once.
"""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path

from common import MB, best_ms, large_shard, own_arguments, sample_pages

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache, LineReader

OWN_KEYS = {"raw_mb": "700", "repeats": "5"}
PERCENT = (10, 50, 90)


def document(path: Path, number: int, indexes: IndexCache | None) -> list[bytes]:
    """Read one line of a newly opened shard."""
    reader = LineReader(str(path), indexes)
    lines = list(map(bytes, reader.read(number, 1)))
    reader.close()
    return lines


def measure(config: CausalLMConfig, raw_mb: float, repeats: int, folder: Path) -> dict[str, object]:
    """Time both ways at each position, and the building of the index."""
    pages = sample_pages(config)
    path, count = large_shard(folder, pages, raw_mb)
    indexes = IndexCache(Cache(str(folder / "cache")))
    begin = time.perf_counter()
    indexes.build(str(path))
    index_s = time.perf_counter() - begin
    result: dict[str, object] = {
        "raw_mb": raw_mb,
        "gz_mb": round(path.stat().st_size / MB, 1),
        "documents": count,
        "index_s": round(index_s, 2),
        "index_mb": round(
            sum(file.stat().st_size for file in (folder / "cache").glob("*.npz")) / MB, 2
        ),
    }
    seek_ms, reread_ms = {}, {}
    for percent in PERCENT:
        number = count * percent // 100
        expected = [pages[number % len(pages)]]
        assert document(path, number, indexes) == document(path, number, None) == expected
        seek_ms[f"{percent}%"] = best_ms(partial(document, path, number, indexes), repeats)
        reread_ms[f"{percent}%"] = best_ms(partial(document, path, number, None), repeats)
    return result | {"seek_ms": seek_ms, "reread_ms": reread_ms}


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(config, float(OWN["raw_mb"]), int(OWN["repeats"]), Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
