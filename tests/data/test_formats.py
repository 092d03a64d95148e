"""The same documents in another format make the same batches, wherever a run is resumed.

The shards of all formats get the same names and sizes here, from which streams are dealt and
random choices are made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io import lines as index_module
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.io.shards import Shard, list_shards
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream import survey
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.helpers import Run, page, run, same, small_config
from tests.data.hub_server import TOKEN, Hub, shards_in

SIZES = [310, 120, 100, 90, 130]
LEGS = (4, 5, 6)  # steps; the last one ends in the second epoch of every stream
BATCH = 32
STREAMS: dict[str, Any] = {"num_streams": 16, "max_seq_len": 128}


def documents(first: int, count: int) -> list[dict[str, Any]]:
    return [page(number, 1 + number * 7 % 12) for number in range(first, first + count)]


def as_lines(documents: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(document)}\n" for document in documents).encode()


def parquet(groups: int) -> Callable[[Path, list[dict[str, Any]]], None]:
    def write(path: Path, documents: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(documents)
        pq.write_table(table, path, row_group_size=max(len(documents) // groups, 1))

    return write


def frames(data: bytes, size: int) -> list[bytes]:
    """Returns Zstandard frames of `size` bytes of content, which mostly end inside a line."""
    return [zstd.compress(data[at : at + size]) for at in range(0, len(data), size)]


def seek_table(parts: list[bytes], size: int) -> bytes:
    """Returns the skippable frame at the end of a file in the seekable format."""
    entries = b"".join(struct.pack("<II", len(part), size) for part in parts)
    table = entries + struct.pack("<IBI", len(parts), 0, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(table)) + table


def zst(size: int, *, seekable: bool = False) -> Callable[[Path, list[dict[str, Any]]], None]:
    def write(path: Path, documents: list[dict[str, Any]]) -> None:
        parts = frames(as_lines(documents), size)
        path.write_bytes(b"".join(parts) + (seek_table(parts, size) if seekable else b""))

    return write


FORMATS: dict[str, tuple[str, Callable[[Path, list[dict[str, Any]]], Any]]] = {
    "gz": (".jsonl.gz", lambda path, rows: path.write_bytes(gzip.compress(as_lines(rows)))),
    "c4": (".json.gz", lambda path, rows: path.write_bytes(gzip.compress(as_lines(rows)))),
    "3 row groups": (".parquet", parquet(3)),
    "300 row groups": (".parquet", parquet(300)),
    "1 frame": (".jsonl.zst", zst(1 << 30)),
    "many frames": (".json.zst", zst(3000)),
    "seekable": (".jsonl.zst", zst(5000, seekable=True)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same documents in every format."""
    folders = {}
    for name, (suffix, write) in FORMATS.items():
        folders[name] = tmp_path_factory.mktemp("shards")
        for number, size in enumerate(SIZES):
            write(folders[name] / f"part-{number}{suffix}", documents(1000 * number, size))
    return folders


def list_shards_without_format(config: DataConfig) -> list[Shard]:
    shards = list_shards(config)
    return [
        dataclasses.replace(shard, name=shard.name.partition(".")[0], size=100 * SIZES[number])
        for number, shard in enumerate(shards)
    ]


@contextlib.contextmanager
def ignore_formats() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "list_shards", list_shards_without_format)
        # The files do not have these sizes, so they are not recognized as those that were listed.
        patch.setattr(survey, "add_sample_hashes", lambda shards, cache: list(shards))
        patch.setattr(index_module, "SPACING_BYTES", 40_000)
        yield


def join_legs(legs: list[Run]) -> Run:
    steps = [step for leg in legs for step in leg.steps]
    return Run(steps, [names for leg in legs for names in leg.documents], legs[-1].state)


def run_three_legs(
    folder: Path, cache: Path, sizes: list[tuple[int, int]], **changes: Any
) -> tuple[Run, list[Run]]:
    """Runs three legs of a run, each with its number of processes and loader workers."""
    legs: list[Run] = []
    for steps, (world_size, workers) in zip(LEGS, sizes, strict=True):
        config = small_config(
            folder, num_workers=workers, cache_dir=str(cache), **STREAMS, **changes
        )
        state = legs[-1].state if legs else None
        legs.append(run(config, steps, batch=BATCH, world_size=world_size, state=state))
    return join_legs(legs), legs


