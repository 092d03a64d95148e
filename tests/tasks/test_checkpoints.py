"""Finding a model, with the configuration of its run or its recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import checkpoints
from bsmeta.tasks.checkpoints import Location, choose_report_folder, locate_model
from tests.tasks.run_folders import write_held_out, write_run_folder


@pytest.mark.parametrize("error", [FileNotFoundError("offline"), ValueError("no such name")])
def test_a_model_on_the_hub_without_a_recipe_is_read_by_the_defaults(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, file: str) -> str:
        raise error

    monkeypatch.setattr(checkpoints, "hf_hub_download", download)
    assert locate_model("hf://owner/name") == Location("hf://owner/name", "owner/name", None, None)


def test_the_configuration_of_the_run_comes_before_the_recipe(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in (model / "config.json", model / "metadata.yaml"):
        file.write_text("{}")
    assert locate_model(str(model)).config == model / "metadata.yaml"
    assert not locate_model(str(model)).has_run_config
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    found = locate_model(str(model))
    assert (found.config, found.has_run_config) == (tmp_path.resolve() / "config.yaml", True)


def test_a_configuration_near_a_model_without_a_run_is_not_used(tmp_path: Path) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    for file in (model / "config.json", model / "metadata.yaml"):
        file.write_text("{}")
    for folder in (tmp_path, model.parent):
        (folder / "config.yaml").write_text("db: postgres\n")
    assert locate_model(str(model)).config == model / "metadata.yaml"


def test_a_checkpoint_has_a_separate_configuration(tmp_path: Path) -> None:
    """It may differ from the configuration of the run, which may have been resumed with changes."""
    saved = tmp_path / "checkpoint-4step"
    (saved / "model").mkdir(parents=True)
    (saved / "model" / "config.json").write_text("{}")
    for folder in (tmp_path, saved):
        (folder / "config.yaml").write_text("seed: 1\n")
    for named in (tmp_path, saved, saved / "model"):
        assert locate_model(str(named)).config == saved / "config.yaml"


def test_files_with_equal_names_have_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = write_run_folder(tmp_path / "run", "held-out.jsonl")
    (tmp_path / "run" / "model").mkdir()

    def folder(file: str | None) -> str:
        config = EvaluateConfig(checkpoint=location.name, validation_file=file)
        return choose_report_folder(config, location, has_other_data=file is not None).name

    x, y = write_held_out(tmp_path / "x/dev.jsonl"), write_held_out(tmp_path / "y/dev.jsonl")
    deep = write_held_out(tmp_path / "z/y/dev.jsonl")
    assert folder(None) == "evaluation"
    assert folder(str(x)) == "evaluation-dev"
    assert folder(str(y)) == "evaluation-dev-y"
    assert folder(str(deep)).startswith("evaluation-dev-")
    assert folder(str(deep)) not in {"evaluation-dev", "evaluation-dev-y"}
    monkeypatch.chdir(tmp_path)
    assert folder("x/dev.jsonl") == "evaluation-dev"  # again, and by another path
    assert folder("hf://datasets/a/b@main/dev.jsonl") == "evaluation-dev-b@main"
    assert folder(str(tmp_path / "x")) == "evaluation-x"


def test_reports_are_not_written_through_links_of_a_run_folder(tmp_path: Path) -> None:
    location = write_run_folder(tmp_path / "run", "held-out.jsonl")
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/loss.png").write_text("mine")
    held_out = write_held_out(tmp_path / "dev.jsonl")
    config = EvaluateConfig(checkpoint=location.name)
    config_of_other_data = replace(config, validation_file=str(held_out))

    for name in ("evaluation", "evaluation-dev"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigurationError) as error:
        choose_report_folder(config, location, has_other_data=False)
    assert str(error.value) == (
        f"out_dir: by default, the reports would be written to {tmp_path}/run/evaluation, but "
        f"{tmp_path}/run/evaluation is a symbolic link that leads out of {tmp_path}/run; delete "
        "the link, or name a folder (out_dir=FOLDER)"
    )
    chosen = choose_report_folder(config_of_other_data, location, has_other_data=True)
    assert chosen.name == f"evaluation-dev-{tmp_path.name}"
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["loss.png"]

    (tmp_path / "run/evaluation").unlink()
    (tmp_path / "run/evaluation").mkdir()
    (tmp_path / "run/evaluation/loss.png").symlink_to(tmp_path / "outside/loss.png")
    with pytest.raises(ConfigurationError, match=r"but .*/run/evaluation/loss.png is a symbolic"):
        choose_report_folder(config, location, has_other_data=False)
    named = replace(config, out_dir=f"{tmp_path}/run/evaluation")
    assert choose_report_folder(named, location, has_other_data=False) == Path(named.out_dir)
