"""Which checkpoints stay, and that a deletion which fails stops nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.schema import TrainConfig
from bsmeta.training.checkpoint import STATE, found
from bsmeta.training.retention import KEEP, check_figure, prune


def make(out_dir: Path, bits: dict[int, float | None]) -> None:
    for step, value in bits.items():
        folder = out_dir / f"checkpoint-{step}step"
        folder.mkdir()
        evaluation = None if value is None else {"bits": value}
        (folder / STATE).write_text(json.dumps({"evaluation": evaluation}))


def kept(out_dir: Path) -> list[int]:
    return [one.step for one in found(out_dir)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TrainConfig(keep_last_checkpoints=0), [1, 2, 3, 4, 5, 6]),
        (TrainConfig(keep_last_checkpoints=2), [5, 6]),
        (TrainConfig(keep_last_checkpoints=1, keep_every_checkpoint_steps=3), [3, 6]),
        (TrainConfig(keep_last_checkpoints=1, keep_best_by="bits"), [2, 6]),
        (TrainConfig(keep_last_checkpoints=1, keep_best_by="unknown"), [6]),
    ],
)
def test_the_last_every_nth_and_the_best_stay(
    tmp_path: Path, config: TrainConfig, expected: list[int]
) -> None:
    make(tmp_path, {1: 2.0, 2: 1.0, 3: None, 4: float("nan"), 5: 1.5, 6: 1.2})
    prune(tmp_path, config)
    assert kept(tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == len(expected)


def test_a_marked_one_stays(tmp_path: Path) -> None:
    make(tmp_path, dict.fromkeys((1, 2, 3)))
    (tmp_path / "checkpoint-1step" / KEEP).touch()
    prune(tmp_path, TrainConfig(keep_last_checkpoints=1))
    assert kept(tmp_path) == [1, 3]


def test_a_deletion_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(f"{folder} is held")

    make(tmp_path, dict.fromkeys((1, 2, 3)))
    monkeypatch.setattr(shutil, "rmtree", refuse)
    prune(tmp_path, TrainConfig(keep_last_checkpoints=1))
    assert kept(tmp_path) == [3]
    assert "checkpoint-1step could not be deleted" in caplog.text


def test_a_figure_that_the_evaluation_does_not_give_is_refused() -> None:
    check_figure(None, {})
    check_figure("bits", {"bits": 1.0})
    with pytest.raises(ConfigurationError, match="expected one of bits"):
        check_figure("bit", {"bits": 1.0})
