"""Test sets, reports, and predictions of a trained model."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.config.errors import DataError
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.spelling.benchmarks import judge_test_sets, read_test_sets
from bsmeta.tasks.spelling.evaluate import summary, table_of
from tests.conftest import REPOSITORY
from tests.tasks.spelling.helpers import arguments

ALONE = EvaluationContext.alone(torch.device("cpu"))
Launch = Callable[..., subprocess.CompletedProcess[str]]
ANSWERS = {
    "sed_words": ["1 0 0", "0 0 1 0"],
    "sed_sequence": ["1", "1"],
    "sec": ["the cat sat", "we received some mail"],
}


def write_test_set(folder: Path) -> Path:
    """Two lines with one error each, for every task."""
    for task, correct in ANSWERS.items():
        own = folder / task / "small" / "dev"
        own.mkdir(parents=True)
        (own / "corrupt.txt").write_text("teh cat sat\nwe received soem mail\n")
        (own / "correct.txt").write_text("\n".join(correct) + "\n")
    return folder


def test_a_system_is_scored_beside_its_baselines(tmp_path: Path) -> None:
    pytest.importorskip("symspellpy")
    sets = read_test_sets(write_test_set(tmp_path), "sed_words")
    assert [test_set.name for test_set in sets] == ["small/dev"]
    assert sets[0].clean == ["the cat sat", "we received some mail"]

    def judge(lines: Any) -> list[list[int]]:  # finds the first error, and one that is none
        return [[int(word in ("teh", "mail")) for word in line.split()] for line in lines]

    (result,) = judge_test_sets(
        "sed_words", sets, judge, ALONE, word_list=None, resamples=50, seed=0
    )
    model, dictionary, nothing = result.systems
    assert [s.system for s in result.systems] == ["model", "dictionary", "change nothing"]
    assert (model.counts.precision, model.counts.recall, model.counts.f1) == (0.5, 0.5, 0.5)
    assert (model.counts.accuracy, model.false_alarms) == (5 / 7, 1 / 7)
    assert (dictionary.counts.f1, dictionary.false_alarms) == (1.0, 0.0)
    assert (nothing.counts.f1, nothing.counts.accuracy) == (0.0, 5 / 7)
    assert dictionary.difference is not None
    assert dictionary.difference.difference == -0.5
    row = table_of("sed_words", [result]).rows[0]
    assert row[:2] == ["small/dev", "model"]
    assert row[2].startswith(".500 (")
    assert row[3:7] == [".500", ".500", ".714", "14.29%"]
    assert summary([result])[0].startswith("small/dev: the model's F1 is .500, -.500 compared")


def test_predictions_for_lower_case_text_are_lower_cased(tmp_path: Path) -> None:
    pytest.importorskip("symspellpy")
    folder = write_test_set(tmp_path)

    def judge(lines: Any) -> list[str]:
        return [line.replace("teh", "The").replace("soem", "Some") for line in lines]

    def f1() -> float:
        sets = read_test_sets(folder, "sec")
        (result,) = judge_test_sets("sec", sets, judge, ALONE, word_list=None, resamples=9, seed=0)
        return result.systems[0].counts.f1

    own = folder / "sec/small/dev"
    assert f1() == 0
    (own / "lowercase.txt").write_text("0\n1\n")
    assert f1() == 0.5
    (own / "lowercase.txt").write_text("1\n")
    with pytest.raises(DataError, match=r"expected 0 or 1 for each of the 2 lines of corrupt.txt"):
        f1()
    (own / "lowercase.txt").unlink()
    own.rename(own.with_name("bea322"))  # a published test set
    assert f1() == 1


def test_only_the_first_lines_are_read_and_others_are_refused(tmp_path: Path) -> None:
    folder = write_test_set(tmp_path)
    assert read_test_sets(folder, "sec", limit=1)[0].corrupt == ["teh cat sat"]
    file = folder / "sed_sequence/small/dev/correct.txt"
    file.write_text("1\nyes\n")
    with pytest.raises(DataError, match=r"line 2: 'yes'; expected labels 0 and 1"):
        read_test_sets(folder, "sed_sequence")
    file.write_text("1\n")
    with pytest.raises(DataError, match=r"2 lines in corrupt.txt, but 1 in correct.txt"):
        read_test_sets(folder, "sed_sequence")
    with pytest.raises(DataError, match="has no sed_words/GROUP/SPLIT/corrupt.txt"):
        read_test_sets(tmp_path / "sec", "sed_words")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `sed_words` that has learned the small texts."""
    from tests.conftest import run_warm

    pytest.importorskip("symspellpy")
    folder = tmp_path_factory.mktemp("trained")
    tests = write_test_set(folder / "tests")
    more = ("learning_rate=0.01", "num_train_epochs=6", f"benchmarks={tests}")
    script = str(REPOSITORY / "bsmeta" / "train.py")
    command = [sys.executable, script, *arguments("sed_words", folder, folder / "run", *more)]
    done = run_warm(command)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


def test_a_run_ends_with_a_report_on_its_test_sets(trained: Path) -> None:
    report = json.loads((trained / "evaluation/evaluation.json").read_text())
    (result,) = report["test_sets"]
    assert (report["task"], result["test_set"], result["lines"]) == ("sed_words", "small/dev", 2)
    assert [*result["systems"]] == ["model", "dictionary", "change nothing"]
    events = map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    last = [event for event in events if event["event"] == "eval"][-1]
    assert last["split"] == "small/dev"
    assert last["f1"] == result["systems"]["model"]["f1"]
    calibration = json.loads((trained / "model/calibration.json").read_text())
    assert calibration["wanted"] == 0.95


def test_evaluate_and_predict_use_the_trained_model(
    trained: Path, launch: Launch, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    launch(
        REPOSITORY / "bsmeta/evaluate.py", f"checkpoint={trained}", "max_documents=1",
        f"out_dir={out}", "bootstrap_resamples=50",
    )  # fmt: skip
    assert json.loads((out / "evaluation.json").read_text())["test_sets"][0]["lines"] == 1

    predict = REPOSITORY / "bsmeta/predict.py"
    text = "because the careful neighbour beleives\nthat   letters definately travel.\n"
    (tmp_path / "letter.txt").write_text(text)
    done = launch(predict, f"checkpoint={trained}", f"input={tmp_path}/letter.txt", "show=json")
    record = json.loads(done.stdout)
    found = {change["text"]: change for change in record["changes"]}
    assert {"beleives", "definately"} <= {*found}
    for change in record["changes"]:
        assert text[change["start"] : change["end"]] == change["text"]
        assert 0.5 < change["probability"] <= 1
    coloured = launch(predict, f"checkpoint={trained}", f"input={tmp_path}/letter.txt")
    assert coloured.stdout == text  # not a terminal: without colours
    refused = launch(
        predict, f"checkpoint={trained}", f"input={tmp_path}/letter.txt", "show=diff", check=False
    )
    assert refused.returncode == 2
    assert "expected colour or json" in refused.stderr

    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 7, "text": "letters beleives"}) + "\n")
    launch(
        predict, f"checkpoint={trained}", f"input={tmp_path}/in.jsonl",
        f"output={tmp_path}/out.jsonl",
    )  # fmt: skip
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["id"] == 7
    assert {k: row["changes"][-1][k] for k in ("start", "end")} == {"start": 8, "end": 16}


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from bsmeta.predict import read_text

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("naïve\r\n".encode())))
    assert read_text("-") == ("naïve\r\n", "stdin")
