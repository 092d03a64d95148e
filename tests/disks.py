"""A small file system, to fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size (`400k`) in a new folder; the test is skipped without root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs the rights of root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
