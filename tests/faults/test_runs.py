"""Rows 4, 6, 7, 11, 13, 14, 16, 18, 20 and 21 of the fault matrix: runs that are disturbed."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.faults.conftest import (
    RESUME,
    Run,
    checkpoints,
    documents,
    events,
    list_metrics,
    same_run,
    same_weights,
    status,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
TRAIN = REPOSITORY / "bsmeta" / "train.py"
STAGES = {"": "ddp", "1": "zero1", "2": "zero2", "3": "zero3", "fsdp2": "fsdp2"}


def all_stages(*quick: str, among: Sequence[str] = (*STAGES,)) -> pytest.MarkDecorator:
    """Returns the engines; engines not named as quick are in slow tests only."""
    found = [
        pytest.param(stage, id=STAGES[stage], marks=[] if stage in quick else [pytest.mark.slow])
        for stage in among
    ]
    return pytest.mark.parametrize("stage", found)


ENGINES = all_stages("", "2", among=("", "2", "fsdp2"))
ZERO2 = all_stages("2", among=("", "2", "fsdp2"))


@ZERO2  # data parallel: test_signals
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGUSR1,
        *(
            pytest.param(number, marks=pytest.mark.slow)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        ),
    ],
)
def test_row_4_a_signal_to_one_rank_saves_and_ends_all(
    start: Start, complete: Start, tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    long = ("max_train_steps=24", "save_steps=20")
    run = start(stopped, *long, stage=stage, fault="slow:0.15")
    run.until(lambda: (stopped / "metrics.jsonl").exists() and len(list_metrics(stopped)) >= 3)
    os.kill(run.workers()[-1], number)
    run.wait()
    state = status(stopped)
    assert (state["state"], state["exit_code"]) == ("preempted", 75)
    assert checkpoints(stopped) == [f"checkpoint-{state['step']}step"]
    assert events(stopped, "stop")[0]["step"] == state["step"]
    complete(stopped, *long, RESUME, stage=stage)
    complete(whole, *long, stage=stage)
    assert same_run(stopped, whole)


@pytest.mark.long
@ZERO2  # data parallel: tests/training/test_trainer.py
def test_row_6_a_resumed_run_equals_an_uninterrupted_run(
    complete: Start, tmp_path: Path, stage: str
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    complete(whole, stage=stage)
    shutil.copytree(whole, resumed)
    for step in (6, 8):
        shutil.rmtree(resumed / f"checkpoint-{step}step")
    complete(resumed, RESUME, stage=stage)
    assert same_run(resumed, whole)


@pytest.mark.long
@all_stages("fsdp2")  # data parallel: test_language_model
def test_row_6_checkpoints_without_a_model_resume_the_same_run(
    start: Start, complete: Start, tmp_path: Path, stage: str
) -> None:
    whole, killed, alone = tmp_path / "whole", tmp_path / "killed", tmp_path / "alone"
    complete(whole, "keep_last_checkpoints=0", stage=stage)
    keys = ("keep_last_checkpoints=0", "export_steps=4", "async_save=true")
    run = start(killed, *keys, stage=stage, fault="hang:7:1")
    run.until((killed / "checkpoint-6step").exists)
    run.end()
    complete(killed, *keys, RESUME, stage=stage)
    assert [event["step"] for event in events(killed, "resume")] == [6]
    assert same_run(killed, whole)
    found = {step: (killed / f"checkpoint-{step}step/model").exists() for step in (2, 4, 6, 8)}
    assert found == {2: False, 4: True, 6: False, 8: True}
    # With nothing left to train, a resume only writes the model.
    saved = f"resume_from_checkpoint_dir={killed / 'checkpoint-6step'}"
    complete(alone, saved, "max_train_steps=6", stage=stage)
    assert same_weights(alone, whole / "checkpoint-6step")
    assert list_metrics(alone) == {}


@pytest.mark.parametrize(
    ("stage", "processes", "accumulation"),
    [
        ("", 4, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("", 3, 2), ("", 3, 1), ("2", 4, 2), ("fsdp2", 4, 2))
        ),
    ],
    ids=["ddp-4", "ddp-3", "ddp-3-at-once", "zero2-4", "fsdp2-4"],
)
def test_row_6_the_first_step_after_a_resume_has_the_same_gradients(
    complete: Start, tmp_path: Path, stage: str, processes: int, accumulation: int
) -> None:
    """Gradients of more than two ranks are summed in the same order as without a resume."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    keys = ("max_train_steps=4", "save_steps=2", "eval_steps=0")
    keys += (f"gradient_accumulation_steps={accumulation}",)
    named = {"stage": stage, "processes": processes, "TOY_WIDTH": "4096"}
    complete(whole, *keys, **named)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoint-4step")
    complete(resumed, *keys, RESUME, **named)
    assert same_run(resumed, whole)


