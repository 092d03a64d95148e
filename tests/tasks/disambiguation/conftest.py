"""A tiny encoder and a small world of entities and sentences, for the tests of this task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.disambiguation.helpers import write_encoder, write_world


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder
