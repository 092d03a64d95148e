"""The environment that the tests run in is the one that is pinned."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
LINES = [
    line
    for name in ("requirements.txt", "requirements-dev.txt")
    for line in (REPOSITORY / name).read_text().splitlines()
    if line and not line.startswith(("#", "-r"))
]


@pytest.mark.parametrize("line", LINES)
def test_installed_version_is_the_pinned_one(line: str) -> None:
    name, pinned = line.split("==")
    assert version(name).split("+")[0] == pinned  # torch adds its build: 2.13.0+cpu
