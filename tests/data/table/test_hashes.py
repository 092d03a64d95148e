"""Hashes of files are computed once, and again for a file that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.core.files import file_hash
from bsmeta.data.table import hashes
from bsmeta.data.table.hashes import file_hashes


def test_a_file_is_read_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    read: list[Path] = []

    def noted(file: Path) -> str:
        read.append(file)
        return file_hash(file)

    monkeypatch.setattr(hashes, "file_hash", noted)
    for file in files:
        file.write_text(file.name)
    first = file_hashes(files, tmp_path / "store")
    assert first == {file: file_hash(file) for file in files}
    assert file_hashes(files, tmp_path / "store") == first
    assert read == files
    files[1].write_text("other")
    changed = file_hashes(files, tmp_path / "store")
    assert changed == {file: file_hash(file) for file in files} != first
    assert read == [*files, files[1]]
    (tmp_path / "store" / hashes.FILE).write_text("{")
    assert file_hashes(files, tmp_path / "store") == changed
