"""One cluster for all tests of this folder; skipped where SLURM is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this machine."""
    if missing():
        pytest.skip(f"SLURM is not installed ({', '.join(missing())}): apt-get install slurm-wlm")
    one = Cluster(Path(tmp_path_factory.mktemp("slurm")))
    try:
        one.start()
        yield one
    finally:
        one.stop()
