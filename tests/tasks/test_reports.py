"""Where `evaluate.py` writes its reports: nothing is replaced by that on other data."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import to_yaml
from bsmeta.tasks.causal_lm.evaluation.evaluate import has_other_data
from bsmeta.tasks.checkpoints import Location, report_folder


def run_of(folder: Path, held_out: str, dataset: str | None = None) -> Location:
    folder.mkdir()
    data = DataConfig(validation_file=held_out, dataset_name=dataset)
    config = CausalLMConfig(data_config=data)
    (folder / "config.yaml").write_text(to_yaml(config))
    return Location(str(folder), str(folder / "model"), folder / "config.yaml", folder)


def written(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}\n")
    return file


def test_files_of_one_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = run_of(tmp_path / "run", "held-out.jsonl")
    (tmp_path / "run" / "model").mkdir()

    def folder(file: str | None) -> str:
        config = EvaluateConfig(checkpoint=location.name, validation_file=file)
        return report_folder(config, location, has_other_data=file is not None).name

    x, y = written(tmp_path / "x/dev.jsonl"), written(tmp_path / "y/dev.jsonl")
    deep = written(tmp_path / "z/y/dev.jsonl")
    assert folder(None) == "evaluation"
    assert folder(str(x)) == "evaluation-dev"
    assert folder(str(y)) == "evaluation-dev-y"
    assert folder(str(deep)).startswith("evaluation-dev-")
    assert folder(str(deep)) not in {"evaluation-dev", "evaluation-dev-y"}
    monkeypatch.chdir(tmp_path)
    assert folder("x/dev.jsonl") == "evaluation-dev"  # again, and by another path
    assert folder("hf://datasets/a/b@main/dev.jsonl") == "evaluation-dev-b@main"
    assert folder(str(tmp_path / "x")) == "evaluation-x"


def test_the_report_of_the_run_is_only_replaced_by_that_on_its_own_data(tmp_path: Path) -> None:
    own = written(tmp_path / "x/dev.jsonl")
    location = run_of(tmp_path / "run", str(own))

    def is_other(file: Path | None) -> bool:
        name = None if file is None else str(file)
        return has_other_data(EvaluateConfig(validation_file=name), location)

    assert not is_other(None)
    assert not is_other(own)
    assert is_other(written(tmp_path / "y/dev.jsonl"))
    assert is_other(written(tmp_path / "x/test.jsonl"))
    own.rename(tmp_path / "dev.jsonl")
    assert not is_other(tmp_path / "dev.jsonl")


def test_the_held_out_file_of_a_run_is_that_of_its_data_set(tmp_path: Path) -> None:
    own, other = written(tmp_path / "data/dev.jsonl"), written(tmp_path / "other/dev.jsonl")
    local = run_of(tmp_path / "local", "dev.jsonl", str(tmp_path / "data"))
    hub = run_of(tmp_path / "hub", "dev.jsonl", "owner/pages")

    def is_other(file: object, location: Location) -> bool:
        return has_other_data(EvaluateConfig(validation_file=str(file)), location)

    assert not is_other(own, local)
    assert not is_other("dev.jsonl", local)
    assert is_other(other, local)
    assert not is_other("hf://datasets/owner/pages/dev.jsonl", hub)
    assert is_other("hf://datasets/owner/more/dev.jsonl", hub)
    assert is_other(other, hub)
