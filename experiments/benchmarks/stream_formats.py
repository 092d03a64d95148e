r"""Compares the speed of the stream on the same documents in several formats.

    python experiments/benchmarks/stream_formats.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' rounds=5 data_config.tokenizer_backend=auto

accepts every training key. Converts the shards (in the record form) in a temporary folder, and
makes passes over each format in turns, as `stream_peers` does. A stream draws the order of the
documents and their metadata from the names of the shards; here they have no suffix, so that the
batches are the same in every format. Prints one JSON line for each:

    format               records: lists of records in columns metadata_…; plain: a column for each
                         type, with the value itself, read through data_config.columns
    speed                tokens without padding per second of CPU time; the median of the rounds
    ratio                relative to `records .jsonl.gz` in the same round; the median
    mb                   size of the shards
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from common import MB, own_arguments
from stream_arms import alternate, one_pass, speeds

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import Shard, list_shards
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream import corpora
from bsmeta.metadata.processors import map_columns

OWN_KEYS = {"rounds": "5"}
ROW_GROUP = 1000  # rows, as `datasets` writes
FRAME = 4 << 20  # bytes of content in a Zstandard frame
FORMATS = [
    ("records", ".jsonl.gz"),
    ("records", ".jsonl.zst"),
    ("records", ".parquet"),
    ("plain", ".jsonl.gz"),
    ("plain", ".parquet"),
]
BASE = "records .jsonl.gz"

Row = dict[str, Any]


def rows_of(config: CausalLMConfig) -> Iterator[tuple[str, list[Row]]]:
    """The name and the documents of each shard."""
    for shard in list_shards(config.data_config):
        reader = open_shard(shard.path)
        rows: list[Row] = []
        while lines := reader.read(reader.line, 256):
            rows += (msgspec.json.decode(bytes(line)) for line in lines)
        reader.close()
        yield shard.name.partition(".")[0], rows


def plain(row: Row) -> Row:
    """A row whose global metadata are values in columns named after their types."""
    found, keys = {"text": row["text"]}, map_columns()
    for column, records in row.items():
        name = column.removeprefix("metadata_")
        if name != column and records:
            is_local = any(record["type"] == "local" for record in records)
            found[keys.get(name, name)] = records if is_local else records[0]["value"]
    return found


def write(path: Path, rows: list[Row]) -> None:
    """Write a shard in the format of its suffix."""
    if path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        pq.write_table(table, path, row_group_size=ROW_GROUP)
        return
    content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    else:
        frames = range(0, len(content), FRAME)
        path.write_bytes(b"".join(zstd.compress(content[at : at + FRAME]) for at in frames))


def converted(config: CausalLMConfig, folder: Path) -> dict[str, CausalLMConfig]:
    """Write the shards in each format; returns their configurations."""
    configs = {}
    data = config.data_config
    metadata = replace(data.metadata_config, metadata_column_list=None)
    types = {key: key for key in metadata.metadata_list}
    for form, suffix in FORMATS:
        own = folder / f"{form}{suffix}"
        own.mkdir()
        for name, rows in rows_of(config):
            shown = map(plain, rows) if form == "plain" else rows
            write(own / f"{name}{suffix}", list(shown))
        changes: dict[str, Any] = {"train_file": str(own), "validation_file": None}
        changes["metadata_config"] = metadata
        if form == "plain":
            changes["columns"] = {"text": "text", **types}
        configs[f"{form} {suffix}"] = replace(config, data_config=replace(data, **changes))
    return configs


def pass_by_stem(config: CausalLMConfig) -> dict[str, float]:
    """A pass over shards whose names have no suffix."""

    def renamed(data: DataConfig) -> list[Shard]:
        return [replace(shard, name=shard.name.partition(".")[0]) for shard in list_shards(data)]

    with mock.patch.object(corpora, "list_shards", renamed):
        return one_pass("ours", config)


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the results."""
    rounds = int(OWN["rounds"])
    with tempfile.TemporaryDirectory() as folder:
        configs = converted(config, Path(folder))
        arms = {name: (own,) for name, own in configs.items()}
        passes = alternate(arms, rounds, pass_by_stem)
        for name, own in configs.items():
            pairs = zip(speeds(passes, name), speeds(passes, BASE), strict=True)
            files = Path(own.data_config.train_file).iterdir()
            result = {
                "format": name,
                "speed": round(statistics.median(speeds(passes, name))),
                "ratio": round(statistics.median(speed / base for speed, base in pairs), 3),
                "mb": round(sum(file.stat().st_size for file in files) / MB, 1),
                "tokens": int(passes[name][0]["tokens"]),
                "rounds": len(passes[name]),
            }
            print(json.dumps(result | {"tokenizer_backend": own.data_config.tokenizer_backend}))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