@pytest.mark.long
@all_stages("", "fsdp2")
def test_row_7_two_one_and_four_processes_continue_the_same_run(
    complete: Start, tmp_path: Path, stage: str
) -> None:
    """The global batch of 8 sequences, from the checkpoints of steps 4 and 6."""
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    keys = {"stage": stage, "TOY_DROPOUT": "0"}
    complete(whole, **keys)
    shutil.copytree(whole, changed)
    for step, processes in ((4, 1), (6, 4)):
        for name in checkpoints(changed):
            if int(name[len("checkpoint-") : -len("step")]) > step:
                shutil.rmtree(changed / name)
        accumulation = f"gradient_accumulation_steps={4 // processes}"
        complete(changed, RESUME, accumulation, processes=processes, **keys)
    assert documents(changed) == documents(whole)
    for step, (loss, rate) in list_metrics(whole).items():
        assert list_metrics(changed)[step][1] == rate
        assert list_metrics(changed)[step][0] == pytest.approx(loss, rel=1e-3)
    assert not list(changed.glob("tmp-*"))


def test_row_7_another_global_batch_is_refused(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    complete(tmp_path, "max_train_steps=2", processes=1)
    run = start(tmp_path, RESUME, "gradient_accumulation_steps=3", processes=1)
    assert run.wait() == 2
    assert "trained with 4 rows a step, this launch makes 6" in run.errors


def state_files(out_dir: Path, step: int) -> dict[str, bytes]:
    """Returns the content of the files with weights and optimizer after a step."""
    folder = out_dir / f"checkpoint-{step}step" / "state"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name[0] != "."}


@all_stages("", "fsdp2")
def test_row_11_a_nan_on_one_rank_is_skipped_by_all(
    complete: Start, tmp_path: Path, stage: str
) -> None:
    keys = ("on_nonfinite=skip", "save_steps=1", "keep_last_checkpoints=0")
    complete(tmp_path, *keys, stage=stage, fault="nan:3:1")
    if stage in ("", "fsdp2"):  # DeepSpeed also saves how many steps it has skipped
        assert state_files(tmp_path, 2) == state_files(tmp_path, 3) != state_files(tmp_path, 4)
    assert [event["step"] for event in events(tmp_path, "nonfinite")] == [3]
    assert sorted(list_metrics(tmp_path)) == [1, 2, 4, 5, 6, 7, 8]
    for rank in (0, 1):
        report = json.loads((tmp_path / f"nonfinite-step3-rank{rank}.json").read_text())
        found = [name for part in report["micro_batches"] for name in part["documents"]]
        assert len(found) == 4
        assert set(found) <= set(documents(tmp_path)[3])
        sums = [float(part["loss_sum"]) for part in report["micro_batches"]]
        assert all(math.isnan(value) for value in sums) == (rank == 1)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


@pytest.mark.parametrize(
    "stage",
    ["", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("0", "2", "fsdp2"))],
    ids=["ddp", "zero0", "zero2", "fsdp2"],
)
def test_row_11_a_nan_on_one_rank_stops_all(start: Start, tmp_path: Path, stage: str) -> None:
    assert start(tmp_path, stage=stage, fault="nan:3:1").wait() != 0
    state = status(tmp_path)
    assert (state["state"], state["exit_code"], state["step"]) == ("failed", 1, 2)
    assert "step 3: loss nan" in state["message"]
    assert checkpoints(tmp_path) == ["checkpoint-2step"]
    assert (tmp_path / "nonfinite-step3-rank1.json").exists()


def test_row_11_too_many_skips_in_a_row_end_the_run(start: Start, tmp_path: Path) -> None:
    keys = ("on_nonfinite=skip", "max_consecutive_skips=2")
    assert start(tmp_path, *keys, processes=1, fault="nan_from:3").wait() == 1
    assert "3 such steps in a row" in status(tmp_path)["message"]


