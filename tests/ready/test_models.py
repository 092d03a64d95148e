"""Finds ready-made models in the cache folder, and names the command that builds them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bsmeta.config.programs.building import BuildConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.ready import building
from bsmeta.ready.building import build_models
from bsmeta.ready.models import find_ready_model, list_builds, locate_build
from tests.conftest import run_warm


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BSMETA_CACHE", str(tmp_path))
    return tmp_path


def make_model(folder: Path) -> None:
    """Makes the files that a build is checked for, empty."""
    for name in ("config.yaml", "evaluation/evaluation.json", "model/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_both_spelling_models_are_in_one_build(cache: Path) -> None:
    folder = cache / "ready" / "spelling-v2"
    for task in ("spelling", "spelling_words"):
        make_model(folder / task)
    assert find_ready_model("spelling") == cache / "ready" / "spelling-v2" / "spelling"
    assert find_ready_model("spelling_words") == cache / "ready" / "spelling-v2" / "spelling_words"


@pytest.mark.parametrize(
    "missing", ["config.yaml", "evaluation/evaluation.json", "model/config.json"]
)
def test_a_damaged_build_is_neither_used_nor_taken_for_built(cache: Path, missing: str) -> None:
    folder = cache / "ready" / "classification-v2"
    make_model(folder / "classification")
    (folder / "classification" / missing).unlink()
    message = (
        f"{folder}/classification/{missing} is missing; expected all files of the build: delete "
        f"{folder}, and `bsmeta build classification` builds it again"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        find_ready_model("classification")
    with pytest.raises(DataError, match=re.escape(message)):
        build_models(BuildConfig(target="classification"))


def test_a_file_in_place_of_a_build_is_refused_before_the_training(cache: Path) -> None:
    (cache / "ready").mkdir()
    (cache / "ready" / "classification-v2").touch()
    with pytest.raises(DataError, match="config.yaml is missing"):
        build_models(BuildConfig(target="classification"))


def test_an_unfinished_build_is_not_used(cache: Path) -> None:
    (cache / "ready" / "spelling-v2.part").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is not built yet"):
        find_ready_model("spelling")
    assert list_builds("spelling") == {}


def test_a_build_replaces_earlier_formats_and_no_later_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(building._BUILDERS, "spelling", lambda folder, _: None)
    for name in ("spelling-v0", "spelling-v3", "spelling-vX", "spelling-v0.part"):
        (cache / "ready" / name).mkdir(parents=True)
    build_models(BuildConfig(target="spelling"))
    assert list_builds("spelling") == {
        version: cache / "ready" / f"spelling-v{version}" for version in (2, 3)
    }
    assert (cache / "ready" / "spelling-vX").is_dir()


def test_a_build_of_another_format_is_named(cache: Path) -> None:
    earlier_build = cache / "ready" / "classification-v0"
    earlier_build.mkdir(parents=True)
    assert list_builds("classification") == {0: earlier_build}
    message = (
        f"task=classification: {earlier_build} was built by another version of bsmeta, in another "
        "format (this version reads v2); `bsmeta build classification` builds it"
    )
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        find_ready_model("classification")


def test_without_its_own_variable_the_cache_is_in_the_folder_of_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BSMETA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert locate_build("spelling") == tmp_path / "xdg" / "bsmeta" / "ready" / "spelling-v2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["task=spelling_words", "text=One, two"],
            "configuration error: task=spelling_words: its model is not built yet (there is no "
            "{cache}/ready/spelling-v2); `bsmeta build spelling` builds it from the shipped texts, "
            "in a few minutes; or name a trained model: checkpoint=RUN\n",
        ),
        (
            ["text=One, two"],
            "configuration error: checkpoint is not set; expected checkpoint=RUN for a trained "
            "model, or task=spelling or task=spelling_words or task=classification for a "
            "ready-made one, which `bsmeta build` makes\n",
        ),
        (
            ["task=spelling", "checkpoint=runs/sec", "text=a"],
            "configuration error: task=spelling has no effect with checkpoint=runs/sec; expected "
            "one of them\n",
        ),
        (
            ["checkpoint=runs/sec"],
            "configuration error: input is not set; expected a file of records or of text, or "
            "text=TEXT\n",
        ),
        (
            ["task=spelling", "input=letter.txt", "text=a"],
            "configuration error: input=letter.txt and text are both set; expected one of them\n",
        ),
    ],
)
def test_predict_without_a_model_ends_with_code_2(
    cache: Path, arguments: list[str], message: str
) -> None:
    done = run_warm([sys.executable, "-m", "bsmeta", "predict", *arguments])
    assert (done.returncode, done.stderr) == (2, message.replace("{cache}", str(cache)))
