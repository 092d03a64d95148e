"""Rows 1-3, 5, 8, 9, 15 and 19 of the fault matrix: checkpoints that are cut short or damaged."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import xxhash
from _pytest.mark import ParameterSet

from tests.disks import small_disk
from tests.faults.conftest import (
    RESUME,
    Run,
    checkpoints,
    events,
    same_run,
    same_weights,
    status,
)

__all__ = ["small_disk"]

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
PLAIN, ZERO, FSDP = "", "2", "fsdp2"


def mark_slow(value: object) -> ParameterSet:
    return pytest.param(value, marks=pytest.mark.slow)


ENGINES = pytest.mark.parametrize(
    "stage", [PLAIN, mark_slow(ZERO), mark_slow(FSDP)], ids=["ddp", "zero2", "fsdp2"]
)


PHASES = ("begin", "state", "rng", "export", "data", "manifest", "commit", "pruned")


def killed_after_each_phase(
    start: Start, complete: Start, folder: Path, phases: tuple[str, ...], *, stage: str, key: str
) -> None:
    """Kills each resumed run in the next phase of its first save; the last run finishes."""
    whole, killed = folder / "whole", folder / "killed"
    complete(whole, key, stage=stage)
    for phase in phases:
        run = start(killed, key, RESUME, stage=stage, fault=f"kill_after:{phase}:0")
        assert run.wait() != 0
        for name in checkpoints(killed):
            assert name.startswith("tmp-") or (killed / name / "manifest.json").exists()
    complete(killed, key, RESUME, stage=stage)
    assert same_run(killed, whole)
    assert not list(killed.glob("tmp-*"))


@pytest.mark.long
@pytest.mark.parametrize("key", ["async_save=false", mark_slow("async_save=true")])
def test_row_1_a_run_killed_in_a_save_resumes_exactly(
    start: Start, complete: Start, tmp_path: Path, key: str
) -> None:
    phases = ("state", "manifest", "commit")
    killed_after_each_phase(start, complete, tmp_path, phases, stage=PLAIN, key=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("async_save=false", PLAIN),
        ("async_save=false", ZERO),
        ("async_save=false", FSDP),
        ("async_save=true", ZERO),
        ("async_save=true", FSDP),
    ],
)
def test_row_1_a_run_killed_after_any_phase_of_a_save_resumes_exactly(
    start: Start, complete: Start, tmp_path: Path, key: str, stage: str
) -> None:
    killed_after_each_phase(start, complete, tmp_path, PHASES, stage=stage, key=key)


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_byte_less(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero_tail(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-64] + bytes(63) + bytes([content[-1] ^ 1]))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def find_weights_file(checkpoint: Path) -> Path:
    files = [file for file in (checkpoint / "state").rglob("*") if file.is_file()]
    return max(files, key=lambda file: file.stat().st_size)


@pytest.fixture(
    scope="module", params=[PLAIN, mark_slow(ZERO), FSDP], ids=["ddp", "zero2", "fsdp2"]
)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A finished run of each engine, with its checkpoints of steps 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("saved")
    run = Run(folder / "run", processes=2, stage=request.param, fault="none:")
    assert run.wait() == 0, run.errors[-3000:]
    yield request.param, folder / "run"
    shutil.rmtree(folder)


DAMAGES = [*map(mark_slow, (half, one_byte_less, empty, flip_a_bit, Path.unlink)), zero_tail]


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
def test_row_2_a_damaged_checkpoint_is_named_and_the_previous_used(
    complete: Start, tmp_path: Path, saved: tuple[str, Path], damage: Callable[[Path], None]
) -> None:
    stage, whole = saved
    shutil.copytree(whole, tmp_path / "run")
    file = find_weights_file(tmp_path / "run" / "checkpoint-8step")
    damage(file)
    run = complete(tmp_path / "run", RESUME, stage=stage)
    assert str(file) in run.errors
    resumed = events(tmp_path / "run", "resume")
    assert [Path(event["checkpoint"]).name for event in resumed] == ["checkpoint-6step"]
    assert same_run(tmp_path / "run", whole)


def test_row_3_a_resume_with_only_damaged_checkpoints_is_refused(
    start: Start, tmp_path: Path, saved: tuple[str, Path]
) -> None:
    stage, whole = saved
    shutil.copytree(whole, tmp_path / "run")
    names = checkpoints(whole)
    for name in names:
        flip_a_bit(find_weights_file(tmp_path / "run" / name))
    run = start(tmp_path / "run", RESUME, stage=stage)
    assert run.wait() != 0
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert "every checkpoint is damaged" in state["message"]
    message = "configuration error: resume_from_checkpoint_dir=latest: every checkpoint is damaged"
    assert run.errors.count(message) == 1
    assert "Traceback" not in run.errors.split(message)[0]
    assert checkpoints(tmp_path / "run") == names


@pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("async_save=true", PLAIN),
        pytest.param("async_save=false", PLAIN, marks=pytest.mark.slow),
        pytest.param("async_save=false", ZERO, marks=pytest.mark.slow),
        pytest.param("async_save=true", ZERO, marks=pytest.mark.slow),
        pytest.param("async_save=true", FSDP, marks=pytest.mark.slow),
    ],
)
def test_row_5_several_signals_in_a_save_end_the_run_as_preempted(
    start: Start, tmp_path: Path, key: str, stage: str
) -> None:
    keys = (key, "max_train_steps=100000", "save_steps=5")
    run = start(tmp_path / "run", *keys, stage=stage, fault="slow:0.02")
    run.until(lambda: any((tmp_path / "run").glob("tmp-checkpoint-*")))
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        for pid in run.workers():
            with suppress(ProcessLookupError):  # on a busy machine, it may end between two signals
                os.kill(pid, number)
    run.wait()
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("preempted", 75)
    last = f"checkpoint-{state['step']}step"
    assert (tmp_path / "run" / last / "manifest.json").exists()
    assert not list((tmp_path / "run").glob("tmp-*"))


def test_row_8_only_the_last_nth_and_best_checkpoints_are_kept(
    complete: Start, tmp_path: Path
) -> None:
    """Of steps 1 to 8, the last, every third, and the best (evaluated at each step) are kept."""
    complete(
        tmp_path / "run",
        "save_steps=1",
        "eval_steps=1",
        "keep_last_checkpoints=1",
        "keep_every_checkpoint_steps=3",
        "keep_best_by=at_one",
        processes=1,
    )
    evaluations = {event["step"]: event["at_one"] for event in events(tmp_path / "run", "eval")}
    best = min(evaluations, key=lambda step: evaluations[step])
    expected = {f"checkpoint-{step}step" for step in (3, 6, 8, best)}
    assert set(checkpoints(tmp_path / "run")) == expected


SAVES = pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("async_save=false", PLAIN),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("async_save=true", PLAIN),
                ("async_save=false", ZERO),
                ("async_save=true", ZERO),
                ("async_save=false", FSDP),
                ("async_save=true", FSDP),
            )
        ),
    ],
)


@SAVES
def test_row_9_a_full_disk_is_named_and_leaves_an_intact_checkpoint(
    start: Start, small_disk: Path, key: str, stage: str
) -> None:
    keys = (key, "keep_last_checkpoints=0")
    run = start(small_disk / "run", *keys, stage=stage, TOY_WIDTH="3000")
    assert run.wait() != 0
    state = status(small_disk / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert f"{small_disk / 'run'} has" in state["message"]
    assert "checkpoint-2step is intact. Free some space" in state["message"]
    assert checkpoints(small_disk / "run") == ["checkpoint-2step"]


@pytest.mark.long
def test_row_9_a_disk_full_in_the_middle_of_a_save_is_named(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    """No file may exceed 60 kB, so the optimizer of the wide model does not fit."""
    complete(tmp_path / "run", "max_train_steps=2", processes=1, TOY_WIDTH="3000")
    command = 'ulimit -f 60; exec "$@"'
    run = start(
        tmp_path / "run",
        RESUME,
        processes=1,
        TOY_WIDTH="3000",
        wrapper=("bash", "-c", command, "-"),
    )
    assert run.wait() == 2
    message = status(tmp_path / "run")["message"]
    assert f"the disk of {tmp_path / 'run'} is full or its quota used up" in message
    assert "checkpoint-2step is intact. Free some space" in message
    assert "Traceback" not in run.errors
    assert checkpoints(tmp_path / "run") == ["checkpoint-2step"]


@SAVES
def test_row_9_another_failure_of_a_save_is_reported(
    start: Start, tmp_path: Path, key: str, stage: str
) -> None:
    run = start(tmp_path / "run", key, stage=stage, fault="raise_in_save:4")
    assert run.wait() != 0
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 1)
    assert "no such token in the vocabulary" in state["message"]
    assert checkpoints(tmp_path / "run") == ["checkpoint-2step"]


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1], ids=["rehearsal", "step 2"])
@ENGINES
def test_row_9_a_rank_that_is_killed_in_a_save_is_named(
    start: Start, tmp_path: Path, stage: str, number: int
) -> None:
    run = start(tmp_path / "run", stage=stage, fault=f"kill_in_save:{number}:1")
    assert run.wait() != 0
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 1)
    assert "No sign of life from rank 1" in state["message"]


def test_row_9_a_save_needs_no_file_of_the_run_folder(start: Start, tmp_path: Path) -> None:
    out_dir = tmp_path / "run"
    run = start(out_dir, processes=1, fault="slow:0.05")
    run.until((out_dir / "metrics.jsonl").exists)
    (out_dir / "config.yaml").unlink()
    assert run.wait() == 0, run.errors[-3000:]
    assert "save_steps: 2\n" in (out_dir / "checkpoint-8step" / "config.yaml").read_text()


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._proof),)


def reseal(checkpoint: Path, file: Path) -> None:
    """Updates the manifest for a file that has replaced another."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    digest = xxhash.xxh3_128(file.read_bytes()).hexdigest()
    entry = {"bytes": file.stat().st_size, "xxh3": digest}
    manifest["files"][str(file.relative_to(checkpoint))] = entry
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("state/.metadata", PLAIN),
        ("state/__0_0.distcp", FSDP),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("rng/rank0.pt", PLAIN),
                ("state/.metadata", FSDP),
                ("state/__0_0.distcp", PLAIN),
                ("state/__0_0.distcp", ZERO),
            )
        ),
    ],
)
@pytest.mark.parametrize("write", [mark_slow(pickle.dump), torch.save])
def test_row_15_a_malicious_pickle_is_not_run(
    start: Start,
    complete: Start,
    tmp_path: Path,
    file: str,
    stage: str,
    write: Callable[..., None],
) -> None:
    """Even if its checksum was put into the manifest."""
    out_dir, proof = tmp_path / "run", tmp_path / "proof"
    complete(out_dir, "max_train_steps=2", processes=1, stage=stage)
    bad = out_dir / "checkpoint-2step" / file
    with bad.open("wb") as stream:
        write(Malicious(proof), stream)
    reseal(out_dir / "checkpoint-2step", bad)
    assert start(out_dir, RESUME, processes=1, stage=stage).wait() != 0
    assert not proof.exists()


