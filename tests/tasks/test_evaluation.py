"""The models of an evaluation are located, and belong to one task."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.evaluation import evaluate_checkpoints, locate_models
from tests.conftest import REPOSITORY

MODEL = REPOSITORY / "examples" / "model" / "config.json"


def make_run(folder: Path, task: str) -> str:
    """Makes a run folder with a model that is never loaded."""
    (folder / "model").mkdir(parents=True)
    shutil.copy(MODEL, folder / "model" / "config.json")
    (folder / "config.yaml").write_text(f"task: {task}\n")
    (folder / "metrics.jsonl").touch()
    return str(folder)


def test_models_are_located_in_the_given_order(tmp_path: Path) -> None:
    names = [make_run(tmp_path / name, "causal_lm") for name in ("b", "a")]
    locations = locate_models(EvaluateConfig(checkpoint=names, untrained=True))
    assert [location.name for location in locations[:2]] == names
    assert [location.untrained for location in locations] == [False, False, True]


@pytest.mark.parametrize("checkpoint", [[], 5, ["a", 5], {"a": 1}])
def test_anything_except_names_is_refused(checkpoint: object) -> None:
    with pytest.raises(ConfigurationError, match="expected a name or a list of them"):
        locate_models(EvaluateConfig(checkpoint=checkpoint))


def test_models_of_two_tasks_are_not_compared(tmp_path: Path) -> None:
    names = [make_run(tmp_path / task, task) for task in ("causal_lm", "classification")]
    message = r"expected checkpoints of one task; found .* \(causal_lm\), .* \(classification\)"
    with pytest.raises(ConfigurationError, match=message):
        evaluate_checkpoints(EvaluateConfig(checkpoint=names))


def test_a_folder_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", "causal_lm")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"^out_dir: {tmp_path}/file is a file; expected"):
        evaluate_checkpoints(EvaluateConfig(checkpoint=run, out_dir=str(tmp_path / "file")))

    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigurationError) as error:
        evaluate_checkpoints(EvaluateConfig(checkpoint=run))
    assert str(error.value) == (
        f"out_dir: {run}/evaluation is below {run}, which is a folder that you may not write to; "
        "expected a writable folder, or a new name: out_dir=FOLDER"
    )
