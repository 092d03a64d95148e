"""Finds ready-made models in the cache folder, and names the command that builds them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.ready.models import find_ready_model, list_other_formats, locate_build
from tests.conftest import run_warm


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BSMETA_CACHE", str(tmp_path))
    return tmp_path


def test_both_spelling_models_are_in_one_build(cache: Path) -> None:
    (cache / "ready" / "spelling-v1").mkdir(parents=True)
    assert find_ready_model("spelling") == cache / "ready" / "spelling-v1" / "spelling"
    assert find_ready_model("spelling_words") == cache / "ready" / "spelling-v1" / "spelling_words"


def test_an_unfinished_build_is_not_used(cache: Path) -> None:
    (cache / "ready" / "spelling-v1.part").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is not built yet"):
        find_ready_model("spelling")
    assert list_other_formats("spelling") == []


def test_a_build_of_another_format_is_named(cache: Path) -> None:
    earlier_build = cache / "ready" / "classification-v0"
    earlier_build.mkdir(parents=True)
    assert list_other_formats("classification") == [earlier_build]
    message = (
        f"task=classification: {earlier_build} was built by another version of bsmeta, in another "
        "format (this version reads v1); `bsmeta build classification` builds it"
    )
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        find_ready_model("classification")


def test_without_its_own_variable_the_cache_is_that_of_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BSMETA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert locate_build("spelling") == tmp_path / "xdg" / "bsmeta" / "ready" / "spelling-v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["task=spelling_words", "text=One, two"],
            "configuration error: task=spelling_words: its model is not built yet (there is no "
            "{cache}/ready/spelling-v1); `bsmeta build spelling` builds it from the shipped texts, "
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