def test_row_15_only_files_that_match_the_manifest_are_read(
    start: Start, tmp_path: Path, saved: tuple[str, Path]
) -> None:
    stage, whole = saved
    out_dir, proof = tmp_path / "run", tmp_path / "proof"
    shutil.copytree(whole, out_dir)
    for name in checkpoints(out_dir):
        with find_weights_file(out_dir / name).open("wb") as stream:
            pickle.dump(Malicious(proof), stream)
    assert start(out_dir, RESUME, stage=stage).wait() != 0
    assert not proof.exists()


def test_row_15_a_file_missing_in_the_manifest_is_refused(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    out_dir, proof = tmp_path / "run", tmp_path / "proof"
    complete(out_dir, "max_train_steps=2", processes=1)
    with (out_dir / "checkpoint-2step" / "state" / "__9_0.distcp").open("wb") as stream:
        pickle.dump(Malicious(proof), stream)
    run = start(out_dir, RESUME, processes=1)
    assert run.wait() != 0
    assert not proof.exists()
    assert "__9_0.distcp: is not listed in manifest.json" in status(out_dir)["message"]


@pytest.mark.parametrize("file", ["rng/rank1.pt", mark_slow("data_state.json")])
def test_row_19_a_missing_state_file_is_named(
    start: Start, tmp_path: Path, saved: tuple[str, Path], file: str
) -> None:
    stage, whole = saved
    shutil.copytree(whole, tmp_path / "run")
    named = tmp_path / "run" / "checkpoint-8step"
    (named / file).unlink()
    run = start(tmp_path / "run", f"resume_from_checkpoint_dir={named}", stage=stage)
    assert run.wait() != 0
    assert f"{file}: is missing" in status(tmp_path / "run")["message"]


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [PLAIN, ZERO, FSDP, *map(mark_slow, ("0", "1", "3"))],
    ids=["ddp", "zero2", "fsdp2", "zero0", "zero1", "zero3"],
)
def test_asynchronous_saves_resume_exactly(complete: Start, tmp_path: Path, stage: str) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    complete(whole, "async_save=true", stage=stage)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoint-8step")
    complete(resumed, "async_save=true", RESUME, stage=stage)
    assert same_run(resumed, whole)
    complete(tmp_path / "sync", "async_save=false", stage=stage)
    for name in (*checkpoints(whole), ""):
        assert same_weights(tmp_path / "sync" / name, whole / name)
    assert [event["step"] for event in events(whole, "save")] == [2, 4, 6, 8]
