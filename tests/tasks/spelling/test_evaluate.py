"""Test sets, baselines and reports, and predictions of a trained model."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.models.manifest import write_model_manifest
from bsmeta.predict import choose_output_form, read_text
from bsmeta.tasks.spelling.config import SecConfig, SedWordsConfig
from bsmeta.tasks.spelling.evaluate import (
    CHANGE_NOTHING,
    DICTIONARY,
    Dictionary,
    make_baselines,
    make_kinds_table,
    make_results_table,
    read_test_sets,
    score_test_sets,
    summarize_results,
)
from bsmeta.tasks.spelling.word_kinds import KINDS
from bsmeta.training.ranks.processes import ALONE
from tests.conftest import REPOSITORY
from tests.tasks.spelling.helpers import arguments, write_test_set

PREDICT = REPOSITORY / "bsmeta" / "predict.py"

Launch = Callable[..., subprocess.CompletedProcess[str]]

LINE = "Teh  (recieve) women's well-known 3rd www.bbc.co.uk Don’t A,"
FLAGS = [1, 1, 0, 0, 0, 0, 0, 0]


def test_the_dictionary_leaves_words_of_other_scripts_alone(tmp_path: Path) -> None:
    pytest.importorskip("symspellpy")
    dictionary = Dictionary()
    line = "teh 京 กา кот 東京タワー"
    assert dictionary.flags(line) == [1, 0, 0, 0, 0]
    assert dictionary.correct(line) == "the 京 กา кот 東京タワー"
    (tmp_path / "words.txt").write_text("кот 2\nкит 1\n", encoding="utf-8")
    assert Dictionary(str(tmp_path / "words.txt")).flags("teh коот") == [0, 1]


def test_a_system_is_scored_beside_its_baselines(tmp_path: Path) -> None:
    pytest.importorskip("symspellpy")
    sets = read_test_sets(write_test_set(tmp_path), "sed_words")
    assert [test_set.name for test_set in sets] == ["small/dev"]
    assert sets[0].clean == ["the cat sat", "we received some mail"]

    def judge(lines: Any) -> list[list[int]]:  # finds the first error, and one that is none
        return [[int(word in ("teh", "mail")) for word in line.split()] for line in lines]

    config = SedWordsConfig(bootstrap_resamples=50, seed=0)
    results = score_test_sets(config, sets, judge, ALONE)
    systems = results["small/dev"]
    model, dictionary, nothing = systems
    assert [s.system for s in systems] == ["model", "dictionary", "change nothing"]
    assert (model.counts.precision, model.counts.recall, model.counts.f1) == (0.5, 0.5, 0.5)
    assert (model.counts.accuracy, model.false_alarms) == (5 / 7, 1 / 7)
    assert (dictionary.counts.f1, dictionary.false_alarms) == (1.0, 0.0)
    assert (nothing.counts.f1, nothing.counts.accuracy) == (0.0, 5 / 7)
    assert dictionary.difference is not None
    assert dictionary.difference.value == -0.5
    row = make_results_table("sed_words", results).format_cells()[0]
    assert row[:2] == ["small/dev", "model"]
    assert row[2].startswith(".500 (")
    assert row[3:7] == [".500", ".500", ".714", "14.29%"]
    kinds = make_kinds_table("sed_words", results)
    assert kinds.heads == [
        "test set",
        "kind of word",
        "words",
        "model",
        "dictionary",
        "change nothing",
    ]
    assert kinds.format_cells()[:2] == [
        ["small/dev", "lower case", "7", "14.29%", "0.00%", "0.00%"],
        ["", "capitalized", "0", "–", "–", "–"],
    ]
    (sentence,) = summarize_results(results)
    assert sentence.startswith("small/dev: the model's F1 is .500, -.500 compared")
    assert " 2 lines are few to resample: 95% intervals over them are rough" in sentence


def test_predictions_for_lower_case_text_are_lower_cased(tmp_path: Path) -> None:
    pytest.importorskip("symspellpy")
    folder = write_test_set(tmp_path)

    def judge(lines: Any) -> list[str]:
        return [line.replace("teh", "The").replace("soem", "Some") for line in lines]

    def f1() -> float:
        sets = read_test_sets(folder, "sec")
        ((model, *_),) = score_test_sets(SecConfig(), sets, judge, ALONE).values()
        return model.counts.f1

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


@pytest.mark.long
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
    card = (trained / "model/README.md").read_text()
    assert "Finds the words of a text that have a spelling error." in card


@pytest.mark.long
def test_evaluate_and_predict_use_the_trained_model(
    trained: Path, launch: Launch, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    launch(
        REPOSITORY / "bsmeta/evaluate.py", f"checkpoint={trained}", "max_documents=1",
        f"out_dir={out}", "bootstrap_resamples=50",
    )  # fmt: skip
    assert json.loads((out / "evaluation.json").read_text())["test_sets"][0]["lines"] == 1
    refused = launch(
        REPOSITORY / "bsmeta/evaluate.py", f"checkpoint={trained}", "+overrides.benchmark_lines=1",
        check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    expected = "overrides.benchmark_lines would have no effect; expected max_documents=1"
    assert expected in refused.stderr

    text = "because the careful neighbour beleives\nthat   letters definately travel.\n"
    (tmp_path / "letter.txt").write_text(text)
    done = launch(PREDICT, f"checkpoint={trained}", f"input={tmp_path}/letter.txt", "show=json")
    record = json.loads(done.stdout)
    found = {change["text"]: change for change in record["changes"]}
    assert {"beleives", "definately"} <= {*found}
    for change in record["changes"]:
        assert text[change["start"] : change["end"]] == change["text"]
        assert 0.5 < change["probability"] <= 1
    color = launch(PREDICT, f"checkpoint={trained}", f"input={tmp_path}/letter.txt", "show=color")
    assert "\x1b[4;31mbeleives\x1b[0m\nthat" in color.stdout

    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 7, "text": "letters beleives"}) + "\n")
    launch(
        PREDICT, f"checkpoint={trained}", f"input={tmp_path}/in.jsonl",
        f"output={tmp_path}/out.jsonl",
    )  # fmt: skip
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["id"] == 7
    assert {k: row["changes"][-1][k] for k in ("start", "end")} == {"start": 8, "end": 16}


def test_a_csv_file_becomes_one_with_the_same_columns_in_every_row(
    trained: Path, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,text\n1,every letters\n2,letters beleives\n")
    launch(
        PREDICT, f"checkpoint={trained}", f"input={tmp_path}/in.csv",
        f"output={tmp_path}/new/out.csv",
    )  # fmt: skip
    with (tmp_path / "new/out.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [[*row] for row in rows] == [["id", "text", "changes"]] * 2
    (change,) = json.loads(rows[1]["changes"])
    assert (change["start"], change["end"], change["text"]) == (8, 16, "beleives")


@pytest.mark.parametrize("form", ["text", "diff", "auto"])
def test_a_detector_corrects_nothing_and_says_so_before_it_is_loaded(
    trained: Path, launch: Launch, tmp_path: Path, form: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for weights in run.rglob("*.safetensors"):
        weights.write_bytes(b"no weights")
    (tmp_path / "letter.txt").write_text("that letters\n")
    done = launch(
        PREDICT, f"checkpoint={run}", f"input={tmp_path}/letter.txt", f"show={form}", check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"show={form}" in done.stderr
    assert "flags errors without correcting them; expected show=color or show=json" in done.stderr


@pytest.fixture(scope="module")
def corrector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `sec` that has learned nothing, and changes every word that has candidates."""
    from tests.conftest import run_warm

    folder = tmp_path_factory.mktemp("corrector")
    script = str(REPOSITORY / "bsmeta" / "train.py")
    more = ("num_train_epochs=null", "max_train_steps=1", "max_characters=24", "val_splits=[]")
    run = folder / "run"
    command = [
        sys.executable, script, *arguments("sec", folder, run, *more), "evals_per_epoch=null",
        "saves_per_epoch=null", "keep_best_by=null", "export_best=false",
    ]  # fmt: skip
    done = run_warm(command)
    assert done.returncode == 0, done.stderr[-3000:]
    (run / "model" / "correction.json").write_text(
        json.dumps({"thresholds": dict.fromkeys(KINDS, 0.0)})
    )
    write_model_manifest(run / "model")
    return run


