"""Evaluations that are made from Python are those of the program."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import bsmeta

FEW = {"max_documents": 3, "comparisons": ["all"], "controls": [], "bootstrap_resamples": 100}


def test_a_language_model_is_evaluated(
    demo_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = bsmeta.open_run(demo_run)
    report = bsmeta.evaluate_model(run, {**FEW, "out_dir": str(tmp_path / "report")})
    assert report.folder == tmp_path / "report"
    assert report.results == json.loads((tmp_path / "report" / "evaluation.json").read_text())
    (answer,) = report.answers
    assert answer in " ".join(capsys.readouterr().out.split())

    (model,) = report.results["models"]
    rows = report.to_pandas()
    assert rows["name"].tolist() == [row["name"] for row in model["comparisons"]]
    assert rows["difference"].tolist()[1] == model["comparisons"][1]["difference"]


def test_a_notebook_shows_the_page_in_a_frame_without_scripts(
    demo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page contains titles and texts by others."""
    report = bsmeta.evaluate_model(
        demo_run, {**FEW, "out_dir": str(tmp_path / "report")}, show_output=False
    )
    assert capsys.readouterr().out == ""
    frames = []

    class Frames(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            frames.append((tag, dict(attrs)))

    Frames().feed(report._repr_html_())
    ((tag, attributes),) = frames
    assert tag == "iframe"
    assert attributes["srcdoc"] == report.page.read_text()
    assert attributes["sandbox"] is None  # present, and without permissions


@pytest.mark.long
def test_models_are_compared_and_wrong_calls_refused(demo_run: Path, tmp_path: Path) -> None:
    checkpoints = [checkpoint.folder for checkpoint in bsmeta.open_run(demo_run).checkpoints()]
    report = bsmeta.evaluate_model(checkpoints, {**FEW, "out_dir": str(tmp_path / "pair")})
    assert len(report.results["models"]) == 2
    assert len(report.results["pairs"]) > 0
    assert set(report.to_pandas()["checkpoint"]) == {*map(str, checkpoints)}
    with pytest.raises(bsmeta.UserError, match="max_documents"):
        bsmeta.evaluate_model(demo_run, {"max_documents": 0})
    with pytest.raises(bsmeta.UserError, match="there is no such folder"):
        bsmeta.evaluate_model(tmp_path / "missing")
    with pytest.raises(bsmeta.UserError, match=r"evaluation.json cannot be read"):
        _ = bsmeta.Report(tmp_path).results
