"""What docs/studies.md says of a study is what its committed measurements give."""

from __future__ import annotations

import pytest

from bsmeta.studies.claims import sentences
from bsmeta.studies.config import load_study
from bsmeta.studies.results import results_of
from tests.conftest import REPOSITORY


def test_the_verdicts_of_meco_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)  # of its `results_dir`
    study = load_study(REPOSITORY / "experiments/studies/meco_small.yaml")
    found = sentences(results_of(study))
    assert len(found) == 4
    page = (REPOSITORY / "docs/studies.md").read_text(encoding="utf-8")
    _, _, page = page.partition("## What `meco_small` found\n")
    assert [line[2:] for line in page.splitlines() if line.startswith("- ")][:4] == found