ENDS = ["\r\n", "\r\n", "\n", "\r\n", "\r"]

LINES = ["\ufeffteh  cat", "", "\tsat\ton", "teh mat", "and"]


@pytest.mark.long
def test_a_corrected_text_keeps_its_lines_and_line_ends(
    corrector: Path, launch: Launch, tmp_path: Path
) -> None:
    source, output = tmp_path / "letter.txt", tmp_path / "new" / "corrected.txt"
    source.write_bytes("".join(map("".join, zip(LINES, ENDS, strict=True))).encode())
    key = (f"checkpoint={corrector}", f"input={source}")
    launch(PREDICT, *key, f"output={output}")
    content = output.read_bytes().decode()
    assert re.findall("\r\n|\n|\r", content) == ENDS
    assert content[0] == "\ufeff"
    assert content != source.read_bytes().decode()
    assert launch(PREDICT, *key).stdout == content
    assert launch(PREDICT, *key, f"output={output}", check=False).returncode == 2

    record = json.loads(launch(PREDICT, *key, "show=json").stdout)
    assert (record["text"], record["corrected"]) == (source.read_bytes().decode(), content)
    assert all(
        record["text"][change["start"] : change["end"]] == change["text"]
        for change in record["changes"]
    )
    diff = launch(PREDICT, *key, "show=diff", f"output={tmp_path}/text.diff")
    assert diff.stdout == ""
    command = ["patch", "--binary", str(source), str(tmp_path / "text.diff")]
    subprocess.run(command, check=True, capture_output=True)
    assert source.read_bytes() == output.read_bytes()


