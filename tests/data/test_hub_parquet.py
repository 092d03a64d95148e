"""Parquet shards on the Hub: only needed blocks are fetched, and bad copies are detected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.core.errors import DataError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.parquet import ParquetReader
from bsmeta.data.io.remote.remote_file import BadCopyError
from bsmeta.data.io.shards import list_shards
from tests.data.helpers import small_config
from tests.data.hub_fixtures import BLOCK
from tests.data.hub_server import Answer, Fault, Hub, failing
from tests.data.test_hub_copies import corrupting, flip
from tests.data.test_hub_stream import FAULTS

ROWS = [{"text": f"{number} " + "abcdefg" * (number % 9), "n": number} for number in range(600)]
URL = "hf://datasets/owner/name/*.parquet"


def parquet(tmp_path: Path, *, junk: int = 0) -> bytes:
    """Returns a file of 3 row groups with checksums, and a column of `junk` bytes a row."""
    table = pa.Table.from_pylist([{**row, "junk": "x" * junk} for row in ROWS])
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        row_group_size=200,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    return (tmp_path / "a.parquet").read_bytes()


def shard(hub: Hub, folder: Path, content: bytes, **values: Any) -> FileRef:
    hub.files = hub.listed = {"a.parquet": content}
    config = small_config(folder, train_file=URL, cache_dir=str(folder / "cache"), **values)
    (listed_shard,) = list_shards(config)
    assert isinstance(listed_shard.path, FileRef)
    return listed_shard.path


def read(ref: FileRef, first: int = 0, count: int = 999) -> tuple[list[Any], str]:
    """Returns rows, and the damage after them."""
    reader = ParquetReader(ref, ["text", "n"])
    try:
        return [json.loads(bytes(line)) for line in reader.read(first, count)], reader.damage
    finally:
        reader.close()


def list_requested_blocks(hub: Hub) -> list[int]:
    """Returns the numbers of the requested blocks."""
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in hub.content_requests()]
    assert all(start % BLOCK == 0 for start in starts)
    return [start // BLOCK for start in starts]


@pytest.mark.parametrize("hub_cache_gb", [0, 1.0])
def test_only_needed_blocks_are_fetched(hub: Hub, tmp_path: Path, hub_cache_gb: float) -> None:
    content = parquet(tmp_path, junk=500)
    ref = shard(hub, tmp_path, content, hub_cache_gb=hub_cache_gb)
    hub.requests.clear()
    assert read(ref, 410, 90) == (ROWS[410:500], "")
    fetched = list_requested_blocks(hub)
    assert len(fetched) <= len(set(fetched)) + (1 if hub_cache_gb == 0 else 0)
    size = sum(
        pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(column).total_compressed_size
        for column in (0, 1)
    )
    end = 1 << 16  # Arrow reads so many bytes to get the footer
    # The file has 336 blocks. Fetching ahead adds some to each of the three ranges.
    assert len(set(fetched)) <= (size + end) // BLOCK + 3 * 3


@pytest.mark.parametrize("fault", ["500", "cut", "all"])
def test_bad_answers_lose_no_row(hub: Hub, tmp_path: Path, fault: str) -> None:
    ref = shard(hub, tmp_path, parquet(tmp_path), hub_retries=50)
    hub.faults = FAULTS[fault]()
    assert read(ref) == (ROWS, "")


def test_a_refusal_by_the_hub_is_not_reported_as_damage(hub: Hub, tmp_path: Path) -> None:
    ref = shard(hub, tmp_path, parquet(tmp_path, junk=500))
    reader = ParquetReader(ref, ["text", "n"])
    assert len(reader.read(0, 9)) == 9
    hub.faults = [failing(403, 99)]
    with pytest.raises(DataError, match=r"a\.parquet, bytes \d+ to \d+: .* answers HTTP 403"):
        reader.read(201, 9)
    reader.close()


def test_a_bad_copy_is_replaced(hub: Hub, tmp_path: Path) -> None:
    """A flipped bit in the second row group is detected by the checksum of its page."""
    content = parquet(tmp_path)
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0)
    start = (column.data_page_offset // BLOCK + 2) * BLOCK
    assert start + BLOCK < column.data_page_offset + column.total_compressed_size
    ref = shard(hub, tmp_path, content)
    hub.faults = [corrupting(flip(4000), start)]
    with pytest.raises(BadCopyError, match="it was removed and downloaded again"):
        read(ref)
    assert read(ref) == (ROWS, "")


def test_a_file_damaged_on_the_hub_is_read_up_to_the_damage(hub: Hub, tmp_path: Path) -> None:
    content = bytearray(parquet(tmp_path))
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0)
    content[column.data_page_offset + 1500] ^= 1
    rows, damage = read(shard(hub, tmp_path, bytes(content)))
    assert rows == ROWS[:200]
    assert damage.startswith("row group 1 cannot be read: ")
    assert "CRC" in damage


def test_a_damaged_footer_on_the_hub_is_named(hub: Hub, tmp_path: Path) -> None:
    rows, damage = read(shard(hub, tmp_path, parquet(tmp_path)[:-100]))
    assert rows == []
    assert damage.startswith("the footer cannot be read: ")


def refuse_requests(_: Answer) -> bool:
    raise AssertionError("nothing may be asked for")


def test_a_cached_file_is_read_without_a_network(hub: Hub, tmp_path: Path) -> None:
    """The blocks in the cache suffice."""
    ref = shard(hub, tmp_path, parquet(tmp_path))
    assert read(ref) == (ROWS, "")
    faults: list[Fault] = [refuse_requests]
    hub.faults = faults
    assert read(ref, 300, 50) == (ROWS[300:350], "")
