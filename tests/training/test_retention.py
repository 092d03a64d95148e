"""Room on the disk for checkpoints, and which of them are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.checkpoints.checkpoint import (
    DATA_STATE_FILE,
    TRAINER_STATE_FILE,
    Checkpoint,
    Writer,
    list_checkpoints,
)
from bsmeta.training.ranks.processes import ALONE, Processes
from bsmeta.training.retention import KEEP_FILE, Retention, check_metric
from bsmeta.training.task import Metric


def begin(out_dir: Path, step: int) -> Writer:
    writer = Writer(out_dir, step, ALONE)
    (writer.folder / "state").mkdir()
    for part in ("state/model.pt", "rng/rank0.pt"):
        (writer.folder / part).write_bytes(b"")
    return writer


def make_checkpoints(out_dir: Path, values: dict[int, float | None], name: str = "bits") -> None:
    for step, value in values.items():
        writer = begin(out_dir, step)
        better = "max" if name == "accuracy" else "min"
        metric = {"name": name, "value": value, "better": better, "split": "validation"}
        evaluation = [] if value is None else [metric]
        writer.write_json(TRAINER_STATE_FILE, {"evaluation": evaluation})
        writer.write_json(DATA_STATE_FILE, {})
        (writer.folder / "config.yaml").write_text("seed: 1\n")
        writer.commit()


def damage(out_dir: Path, *steps: int) -> None:
    for step in steps:
        (out_dir / f"checkpoint-{step}step" / "config.yaml").write_text("seed: 2\n")


def make_retention(out_dir: Path, config: CausalLMConfig) -> Retention:
    return Retention(
        out_dir,
        keep_last=config.keep_last_checkpoints,
        keep_every=config.keep_every_checkpoint_steps,
        keep_best_by=config.keep_best_by,
    )


def prune(out_dir: Path, config: CausalLMConfig, written: int) -> None:
    make_retention(out_dir, config).prune(
        Checkpoint(out_dir / f"checkpoint-{written}step", written)
    )


def list_steps(out_dir: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(out_dir)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CausalLMConfig(keep_last_checkpoints=0), [1, 2, 3, 4, 5, 6]),
        (CausalLMConfig(keep_last_checkpoints=2), [5, 6]),
        (CausalLMConfig(keep_last_checkpoints=1, keep_every_checkpoint_steps=3), [3, 6]),
        (CausalLMConfig(keep_last_checkpoints=1, keep_best_by="bits"), [2, 6]),
        (CausalLMConfig(keep_last_checkpoints=1, keep_best_by="unknown"), [6]),
    ],
)
def test_the_last_every_nth_and_the_best_checkpoints_are_kept(
    tmp_path: Path, config: CausalLMConfig, expected: list[int]
) -> None:
    make_checkpoints(tmp_path, {1: 2.0, 2: 1.0, 3: None, 4: float("nan"), 5: 1.5, 6: 1.2})
    prune(tmp_path, config, written=6)
    assert list_steps(tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == len(expected)


def test_the_best_by_a_metric_to_maximize_is_kept(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, {1: 0.2, 2: 0.7, 3: 0.5}, name="accuracy")
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1, keep_best_by="accuracy"), written=3)
    assert list_steps(tmp_path) == [2, 3]


def test_a_marked_checkpoint_is_kept(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, dict.fromkeys((1, 2, 3)))
    (tmp_path / "checkpoint-1step" / KEEP_FILE).touch()
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1), written=3)
    assert list_steps(tmp_path) == [1, 3]


def test_damaged_checkpoints_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps 40 and 30 are damaged, so the run can resume from 10 and 20."""
    make_checkpoints(tmp_path, dict.fromkeys((5, 10, 20, 30, 40, 50)))
    damage(tmp_path, 30, 40)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=3), written=50)
    assert list_steps(tmp_path) == [10, 20, 30, 40, 50]
    assert "checkpoint-40step is damaged and does not count" in caplog.text


def test_other_entries_neither_count_nor_are_deleted(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, dict.fromkeys((1, 2, 3, 4, 5000)))
    (tmp_path / "checkpoint-6000step").mkdir()
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=2), written=4)
    assert list_steps(tmp_path) == [3, 4, 5000, 6000]


def test_the_checkpoint_resumed_from_and_the_newest_are_kept(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, dict.fromkeys((10, 20, 30, 40)))
    config = CausalLMConfig(keep_last_checkpoints=1)
    retention = make_retention(tmp_path, config)
    retention.protect(Checkpoint(tmp_path / "checkpoint-10step", 10))
    for written in (20, 30, 40):
        retention.prune(Checkpoint(tmp_path / f"checkpoint-{written}step", written))
        assert [step for step in list_steps(tmp_path) if step <= written] == [10, written]


def test_a_damaged_checkpoint_is_not_the_best(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, {1: 1.5, 2: 1.0, 3: 2.0, 4: None})
    damage(tmp_path, 2)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1, keep_best_by="bits"), written=4)
    assert list_steps(tmp_path) == [1, 4]


def test_a_verified_checkpoint_is_read_again_only_if_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def problems(saved: Checkpoint, processes: Processes) -> list[str]:
        read.append(saved.step)
        return checkpoint.list_faults(saved, processes)

    monkeypatch.setattr("bsmeta.training.retention.list_faults", problems)
    make_checkpoints(tmp_path, dict.fromkeys((1, 2, 3)))
    keep_two = make_retention(tmp_path, CausalLMConfig(keep_last_checkpoints=2))
    keep_two.prune(Checkpoint(tmp_path / "checkpoint-3step", 3))
    assert read == [2]
    keep_two.prune(Checkpoint(tmp_path / "checkpoint-3step", 3))
    assert read == [2]
    damage(tmp_path, 2)
    keep_two.prune(Checkpoint(tmp_path / "checkpoint-3step", 3))
    assert read == [2, 2]


def test_a_deletion_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(f"{folder} is held")

    make_checkpoints(tmp_path, dict.fromkeys((1, 2, 3)))
    monkeypatch.setattr(shutil, "rmtree", refuse)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1), written=3)
    assert list_steps(tmp_path) == [3]
    assert "checkpoint-1step could not be deleted" in caplog.text


def test_a_metric_that_the_evaluation_does_not_have_is_refused() -> None:
    metrics = [Metric("bits", 1.0), Metric("documents", 5.0, better=None)]
    check_metric(None, [])
    check_metric("bits", metrics)
    for unknown in ("bit", "documents"):
        with pytest.raises(ConfigurationError, match=f"keep_best_by={unknown}: .* one of bits"):
            check_metric(unknown, metrics)
