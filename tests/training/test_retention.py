"""Room on the disk for checkpoints, and which of them are kept."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.training import checkpoint
from bsmeta.training.checkpoint import DATA, STATE, Checkpoint, Writer, list_checkpoints
from bsmeta.training.processes import ALONE, Processes
from bsmeta.training.saving import KEEP, Retention, check_metric, check_room, explain_full_disk
from bsmeta.training.task import Metric


def begin(out_dir: Path, step: int) -> Writer:
    writer = Writer(out_dir, step, ALONE)
    (writer.folder / "state").mkdir()
    for part in ("state/model.pt", "rng/rank0.pt"):
        (writer.folder / part).write_bytes(b"")
    return writer


def make(out_dir: Path, values: dict[int, float | None], name: str = "bits") -> None:
    for step, value in values.items():
        writer = begin(out_dir, step)
        better = "max" if name == "accuracy" else "min"
        metric = {"name": name, "value": value, "better": better, "split": "validation"}
        evaluation = [] if value is None else [metric]
        writer.write_json(STATE, {"evaluation": evaluation})
        writer.write_json(DATA, {})
        (writer.folder / "config.yaml").write_text("seed: 1\n")
        writer.commit()


def damage(out_dir: Path, *steps: int) -> None:
    for step in steps:
        (out_dir / f"checkpoint-{step}step" / "config.yaml").write_text("seed: 2\n")


def prune(out_dir: Path, config: CausalLMConfig, written: int) -> None:
    Retention(out_dir, config).prune(Checkpoint(out_dir / f"checkpoint-{written}step", written))


def kept(out_dir: Path) -> list[int]:
    return [one.step for one in list_checkpoints(out_dir)]


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
def test_the_last_every_nth_and_the_best_stay(
    tmp_path: Path, config: CausalLMConfig, expected: list[int]
) -> None:
    make(tmp_path, {1: 2.0, 2: 1.0, 3: None, 4: float("nan"), 5: 1.5, 6: 1.2})
    prune(tmp_path, config, written=6)
    assert kept(tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == len(expected)


def test_the_best_by_a_metric_to_maximize_stays(tmp_path: Path) -> None:
    make(tmp_path, {1: 0.2, 2: 0.7, 3: 0.5}, name="accuracy")
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1, keep_best_by="accuracy"), written=3)
    assert kept(tmp_path) == [2, 3]


def test_a_marked_one_stays(tmp_path: Path) -> None:
    make(tmp_path, dict.fromkeys((1, 2, 3)))
    (tmp_path / "checkpoint-1step" / KEEP).touch()
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1), written=3)
    assert kept(tmp_path) == [1, 3]


def test_damaged_ones_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps 40 and 30 are damaged: 10 and 20 are what the run can resume from."""
    make(tmp_path, dict.fromkeys((5, 10, 20, 30, 40, 50)))
    damage(tmp_path, 30, 40)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=3), written=50)
    assert kept(tmp_path) == [10, 20, 30, 40, 50]
    assert "checkpoint-40step is damaged and does not count" in caplog.text


def test_stray_ones_neither_count_nor_are_touched(tmp_path: Path) -> None:
    make(tmp_path, dict.fromkeys((1, 2, 3, 4, 5000)))
    (tmp_path / "checkpoint-6000step").mkdir()
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=2), written=4)
    assert kept(tmp_path) == [3, 4, 5000, 6000]


def test_the_one_resumed_from_and_the_one_just_written_stay(tmp_path: Path) -> None:
    make(tmp_path, dict.fromkeys((10, 20, 30, 40)))
    config = CausalLMConfig(keep_last_checkpoints=1)
    retention = Retention(tmp_path, config)
    retention.protect(Checkpoint(tmp_path / "checkpoint-10step", 10))
    for written in (20, 30, 40):
        retention.prune(Checkpoint(tmp_path / f"checkpoint-{written}step", written))
        assert [step for step in kept(tmp_path) if step <= written] == [10, written]


def test_a_damaged_one_is_not_the_best(tmp_path: Path) -> None:
    make(tmp_path, {1: 1.5, 2: 1.0, 3: 2.0, 4: None})
    damage(tmp_path, 2)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1, keep_best_by="bits"), written=4)
    assert kept(tmp_path) == [1, 4]


