"""A run resumes with the model that it was started with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.manifest import Manifest, describe_file, read_manifest, write_manifest
from bsmeta.training.checkpoints.checkpoint import FORMAT, Checkpoint
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.resuming import (
    check_exports,
    check_optimizer,
    check_task,
    choose_checkpoint,
    find_changed_settings,
    may_resume,
)
from tests.training.written_checkpoints import write_checkpoint

SCRIPT = Path(__file__).with_name("toy_task.py")
RUN = ("trackers=[]", "max_train_steps=2", "num_warmup_steps=1", "save_steps=2")


@pytest.mark.parametrize("stage", [None, pytest.param("2", marks=pytest.mark.slow)])
def test_a_model_of_another_shape_is_refused(
    stage: str | None,
    launch: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    environ = {} if stage is None else {"TOY_ZERO_STAGE": stage}
    out_dir = f"out_dir={tmp_path / 'run'}"
    launch(SCRIPT, *RUN, out_dir, processes=1 if stage is None else 2, **environ)
    resumed = launch(
        SCRIPT, *RUN, out_dir, "resume_from_checkpoint_dir=latest", "max_train_steps=4",
        processes=1 if stage is None else 2, check=False, TOY_WIDTH="16", **environ,
    )  # fmt: skip
    assert "holds a model of another shape (3 of 4 parameters differ):" in resumed.stderr
    assert "0.weight: [8, 2] in the checkpoint, [16, 2] now" in resumed.stderr
    if stage is None:  # torchrun prints a traceback of its own
        assert "Traceback" not in resumed.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)


def test_the_latest_checkpoint_is_the_newest_intact_one(tmp_path: Path) -> None:
    assert choose_checkpoint("latest", tmp_path, ALONE) is None
    write_checkpoint(tmp_path, 9)
    (write_checkpoint(tmp_path, 10) / "manifest.json").write_text("{")
    newest = choose_checkpoint("latest", tmp_path, ALONE)
    assert newest == Checkpoint(tmp_path / "checkpoint-9step", 9)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_afresh(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, 3) / "manifest.json").write_text("{")
    with pytest.raises(ConfigurationError, match="every checkpoint is damaged"):
        choose_checkpoint("latest", tmp_path, ALONE)


def test_a_named_checkpoint_must_be_one_and_intact(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a checkpoint folder"):
        choose_checkpoint(str(tmp_path), tmp_path, ALONE)

    folder = write_checkpoint(tmp_path, 2)
    assert choose_checkpoint(str(folder), tmp_path, ALONE) == Checkpoint(folder, 2)
    (folder / "state" / "weights").unlink()
    with pytest.raises(ConfigurationError, match="it is damaged; .*\n.*state/weights"):
        choose_checkpoint(str(folder), tmp_path, ALONE)


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-2step"
    folder.mkdir()
    (folder / "config.yaml").write_text("task: classification\n")
    with pytest.raises(ConfigurationError) as error:
        check_task(Checkpoint(folder, 2), "causal_lm")
    assert str(error.value) == (
        f"{folder} is a checkpoint of task=classification, this run has task=causal_lm; expected a "
        "checkpoint of the same task, or another out_dir for this run"
    )
    (folder / "config.yaml").write_text("task: causal_lm\n")
    check_task(Checkpoint(folder, 2), "causal_lm")


def test_the_task_is_compared_before_the_launch(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    out_dir = f"out_dir={tmp_path / 'run'}"
    launch(SCRIPT, *RUN, out_dir)
    saved = tmp_path / "run" / "checkpoint-2step"
    config = yaml.safe_load((saved / "config.yaml").read_text())
    (saved / "config.yaml").write_text(yaml.safe_dump(config | {"task": "other"}))
    state = json.loads((saved / "trainer_state.json").read_text())
    (saved / "trainer_state.json").write_text(json.dumps(state | {"global_batch": 3}))
    files = [path.relative_to(saved) for path in saved.rglob("*") if path.is_file()]
    described = {
        str(file): describe_file(saved / file) for file in files if file.name != "manifest.json"
    }
    write_manifest(saved, Manifest(FORMAT, described, 2))
    resumed = launch(SCRIPT, *RUN, out_dir, "resume_from_checkpoint_dir=latest", check=False)
    assert resumed.returncode == 2
    assert f"{saved} is a checkpoint of task=other, this run has task=" in resumed.stderr
    assert "rows a step" not in resumed.stderr


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("state/engine.json", b"{", "JSONDecodeError"),
        ("state/.metadata", b"\x80\x04K\x01.", "ValueError"),
        ("trainer_state.json", b"{", "JSONDecodeError"),
        ("data_state.json", b'"\xff"', "UnicodeDecodeError"),
    ],
)
def test_a_forged_state_ends_the_run_with_its_name(
    file: str,
    content: bytes,
    reason: str,
    launch: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Although the manifest matches the content; without a traceback."""
    out_dir = f"out_dir={tmp_path}/run"
    launch(SCRIPT, *RUN, out_dir)
    saved = tmp_path / "run" / "checkpoint-2step"
    (saved / file).write_bytes(content)
    entries = {name: describe_file(saved / name) for name in read_manifest(saved).files}
    write_manifest(saved, Manifest(FORMAT, entries, 2))
    resume = ("resume_from_checkpoint_dir=latest", "max_train_steps=4")
    resumed = launch(SCRIPT, *RUN, out_dir, *resume, check=False)
    assert resumed.returncode == 1
    assert f"error: {saved / file}: cannot be read ({reason}: " in resumed.stderr
    assert "Traceback" not in resumed.stderr


