"""`analyze.py`: what it reports about the files of real runs, and about small made ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from bsmeta import analyze
from bsmeta.config.programs.analyzing import AnalyzeConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.classification.analysis import (
    analyze_runs,
    name_report_folder,
    name_runs,
)
from bsmeta.tasks.classification.report_analysis import summarize_analysis
from tests.tasks.classification.helpers import write_csv
from tests.tasks.training import TRAIN

REPOSITORY = Path(__file__).resolve().parents[3]
Launch = Callable[..., CompletedProcess[str]]


def write_predictions(folder: Path, predicted: str, probabilities: str = "") -> Path:
    """Writes predictions for six texts, three of label a and three of label b."""
    lines = []
    for number, (label, prediction) in enumerate(zip("aaabbb", predicted, strict=True)):
        line = [str(number + 1), label, prediction]
        if probabilities:
            line.append(f"0.{probabilities[number]}")
        lines.append(line)
    folder.mkdir()
    header = ["row", "label", "prediction", *(["probability"] if probabilities else [])]
    return write_csv(folder / "ads_testset_predictions.csv", lines, header)


def config_of(**keys: Any) -> AnalyzeConfig:
    return AnalyzeConfig(**{"bootstrap_resamples": 100, **keys})


def test_the_most_confident_mistakes_and_the_paired_comparison(tmp_path: Path) -> None:
    files = [
        write_predictions(tmp_path / "first", "abbbba", "967859"),
        write_predictions(tmp_path / "second", "aabbbb", "999999"),
        write_predictions(tmp_path / "third", "bbbaaa"),
    ]
    analysis = analyze_runs(config_of(mistakes=2), files)
    first, second, third = analysis.runs
    assert [(run.name, run.compared.scores["accuracy"].value) for run in analysis.runs] == [
        ("first", 0.5), ("second", pytest.approx(5 / 6)), ("third", 0.0)
    ]  # fmt: skip
    assert [
        (mistake.row, mistake.true, mistake.predicted, mistake.probability, mistake.other_mistakes)
        for mistake in first.mistakes
    ] == [(6, "b", "a", 0.9, 1), (3, "a", "b", 0.7, 2)]
    assert [mistake.row for mistake in third.mistakes] == [1, 2]  # it has no probabilities
    assert (first.pairing, third.calibration) == (None, None)
    assert second.pairing is not None
    assert third.pairing is not None
    assert (second.pairing.only_first_right, second.pairing.only_this_right) == (0, 2)
    assert (third.pairing.only_first_right, third.pairing.same_predictions) == (3, 3)
    # McNemar's exact test: 2 * 0.5 ** 2 and 2 * 0.5 ** 3; by Holm's procedure, the lower one twice.
    assert second.pairing.p_value == pytest.approx(0.5)
    assert third.pairing.p_value == pytest.approx(0.5)
    assert second.compared.differences["accuracy"].value == pytest.approx(1 / 3)
    sentences = summarize_analysis(analysis)
    assert sentences[0].startswith("first predicts the label of 50.0% of 6 texts right (95% ")
    assert sentences[1].startswith("second: +33.3 points compared with first (95% interval ")
    assert sentences[1].endswith("2 texts are right only here, and 0 only there.")
    assert "third: no calibration, because the file lacks the probabilities." in sentences


def test_the_intervals_of_a_label_are_of_its_texts(tmp_path: Path) -> None:
    analysis = analyze_runs(config_of(), [write_predictions(tmp_path / "run", "aaabba")])
    intervals = analysis.first.label_intervals
    assert [*intervals] == [0, 1]
    assert (intervals[0].recall.low, intervals[0].recall.high) == (1.0, 1.0)
    assert intervals[1].recall.low < 2 / 3 <= intervals[1].recall.high
    assert (intervals[1].precision.low, intervals[1].precision.high) == (1.0, 1.0)


def test_the_table_has_the_texts_and_the_units(tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "run", "abbbba", "967859")
    rows = [(f"text  {row // 2}", f"page {row % 2}") for row in range(7)]
    table = write_csv(tmp_path / "ads.csv", rows, ["text", "page"])
    analysis = analyze_runs(config_of(table=str(table)), [file])
    assert analysis.results.units == (3, "distinct texts")
    assert analysis.first.mistakes[0].text == "text  2"

    grouped = analyze_runs(config_of(table=str(table), group_column="page"), [file])
    assert grouped.results.units == (2, "values of page")
    assert "2 values of page are few to resample" in " ".join(summarize_analysis(grouped))

    short = write_csv(tmp_path / "short.csv", rows[:3], ["text", "page"])
    with pytest.raises(DataError, match=r"short\.csv has no row 4, for which .* has a prediction"):
        analyze_runs(config_of(table=str(short)), [file])
    with pytest.raises(ConfigurationError, match="expected also table=FILE"):
        analyze_runs(config_of(group_column="page"), [file])
    with pytest.raises(ConfigurationError, match="side"):
        analyze_runs(config_of(table=str(table), group_column="side"), [file])


def test_names_of_runs() -> None:
    assert name_runs([Path("a/x.csv")], []) == ["x.csv"]
    assert name_runs([Path("a/x.csv"), Path("b/x.csv")], []) == ["a", "b"]
    assert name_runs([Path("a/x.csv"), Path("a/y.csv")], []) == ["x.csv", "y.csv"]
    assert name_runs([Path("a/x.csv"), Path("a/y.csv"), Path("b/y.csv")], []) == [
        "a/x.csv", "a/y.csv", "b/y.csv"
    ]  # fmt: skip
    assert name_runs([Path("a/x.csv"), Path("b/x.csv")], ["old", "new"]) == ["old", "new"]
    with pytest.raises(ConfigurationError, match="expected 2 different names"):
        name_runs([Path("a/x.csv"), Path("b/x.csv")], ["old", "old"])
    with pytest.raises(ConfigurationError, match="the same file twice"):
        name_runs([Path("a/x.csv"), Path("a/x.csv")], [])


def test_the_report_is_beside_the_predictions() -> None:
    assert name_report_folder(Path("a/ads_testset_predictions.csv")) == Path("a/ads_analysis")
    assert name_report_folder(Path("a/new.csv.gz")) == Path("a/new_analysis")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "predictions is not set; expected the NAME_testset_predictions.csv of a run"),
        ({"predictions": 3}, "predictions=3: expected a file, or a list of files"),
        ({"predictions": "a.csv", "stats": ["a", "b"]}, "stats names 2 files; expected 1"),
    ],
)
def test_settings_that_cannot_be_used(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        analyze.main(config_of(**keys))
    assert message in str(caught.value)


@pytest.mark.long
def test_the_files_of_real_runs(launch: Launch, tmp_path: Path) -> None:
    """Two runs on the shipped paragraphs, whose checkpoints are not needed."""
    lines = (REPOSITORY / "examples/leanings/leanings.csv").read_text().splitlines(keepends=True)
    table = tmp_path / "leanings.csv"
    table.write_text("".join(lines[:301]))
    for name, weights in (("plain", "none"), ("balanced", "balanced")):
        launch(
            TRAIN, "--config-name", "demo_classification", f"data_config.csv={table}",
            f"data_config.database={tmp_path}/table.sqlite", f"out_dir={tmp_path}/run-{name}",
            f"results_dir={tmp_path}/{name}", "method=linear", f"class_weights={weights}",
            "trackers=[]", "data_config.split_by=null", "bootstrap_resamples=100",
        )  # fmt: skip
    files = [tmp_path / name / "leanings_testset_predictions.csv" for name in ("plain", "balanced")]
    analyze.main(
        config_of(predictions=[*map(str, files)], table=str(table), out_dir=f"{tmp_path}/report")
    )

    run = json.loads((tmp_path / "run-plain/evaluation/evaluation.json").read_text())
    found = json.loads((tmp_path / "report/analysis.json").read_text())
    assert [*found["runs"]] == ["plain", "balanced"]
    assert found["resampled"] == run["resampled"]
    plain = found["runs"]["plain"]
    for score in ("accuracy", "macro_f1", "mcc"):
        of_run = run["systems"]["model"][score]
        assert plain["scores"][score]["value"] == pytest.approx(of_run["value"])
    assert plain["per_label"] == run["per_label"]

    with files[0].open(newline="") as file:
        rows = [*csv.DictReader(file)]
    wrong = {int(row["row"]) for row in rows if row["label"] != row["prediction"]}
    assert {mistake["row"] for mistake in plain["mistakes"]} <= wrong
    probabilities = [mistake["probability"] for mistake in plain["mistakes"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(entry["count"] for entry in plain["calibration"]["bins"]) == len(rows)
    shown = [mistake["text"] for mistake in plain["mistakes"]]
    assert all(text in table.read_text() for text in shown if '"' not in text)
    names = {file.name for file in (tmp_path / "report").iterdir()}
    assert names == {
        "analysis.json", "analysis.md", "report.html", "scores.png", "confusion-1.png",
        "confusion-2.png", "calibration.png",
    }  # fmt: skip
    page = (tmp_path / "report/analysis.md").read_text()
    assert "Difference from plain" in page
    assert "Most confident mistakes of balanced" in page


def test_several_labels_a_text(tmp_path: Path) -> None:
    header = ["row", "label", "prediction", "probabilities.a", "probabilities.b"]
    rows = [
        (1, '["a"]', '["a","b"]', 0.9, 0.7), (2, "[]", "[]", 0.1, 0.2), (3, '["b"]', "[]", 0.1, 0.3)
    ]  # fmt: skip
    file = write_csv(tmp_path / "p.csv", rows, header)
    analyze.main(config_of(predictions=str(file)))
    found = json.loads((tmp_path / "p_analysis/analysis.json").read_text())["runs"]["p.csv"]
    assert found["scores"]["subset_accuracy"]["value"] == pytest.approx(1 / 3)
    assert found["scores"]["micro_f1"]["value"] == pytest.approx(0.5)
    # Row 1: label b, which it lacks, has 0.7; row 3: label b, which it has, lacks 0.7.
    assert [(mistake["row"], mistake["probability"]) for mistake in found["mistakes"]] == [
        (1, pytest.approx(0.7)), (3, pytest.approx(0.7))
    ]  # fmt: skip
    assert found["mistakes"][0]["true"] == "a"
    assert found["mistakes"][1]["predicted"] == "none"
    excess = np.mean([0.9, 0.7, 0.1, 0.2, 0.1, 0.3]) - 2 / 6
    assert found["calibration"]["overconfidence"]["value"] == pytest.approx(excess)