def test_one_that_was_verified_is_read_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def problems(saved: Checkpoint, processes: Processes) -> list[str]:
        read.append(saved.step)
        return checkpoint.problems(saved, processes)

    monkeypatch.setattr("bsmeta.training.saving.problems", problems)
    make(tmp_path, dict.fromkeys((1, 2, 3)))
    keep_two = Retention(tmp_path, CausalLMConfig(keep_last_checkpoints=2))
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

    make(tmp_path, dict.fromkeys((1, 2, 3)))
    monkeypatch.setattr(shutil, "rmtree", refuse)
    prune(tmp_path, CausalLMConfig(keep_last_checkpoints=1), written=3)
    assert kept(tmp_path) == [3]
    assert "checkpoint-1step could not be deleted" in caplog.text


def test_a_metric_that_the_evaluation_does_not_have_is_refused() -> None:
    metrics = [Metric("bits", 1.0), Metric("documents", 5.0, better=None)]
    check_metric(None, [])
    check_metric("bits", metrics)
    for unknown in ("bit", "documents"):
        with pytest.raises(ConfigurationError, match=f"keep_best_by={unknown}: .* one of bits"):
            check_metric(unknown, metrics)


Usage = namedtuple("Usage", "total used free")


def write(out_dir: Path, step: int, *, size: int) -> None:
    writer = begin(out_dir, step)
    for file in ("trainer_state.json", "data_state.json"):
        writer.write_json(file, {})
    (writer.folder / "config.yaml").write_bytes(bytes(size - 4))
    writer.commit()


def test_a_save_needs_room_for_the_last_one_and_a_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_050_000))
    check_room(tmp_path)  # nothing is known yet
    write(tmp_path, 4, size=1_000_000)
    write(tmp_path, 8, size=10_000_000)
    (tmp_path / "checkpoint-8step" / "manifest.json").unlink()  # and so of no known size
    (tmp_path / "checkpoint-5000step").mkdir()
    with pytest.raises(DataError) as caught:
        check_room(tmp_path)
    for part in ("1,050 kB free", "one needs 1,100 kB", "checkpoint-4step is intact", "Free some"):
        assert part in str(caught.value)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_200_000))
    check_room(tmp_path)


@pytest.mark.parametrize(("has_model", "needed"), [(True, "3,300 kB"), (False, "1,540 kB")])
def test_a_save_with_a_model_needs_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_model: bool, needed: str
) -> None:
    """As much as the last model has, or else 4 bytes for each of its 100,000 weights."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_200_000))
    writer = begin(tmp_path, 2)
    writer.write_json(STATE, {"parameters": {"a": [200, 400], "b": [20_000]}})
    writer.write_json(DATA, {})
    (writer.folder / "config.yaml").write_bytes(bytes(1_000_000))
    if has_model:
        (writer.folder / "model").mkdir()
        (writer.folder / "model" / "model.safetensors").write_bytes(bytes(2_000_000))
    writer.commit()
    check_room(tmp_path)
    with pytest.raises(DataError, match=f"one needs {needed}"):
        check_room(tmp_path, with_model=True)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_a_full_disk_is_explained(tmp_path: Path, error: Exception) -> None:
    found = explain_full_disk(error, tmp_path)
    assert isinstance(found, DataError)
    assert "resume_from_checkpoint_dir=latest" in str(found)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    error = RuntimeError("shapes do not match")
    assert explain_full_disk(error, tmp_path) is error


def test_a_circle_of_causes_ends(tmp_path: Path) -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert explain_full_disk(one, tmp_path) is one


def test_only_a_checkpoint_that_is_whole_is_called_so(tmp_path: Path) -> None:
    write(tmp_path, 4, size=1000)
    write(tmp_path, 8, size=1000)
    (tmp_path / "checkpoint-8step" / "config.yaml").write_bytes(bytes(500))
    error = explain_full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "checkpoint-4step is intact" in str(error)
    (tmp_path / "checkpoint-4step" / "config.yaml").write_bytes(bytes(500))
    error = explain_full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "There is no intact checkpoint yet" in str(error)
