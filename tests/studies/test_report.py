"""The report of a study, from its measurements alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.studies.config import StudyConfig
from bsmeta.studies.report import write_report
from bsmeta.studies.results import compute_results


def test_a_report_needs_only_the_measurements(kept: StudyConfig) -> None:
    files = write_report(compute_results(kept), Path("study.yaml"), {"none seed 1": "train.sh"}, [])
    assert {file.name for file in files} >= {"report.md", "report.html", "claims.pdf", "gains.png"}
    text = (Path(kept.out_dir) / "report.md").read_text()
    claims, exploratory = (
        text.index(heading)
        for heading in (
            "## What the declared claims come to",
            "## Exploratory: no claim was declared about what follows",
        )
    )
    assert claims < text.index("URL beats text alone") < exploratory
    assert claims < text.index("### Declared claims") < exploratory
    assert exploratory < text.index("### Against text alone")
    assert "data saved" not in text[:exploratory]
    raw = json.loads((Path(kept.out_dir) / "results.json").read_text())
    assert [claim["verdict"] for claim in raw["claims"]] == ["supported", "open", "supported"]
    assert raw["claims"][0]["difference"]["value"] == pytest.approx(-0.5, abs=0.01)
    assert raw["claims"][1]["at_once"] == [None, None]