@pytest.mark.parametrize(
    "stage", ["", pytest.param("fsdp2", marks=pytest.mark.slow)], ids=["ddp", "fsdp2"]
)
def test_row_11_a_spike_rolls_back_and_skips_the_data(
    complete: Start, tmp_path: Path, stage: str
) -> None:
    """The spike of step 7 rolls back to step 6, and step 7 is repeated with later documents."""
    keys = ("loss_spike_deviations=20", "loss_spike_window=4", "learning_rate=0.001")
    complete(tmp_path / "run", *keys, stage=stage, fault="spike:7")
    assert [(e["step"], e["to_step"]) for e in events(tmp_path / "run", "rollback")] == [(7, 6)]
    per_step = documents(tmp_path / "run")
    assert len(per_step[7]) == 16  # what was left out, and what was taken in its place
    assert len(per_step[8]) == 8
    every = [name for names in per_step.values() for name in names]
    assert sorted(every, key=lambda n: int(n.split(":")[1])) == [f"toy:{g}" for g in range(72)]


def test_row_11_a_new_loss_level_before_the_first_checkpoint_is_one_spike(
    complete: Start, tmp_path: Path
) -> None:
    keys = ("loss_spike_deviations=20", "loss_spike_window=4", "save_steps=0")
    complete(tmp_path, *keys, processes=1, fault="spike:5,6,7,8")
    assert [(e["step"], e["has_checkpoint"]) for e in events(tmp_path, "spike")] == [(5, False)]


def test_row_10_ranks_that_read_other_data_are_refused(start: Start, tmp_path: Path) -> None:
    """As when a branch of the Hub moves between the listings of two ranks."""
    assert start(tmp_path, fault="other_data::1").wait() != 0
    state = status(tmp_path)
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert "rank 0 and rank 1 do not have the same training data" in state["message"]
    assert "\n  shards: absent on rank 0, {'a.jsonl.gz': 5} on rank 1" in state["message"]


def test_row_13_a_killed_loader_process_is_named(start: Start, tmp_path: Path) -> None:
    run = start(tmp_path, "max_train_steps=100000", processes=2, fault="loader_kill:5:1")
    assert run.wait() != 0
    message = status(tmp_path)["message"]
    assert "rank 1: a loader process died" in message
    assert "killed by signal: Killed" in message or "exited unexpectedly" in message


@pytest.mark.slow
def test_row_13_an_error_in_a_loader_process_is_named(start: Start, tmp_path: Path) -> None:
    run = start(tmp_path, "max_train_steps=100000", processes=2, fault="loader_raise:5:1")
    assert run.wait() != 0
    assert "rank 1: " in status(tmp_path)["message"]
    assert "DataLoader worker process 0" in status(tmp_path)["message"]


@ENGINES
@pytest.mark.parametrize("kind", ["kill", pytest.param("exit", marks=pytest.mark.slow)])
def test_row_14_a_dead_rank_ends_the_job(
    start: Start, tmp_path: Path, stage: str, kind: str
) -> None:
    run = start(tmp_path, stage=stage, fault=f"{kind}:5:1")
    assert run.wait() != 0
    state = status(tmp_path)
    assert (state["state"], state["exit_code"]) == ("failed", 1)
    assert "No sign of life from rank 1" in state["message"]


@pytest.mark.slow
def test_row_14_a_dead_rank_0_is_named_by_another(start: Start, tmp_path: Path) -> None:
    assert start(tmp_path, fault="kill:5:0").wait() != 0
    assert status(tmp_path)["state"] == "failed"
    assert "No sign of life from rank 0" in status(tmp_path)["message"]


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize("kind", ["stop", "hang"])
def test_row_14_a_stuck_rank_ends_the_job(
    start: Start, tmp_path: Path, stage: str, kind: str
) -> None:
    """A stopped process is silent; a hanging process still shows its stacks."""
    run = start(tmp_path, "distributed_timeout_s=60", stage=stage, fault=f"{kind}:5:1")
    assert run.wait() != 0
    state = status(tmp_path)
    assert state["state"] == "failed"
    named = {"stop": "No sign of life from rank 1", "hang": "progress: rank 1"}[kind]
    assert named in state["message"] or named in run.errors
    stacks = "".join(file.read_text() for file in tmp_path.glob("stacks-rank*.txt"))
    assert kind == "stop" or "in die" in stacks