@pytest.fixture(scope="module")
def whole(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run on `.jsonl.gz`, in one process, never stopped."""
    config = small_config(folders["gz"], cache_dir=str(tmp_path_factory.mktemp("cache")), **STREAMS)
    with ignore_formats():
        result = run(config, sum(LEGS), batch=BATCH)
    assert {state["epoch"] for state in result.state["streams"].values()} >= {1}
    return result


QUICK = ("300 row groups", "many frames")


@pytest.mark.parametrize(
    "sizes",
    [[(1, 0), (2, 2), (4, 0)], pytest.param([(4, 2), (1, 2), (2, 0)], marks=pytest.mark.slow)],
    ids=["1-2-4", "4-1-2"],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in FORMATS
        if name != "gz"
    ],
)
def test_every_format_gives_the_batches_of_gzip(
    folders: dict[str, Path], tmp_path: Path, whole: Run, name: str, sizes: list[tuple[int, int]]
) -> None:
    with ignore_formats():
        indexes = IndexCache(Cache(str(tmp_path)))
        for path in folders[name].iterdir():
            indexes.build(str(path))
        result, legs = run_three_legs(folders[name], tmp_path, sizes)
    assert same(result, whole)
    assert legs[-1].state["streams"] == whole.state["streams"]


@pytest.mark.parametrize("name", ["3 row groups", "300 row groups", "many frames"])
def test_each_epoch_has_every_document_once_and_no_test_document(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Test documents in another format, which are also in the shards under other names."""
    suffix, write = FORMATS["many frames" if "group" in name else "3 row groups"]
    held_out = tmp_path / f"test{suffix}"
    left_out = [*documents(1000, 40), *documents(3060, 25)]
    write(held_out, left_out)
    config = small_config(
        folders[name],
        num_streams=1,
        per_device_train_batch_size=1,
        validation_file=str(held_out),
        on_test_overlap="drop",
        cache_dir=str(tmp_path),
        packing="pad",
        long_documents="truncate",
        metadata_probability=0.0,
    )
    left = sum(SIZES) - len(left_out)
    seen: Counter[str] = Counter()
    for names in run(config, left, batch=1).documents[:left]:
        seen.update(names)
    assert set(seen.values()) == {1}
    assert len(seen) == left
    shards = {shard.name.partition(".")[0]: shard.name for shard in list_shards(config)}
    assert f"{shards['part-1']}:39" not in seen
    assert f"{shards['part-1']}:40" in seen
    assert not any(f"{shards['part-3']}:{number}" in seen for number in range(60, 85))
    with pytest.raises(
        DataError, match=rf"part-\d{get_suffix(name)}, (row|line) \d+: the document"
    ):
        run(dataclasses.replace(config, on_test_overlap="error"), left, batch=1)


def get_suffix(name: str) -> str:
    return FORMATS[name][0].replace(".", r"\.")


@pytest.mark.long
def test_parquet_from_the_hub_gives_the_batches_of_gzip(
    hub: Hub, folders: dict[str, Path], tmp_path: Path, whole: Run
) -> None:
    hub.files = hub.listed = shards_in(folders["3 row groups"])
    hub.token = TOKEN
    with ignore_formats():
        result, _ = run_three_legs(
            Path("unused"),
            tmp_path,
            [(1, 0), (2, 2), (4, 0)],
            train_file="hf://datasets/owner/name/*.parquet",
        )
    assert same(result, whole)


@pytest.mark.parametrize("name", ["3 row groups", "many frames"])
def test_an_evaluation_reads_the_same_documents_in_every_format(
    folders: dict[str, Path], name: str
) -> None:
    def held_out(name: str) -> HeldOutDocuments:
        path = folders[name] / f"part-3{FORMATS[name][0]}"
        config = small_config(folders[name], validation_file=str(path))
        return HeldOutDocuments(config, max_documents=50, deduplicate=True, training_overlap=None)

    held_out_documents, expected = held_out(name), held_out("gz")
    assert [document.text for document in held_out_documents] == [
        document.text for document in expected
    ]
    assert [list(documents.numbers) for documents in (held_out_documents, expected)] == [
        list(range(50))
    ] * 2
    assert held_out_documents.carried == expected.carried
    assert held_out_documents.list_types() == expected.list_types() == ["html", "title", "url"]