def test_the_form_of_a_text_follows_from_where_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = ("text", "color", "json", "diff")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert choose_output_form(PredictConfig(), forms) == "color"
    assert choose_output_form(PredictConfig(output="new.txt"), forms) == "text"
    assert choose_output_form(PredictConfig(output="new.txt", show="color"), forms) == "color"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert choose_output_form(PredictConfig(), forms) == "text"


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("naïve\r\n".encode())))
    assert read_text("-") == ("naïve\r\n", "stdin")


@pytest.fixture
def word_list(tmp_path: Path) -> str:
    pytest.importorskip("symspellpy")
    file = tmp_path / "words.txt"
    counts = {"the": 90, "tech": 9, "receive": 5, "women": 8, "well": 7, "known": 3, "don't": 9}
    file.write_text("".join(f"{word} {count}\n" for word, count in counts.items()))
    return str(file)


def test_words_that_the_dictionary_lacks_are_flagged(word_list: str) -> None:
    assert Dictionary(word_list).flags(LINE) == FLAGS


def test_the_nearest_and_then_most_frequent_word_is_the_correction(word_list: str) -> None:
    dictionary = Dictionary(word_list)
    assert dictionary.correct(LINE) == LINE.replace("Teh", "The").replace("recieve", "receive")
    assert dictionary.correct("RECIEVE qzxqzxqzx") == "RECEIVE qzxqzxqzx"


def test_the_baselines_of_each_task(word_list: str) -> None:
    lines = [LINE, "known"]
    judged = {
        task: {name: judge(lines) for name, judge in make_baselines(task, word_list).items()}
        for task in ("sed_words", "sed_sequence", "sec")
    }
    assert judged["sed_words"] == {DICTIONARY: [FLAGS, [0]], CHANGE_NOTHING: [[0] * 8, [0]]}
    assert judged["sed_sequence"] == {DICTIONARY: [[1], [0]], CHANGE_NOTHING: [[0], [0]]}
    assert judged["sec"][CHANGE_NOTHING] == lines
    assert judged["sec"][DICTIONARY][1] == "known"


@pytest.mark.slow  # reading the whole list takes seconds
def test_the_words_of_symspellpy() -> None:
    pytest.importorskip("symspellpy")
    dictionary = Dictionary()
    assert dictionary.flags(LINE) == FLAGS
    assert dictionary.correct("Teh recieve") == "The receive"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "symspellpy", None)
    with pytest.raises(ConfigurationError, match="pip install symspellpy, or the extra `spelling`"):
        Dictionary("unread.txt")


@pytest.mark.parametrize("content", [None, "", "one-column\n"])
def test_a_file_without_counted_words_is_refused(tmp_path: Path, content: str | None) -> None:
    pytest.importorskip("symspellpy")
    file = tmp_path / "words.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"words.txt is missing, or .* `word count`"):
        Dictionary(str(file))
