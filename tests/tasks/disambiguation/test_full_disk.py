"""On a full disk, a program ends with a message, and leaves what it found."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.embeddings import EntityVectors
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.profiles import build_entities
from tests.conftest import REPOSITORY
from tests.disks import small_disk
from tests.tasks.disambiguation.helpers import lines, profiles, write_lines
from tests.tasks.training import TRAIN

__all__ = ["small_disk"]

ENTITIES = REPOSITORY / "bsmeta" / "entities.py"
SAMPLE = REPOSITORY / "examples" / "senses_sample"

Run = Callable[..., subprocess.CompletedProcess[str]]


def assert_refused(done: subprocess.CompletedProcess[str], path: Path) -> None:
    assert done.returncode == 2
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith(f"error: {path} cannot be written: ")
    assert " are free there); free some space, or name another folder" in message
    assert "Traceback" not in done.stderr


def test_a_table_that_does_not_fit(launch: Run, small_disk: Path) -> None:
    table = small_disk / "entities"
    done = launch(
        ENTITIES, f"table={table}", f"profiles={SAMPLE / 'profiles.jsonl.gz'}", check=False
    )
    assert_refused(done, table)
    assert {path.name for path in small_disk.iterdir()} <= {"entities.lock"}


def test_an_addition_that_does_not_fit(launch: Run, small_disk: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "profiles.jsonl", profiles())
    before = build_entities(path, small_disk / "entities")
    (small_disk / "other").write_bytes(bytes(200_000))
    sample = SAMPLE / "profiles.jsonl.gz"
    done = launch(ENTITIES, f"table={small_disk}/entities", f"add={sample}", check=False)
    assert_refused(done, small_disk / "entities")
    assert EntityTable.open(small_disk / "entities").fingerprint == before.fingerprint


@pytest.mark.parametrize("workers", [1, 2])
def test_sentences_that_do_not_fit(
    launch: Run, small_disk: Path, world: Path, encoder: Path, tmp_path: Path, workers: int
) -> None:
    train = write_lines(tmp_path / "train.jsonl", lines(8000, seed=1))
    done = launch(
        TRAIN, "--config-name", "disambiguation", f"data_config.train_file={train}",
        f"data_config.entity_table={world}/entities", f"model_name={encoder}", "prep_only=true",
        f"data_config.prep_dir={small_disk}", "data_config.max_entity_length=48",
        f"data_config.prep_workers={workers}", "data_config.window_length=32",
        "keep_best_by=null", "export_best=false", check=False,
    )  # fmt: skip
    assert_refused(done, small_disk / "train")
    assert not (small_disk / "train").exists()
    assert not (small_disk / "train.part").exists()


def test_vectors_that_do_not_fit(small_disk: Path) -> None:
    """Writing to a mapped file would end the process by a signal instead."""
    vectors = EntityVectors(
        small_disk / "vectors", 10_000, 32, str, lambda asked: np.ones((len(asked), 32), np.float32)
    )
    assert vectors.get(np.arange(1000)).sum() == 32_000
    with pytest.raises(DataError, match=r"vectors cannot be written.*No space left on device"):
        vectors.get(np.arange(10_000))
    assert vectors.get(np.arange(1000)).sum() == 32_000
