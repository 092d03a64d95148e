"""Names of input files decide the names of shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.annotate.shard import ShardFiles
from bsmeta.core.files import UnsafeNameError
from tests.core.hostile_names import HOSTILE_NAMES


@pytest.mark.parametrize(
    "name",
    # With a suffix, these are ordinary names.
    [name for name in HOSTILE_NAMES if name.rpartition("/")[2] not in ("", ".", "..")],
    ids=ascii,
)
def test_a_shard_is_inside_the_output(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeNameError, match="^input: "):
        ShardFiles(tmp_path, name)


def test_a_shard_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    output, disk = tmp_path / "output", tmp_path / "disk"
    output.mkdir()
    disk.mkdir()
    (output / "x.jsonl.gz").symlink_to(disk / "x.jsonl.gz")
    assert ShardFiles(output, "x").shard == output / "x.jsonl.gz"
