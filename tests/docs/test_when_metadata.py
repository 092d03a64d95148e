"""docs/when_metadata.md follows from the committed measurements."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import pytest

from bsmeta.studies.config import load_study
from bsmeta.studies.results import compute_results, load_measurements
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/when_metadata.md").read_text(encoding="utf-8")
VERDICTS = (REPOSITORY / "docs/verdicts.md").read_text(encoding="utf-8")
FOLDER = "experiments/studies/results/"


@pytest.fixture
def when_metadata(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "experiments"))
    import when_metadata

    return when_metadata


@pytest.mark.long
def test_every_figure_of_the_page_follows_from_the_measurements(
    when_metadata: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    study = load_study(REPOSITORY / "experiments/studies/when_metadata.yaml")
    measured, _ = load_measurements(study)
    assert when_metadata.make_page(study, compute_results(study), measured) == PAGE


def test_the_page_recomputes_the_claims_without_this_package() -> None:
    script = find_block(VERDICTS.partition("## Recompute a verdict\n")[2], "python")
    functions, _, rest = script.partition("none, url, later = ")
    _, _, printing = rest.partition("]\nfor difference")
    assert f"{FOLDER}meco_small" in functions
    functions = functions.replace(f"{FOLDER}meco_small", f"{FOLDER}when_metadata")
    differences = find_block(PAGE, "python")
    script = f"{functions}{differences}for difference{printing}"
    assert "bsmeta." not in script

    command = [sys.executable, "-c", script]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert output.stdout == find_block(PAGE, "text")


def find_block(page: str, language: str) -> str:
    """Returns the first code block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)[0]
