"""Shards of any format as lines: opened, and asked for a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.data.io.shard_lines import open_shard


@pytest.mark.parametrize("name", ["shard.jsonl", "shard.jsonl.gz", "shard.jsonl.zst", "a.parquet"])
def test_a_git_lfs_pointer_is_refused_as_such(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    reader = open_shard(str(path))
    assert reader.read(0, 9) == []
    assert reader.ended
    assert reader.damage == "the file is a Git LFS pointer; fetch its content with git lfs pull"
    reader.close()