@pytest.mark.long
def test_row_14_a_stop_does_not_wait_long_for_a_silent_rank(start: Start, tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in native code, where no Python handler of a signal can run."""
    run = start(tmp_path, fault="stop:5:1")
    run.until(lambda: (tmp_path / "metrics.jsonl").exists() and len(list_metrics(tmp_path)) == 4)
    ranks = run.workers()
    wait_until(lambda: psutil.Process(ranks[1]).status() == psutil.STATUS_STOPPED)
    os.kill(ranks[0], signal.SIGTERM)
    wait_until(lambda: status(tmp_path)["state"] != "running")
    os.kill(ranks[1], signal.SIGKILL)
    assert run.wait() != 0
    state = status(tmp_path)
    assert (state["state"], state["exit_code"]) == ("failed", 1)
    assert state["message"].startswith("asked to stop, but no progress for 20 s in: step 5: ")
    assert "No sign of life from rank 1" in state["message"]


def without(secrets: Iterable[str], folder: Path) -> set[str]:
    """Returns the names of the files below a folder; fails if one contains a secret."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        for value in secrets:
            assert value.encode() not in file.read_bytes(), file
    return {file.name for file in files}


@pytest.mark.long
def test_row_16_secrets_of_the_command_line_reach_no_file(start: Start, tmp_path: Path) -> None:
    """Neither Hydra's files about many runs, nor the command line kept by trackers."""
    secrets = {"HF_TOKEN": "hf-secret-of-a-test", "WANDB_API_KEY": "wandb-secret-" + 40 * "0"}
    installed = [name for name in ("tensorboard", "wandb") if find_spec(name)]
    keys = [f"model_name={secrets['HF_TOKEN']}", "tokenizer_name=hf_abcdefghijklmnopqrstuvwx"]
    keys += [f"trackers=[{','.join(installed)}]", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    run = start(
        tmp_path, "seed=1,2", f"out_dir='{tmp_path}/run${{seed}}'", *keys,
        options=("-m",), processes=1, fault="tell:", WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path), **secrets,
    )  # fmt: skip
    assert run.wait() == 0, run.errors[-3000:]
    names = without([*secrets.values(), "hf_abcdefghijklmnopqrstuvwx"], tmp_path)
    assert {"multirun.yaml", "config.yaml", "command_line.json"} <= names
    assert "overrides.yaml" not in names
    command_line = json.loads((tmp_path / "run2" / "model" / "command_line.json").read_text())
    assert {"model_name=[redacted]", "tokenizer_name=[redacted]", "seed=1,2"} <= set(command_line)


def test_row_16_secrets_reach_no_file(start: Start, tmp_path: Path) -> None:
    secrets = {"HF_TOKEN": "hf-secret-of-a-test", "WANDB_API_KEY": "wandb-secret-of-a-test"}
    out_dir = tmp_path / "run"
    keys = [f"model_name={secrets['HF_TOKEN']}", f"tokenizer_name={secrets['WANDB_API_KEY']}"]
    keys.append("trackers=[tensorboard]")
    run = start(out_dir, *keys, processes=1, fault="raise:5", **secrets)
    assert run.wait() == 1
    assert "config.yaml" in without(secrets.values(), out_dir)
    assert "[redacted]" in status(out_dir)["message"]
    assert not any(value in run.errors for value in secrets.values())


@pytest.mark.parametrize(
    "override", ["run_name=../../elsewhere", "out_dir=a=b", "+_target_=os.system", "run_name=.."]
)
def test_row_18_names_that_leave_their_folder_are_refused(
    start: Start, tmp_path: Path, override: str
) -> None:
    demo = ("--config-name", "demo")
    run = start(tmp_path / "run", override, options=demo, processes=1, script=TRAIN)
    assert run.wait() == 2
    assert "configuration error" in run.errors


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [causal_lm_config]\nmodel_name: !!python/object/apply:os.mkdir ['{proof}']\n",
        "defaults: [causal_lm_config]\ndata_config: {{_target_: os.mkdir, path: '{proof}'}}\n",
        "defaults: [causal_lm_config]\n_target_: os.mkdir\npath: '{proof}'\n",
    ],
)
def test_row_18_yaml_runs_no_code(start: Start, tmp_path: Path, text: str) -> None:
    proof = tmp_path / "proof"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "bad.yaml").write_text(text.format(proof=proof))
    bad = ("--config-dir", str(tmp_path / "configs"), "--config-name", "bad")
    run = start(tmp_path / "run", options=bad, processes=1, script=TRAIN)
    assert run.wait() == 2, run.errors
    assert not proof.exists()


