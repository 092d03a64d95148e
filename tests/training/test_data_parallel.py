"""Data parallel training: where its gradients are, and how they are summed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("gradient_storage.py")
KEYS = ("trackers=[]", "max_train_steps=2", "num_warmup_steps=0")
MATRICES, WEIGHTS = 4, 4 * (2 * 8 + 8 + 8 + 1)
Launch = Callable[..., subprocess.CompletedProcess[str]]


def storages(launch: Launch, folder: Path, *keys: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the records of rank 0 of two, by moment."""
    file = folder / "storages"
    launch(
        SCRIPT, *KEYS, *keys, f"out_dir={folder / 'run'}", processes=2, STORAGES=str(file)
    )  # fmt: skip
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {name: [line for line in lines if line["moment"] == name] for name in ("loss", "step")}


def shown(line: dict[str, Any]) -> tuple[int, int, int]:
    assert line["weights"] == WEIGHTS
    return line["gradients"], line["storages"], line["bytes"]


def test_gradients_are_views_of_the_bucket(launch: Launch, tmp_path: Path) -> None:
    """Before a step, one bucket holds all gradients: 4 bytes per parameter, not 8."""
    records = storages(launch, tmp_path)
    assert [shown(line) for line in records["step"]] == [(MATRICES, 1, WEIGHTS)] * 2
    assert [shown(line) for line in records["loss"]] == [(0, 0, 0)] * 2


def test_accumulated_gradients_are_views_of_the_bucket(launch: Launch, tmp_path: Path) -> None:
    """Also while the micro-batches before the last are computed."""
    records = storages(launch, tmp_path, "gradient_accumulation_steps=3")
    assert [shown(line) for line in records["loss"]] == [(MATRICES, 1, WEIGHTS)] * 6
    assert [shown(line) for line in records["step"]] == [(MATRICES, 1, WEIGHTS)] * 2


@pytest.mark.parametrize(("megabytes", "expected"), [("null", 2), ("1", 3), ("8", 1)])
def test_buckets_have_the_size_of_the_key(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabytes: str, expected: int
) -> None:
    """Parameters of 1.6, 1.6 and 3.2 MB; by default, only the first bucket has 1 MiB."""
    monkeypatch.setenv("TOY_WIDTH", str(400_000))
    records = storages(launch, tmp_path, f"ddp_bucket_mb={megabytes}")
    assert [line["storages"] for line in records["step"]] == [expected] * 2
