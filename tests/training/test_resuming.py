"""A run resumes with the model that it was started with, and with no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import to_yaml
from bsmeta.core.errors import ConfigurationError
from bsmeta.training.checkpoint import Checkpoint
from bsmeta.training.resuming import changed_settings, check_exports, check_optimizer

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


def test_a_folder_written_in_another_way_is_no_changed_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = Checkpoint(tmp_path / "runs/one/checkpoint-2step", 2)
    saved.folder.mkdir(parents=True)
    (saved.folder / "config.yaml").write_text(to_yaml(CausalLMConfig(out_dir="runs/one", seed=1)))
    same = CausalLMConfig(out_dir=str(tmp_path / "runs/one"), seed=2)
    assert changed_settings(saved, same) == {"seed": [1, 2]}
    other = CausalLMConfig(out_dir="runs/two", seed=1)
    assert changed_settings(saved, other) == {"out_dir": ["runs/one", "runs/two"]}


def test_the_best_cannot_be_exported_if_it_may_have_no_model(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        (tmp_path / f"checkpoint-{step}step").mkdir()
        (tmp_path / f"checkpoint-{step}step" / "manifest.json").touch()
    (tmp_path / "checkpoint-2step" / "model").mkdir()
    check_exports(CausalLMConfig(), tmp_path, 6)
    best = CausalLMConfig(keep_best_by="loss", export_best=True)
    check_exports(best, tmp_path, 2)  # those of later steps are set aside
    with pytest.raises(ConfigurationError, match="true: checkpoint-4step in .* have no model/"):
        check_exports(best, tmp_path, 4)


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "checkpoint-2step", 2)
    saved.folder.mkdir()
    (saved.folder / "config.yaml").write_text(to_yaml(CausalLMConfig(optimizer_type="muon")))
    check_optimizer(saved, changed_settings(saved, CausalLMConfig(optimizer_type="muon", seed=1)))
    expected = r"optimizer_type=adamw: .*checkpoint-2step has the state of muon; expected"
    with pytest.raises(ConfigurationError, match=expected):
        check_optimizer(saved, changed_settings(saved, CausalLMConfig()))
