"""The real data beside a checkout, which most checkouts do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.warm import REPOSITORY


def shared_data(name: str) -> Path:
    """Returns a folder of `../shared/data`; skips the test if it is absent."""
    folder = REPOSITORY.parent / "shared" / "data" / name
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    return folder
