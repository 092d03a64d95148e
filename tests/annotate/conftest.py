"""Files of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.annotate.helpers import some_pages, write_pages

CUSTOM = "tests.annotate.custom"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Two files of pages."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, count in (("a", 30), ("b", 9)):
        write_pages(folder / f"{name}.jsonl.gz", some_pages(count))
    return folder


def read_shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.gz"))}