def test_an_equivalent_path_is_not_a_changed_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = Checkpoint(tmp_path / "runs/one/checkpoint-2step", 2)
    saved.folder.mkdir(parents=True)
    (saved.folder / "config.yaml").write_text(
        format_yaml(CausalLMConfig(out_dir="runs/one", seed=1))
    )
    same = CausalLMConfig(out_dir=str(tmp_path / "runs/one"), seed=2)
    assert find_changed_settings(saved, same) == {"seed": [1, 2]}
    other = CausalLMConfig(out_dir="runs/two", seed=1)
    assert find_changed_settings(saved, other) == {"out_dir": ["runs/one", "runs/two"]}


def test_exporting_the_best_is_refused_if_it_may_have_no_model(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        (tmp_path / f"checkpoint-{step}step").mkdir()
        (tmp_path / f"checkpoint-{step}step" / "manifest.json").touch()
    (tmp_path / "checkpoint-2step" / "model").mkdir()
    check_exports(tmp_path, 2)  # those of later steps are set aside
    with pytest.raises(ConfigurationError, match="true: checkpoint-4step in .* have no model/"):
        check_exports(tmp_path, 4)


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "checkpoint-2step", 2)
    saved.folder.mkdir()
    (saved.folder / "config.yaml").write_text(format_yaml(CausalLMConfig(optimizer_type="muon")))
    check_optimizer(
        saved, find_changed_settings(saved, CausalLMConfig(optimizer_type="muon", seed=1))
    )
    expected = r"optimizer_type=adamw: .*checkpoint-2step has the state of muon; expected"
    with pytest.raises(ConfigurationError, match=expected):
        check_optimizer(saved, find_changed_settings(saved, CausalLMConfig()))


def test_a_checkpoint_of_another_run_only_begins_a_new_run(tmp_path: Path) -> None:
    """Until the first save, the same command restarts the run; a wrong path loses nothing."""
    own, other = tmp_path / "own", tmp_path / "other"
    (other / "checkpoint-4step").mkdir(parents=True)
    own.mkdir()

    def answer(named: str | None) -> bool:
        return may_resume(named, own.resolve())

    assert (answer(None), answer("latest"), answer(f"{other}/checkpoint-4step")) == (
        False, True, True,
    )  # fmt: skip
    (own / "checkpoint-2step").mkdir()
    assert answer(f"{own}/checkpoint-2step")
    assert not answer(f"{other}/checkpoint-4step")
    assert answer(f"{other}/checkpoint-5step")
