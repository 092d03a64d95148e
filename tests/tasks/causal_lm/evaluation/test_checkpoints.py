"""Finding a model: what it says of its metadata where it stands alone, or on the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.tasks import checkpoints
from bsmeta.tasks.causal_lm.checkpoints import run_config
from bsmeta.tasks.checkpoints import Location, locate

RECIPE = "data_config: {metadata_config: {metadata_list: [url], max_seq_len: 77}}\n"


def test_a_model_on_the_hub_brings_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, file: str) -> str:
        assert (name, file) == ("owner/name", "metadata.yaml")
        (tmp_path / file).write_text(RECIPE)
        return str(tmp_path / file)

    monkeypatch.setattr(checkpoints, "hf_hub_download", download)
    found = locate("hf://owner/name")
    assert (found.model, found.is_on_hub, found.has_run_config) == ("owner/name", True, False)
    metadata = run_config(found, None, {}).data_config.metadata_config
    assert (metadata.metadata_list, metadata.max_seq_len) == (["url"], 77)


@pytest.mark.parametrize("error", [FileNotFoundError("offline"), ValueError("no such name")])
def test_a_model_on_the_hub_without_a_recipe_is_read_by_the_defaults(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, file: str) -> str:
        raise error

    monkeypatch.setattr(checkpoints, "hf_hub_download", download)
    assert locate("hf://owner/name") == Location("hf://owner/name", "owner/name", None, None)


def test_the_configuration_of_the_run_comes_before_the_recipe(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in (model / "config.json", model / "metadata.yaml"):
        file.write_text("{}")
    assert locate(str(model)).config == model / "metadata.yaml"
    assert not locate(str(model)).has_run_config
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    found = locate(str(model))
    assert (found.config, found.has_run_config) == (tmp_path.resolve() / "config.yaml", True)


def test_a_configuration_near_a_model_of_no_run_is_not_its_own(tmp_path: Path) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    for file in (model / "config.json", model / "metadata.yaml"):
        file.write_text("{}")
    for folder in (tmp_path, model.parent):
        (folder / "config.yaml").write_text("db: postgres\n")
    assert locate(str(model)).config == model / "metadata.yaml"


def test_a_checkpoint_has_a_configuration_of_its_own(tmp_path: Path) -> None:
    """It may differ from that of the run, which has been resumed with another one since."""
    saved = tmp_path / "checkpoint-4step"
    (saved / "model").mkdir(parents=True)
    (saved / "model" / "config.json").write_text("{}")
    for folder in (tmp_path, saved):
        (folder / "config.yaml").write_text("seed: 1\n")
    for named in (tmp_path, saved, saved / "model"):
        assert locate(str(named)).config == saved / "config.yaml"