@pytest.mark.long
@pytest.mark.parametrize("key", ["async_save=false", "async_save=true"])
def test_row_21_a_folder_deleted_during_the_run_is_rebuilt(
    complete: Start, tmp_path: Path, key: str
) -> None:
    """No logged line is lost, and later steps are saved."""
    whole = tmp_path / "whole"
    complete(whole, key)
    for kind in ("delete_folder", "empty_folder"):
        deleted = tmp_path / kind
        run = complete(deleted, key, fault=f"{kind}:5:0")
        assert same_run(deleted, whole)
        assert "was deleted during the run; it was rebuilt" in run.errors
        # An asynchronous save of step 4 is written again.
        assert set(checkpoints(deleted)) - {"checkpoint-4step"} == {
            "checkpoint-6step", "checkpoint-8step"
        }  # fmt: skip
        assert status(deleted) == status(whole)
        assert {".bsmeta-run", ".lock", "config.yaml"} <= {file.name for file in deleted.iterdir()}
        assert [event["step"] for event in events(deleted, "save")] == [2, 4, 6, 8]
        for rank in (0, 1):
            assert f"rank {rank} of 2 on " in (deleted / f"log-rank{rank}.txt").read_text()


@pytest.mark.parametrize("key", ["async_save=false", "async_save=true"])
@pytest.mark.parametrize("kind", ["delete_in_save", "delete_model_in_save"])
def test_row_21_a_save_survives_the_deletion_of_the_folder(
    complete: Start, tmp_path: Path, kind: str, key: str
) -> None:
    """The save is restarted if a single process writes it."""
    whole, deleted = tmp_path / "whole", tmp_path / "deleted"
    complete(whole, key, processes=1)
    complete(deleted, key, processes=1, fault=f"{kind}:4")
    assert same_run(deleted, whole)
    assert checkpoints(deleted) == [f"checkpoint-{step}step" for step in (4, 6, 8)]
    assert [event["step"] for event in events(deleted, "save")] == [2, 4, 6, 8]


def test_row_21_a_failure_after_the_deletion_is_still_reported(
    start: Start, tmp_path: Path
) -> None:
    run = start(tmp_path / "run", processes=1, fault="delete_and_raise:5")
    assert run.wait() == 1
    assert sorted(list_metrics(tmp_path / "run")) == [1, 2, 3, 4]
    assert status(tmp_path / "run")["state"] == "failed"
    assert "RuntimeError: lost" in (tmp_path / "run" / "log-rank0.txt").read_text()


def test_row_20_a_second_run_in_a_folder_is_refused(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    first = start(tmp_path, "max_train_steps=100000", processes=1, fault="slow:0.05")
    first.until((tmp_path / "metrics.jsonl").exists)
    second = start(tmp_path, RESUME, processes=1)
    assert second.wait() == 2
    assert "held by another run" in second.errors
    assert first.process.poll() is None


@pytest.fixture(scope="module")
def no_locks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that makes every lock succeed, as on some network file systems."""
    folder = tmp_path_factory.mktemp("no-locks")
    source = folder / "no_locks.c"
    source.write_text("int flock(int file, int operation) { return 0; }\n")
    library = folder / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.mark.long
def test_row_20_without_working_locks_the_first_run_ends_itself(
    start: Start, tmp_path: Path, no_locks: str
) -> None:
    endless = ("max_train_steps=100000", "save_steps=4")
    first = start(tmp_path, *endless, processes=1, fault="slow:0.05")
    first.until(lambda: checkpoints(tmp_path) != [])
    second = start(
        tmp_path, *endless, RESUME, processes=1, fault="slow:0.05", cold=True, LD_PRELOAD=no_locks
    )
    assert first.wait() == 1
    assert f"{tmp_path} is also used by the run of process {second.process.pid} on " in first.errors
    assert second.process.poll() is None
    assert status(tmp_path)["state"] == "running"
