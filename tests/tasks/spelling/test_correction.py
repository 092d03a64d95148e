"""Corrections by candidates: what may change, the labels, and the threshold."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import DataError
from bsmeta.tasks.checkpoints import locate_model, open_task
from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.correction import (
    CandidateCorrection,
    Choice,
    correct_most_errors,
    find_best_threshold,
    find_right_words,
    label_rows,
    raise_thresholds,
)
from bsmeta.tasks.spelling.corrections import apply_corrections, make_record
from bsmeta.tasks.spelling.detector import (
    Ranker,
    RankerConfig,
    compute_error_logits,
    compute_log_probabilities,
)
from bsmeta.tasks.spelling.evaluate import run_evaluation
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.samples import Pair
from bsmeta.tasks.spelling.word_kinds import KINDS
from bsmeta.training.ranks.processes import ALONE
from tests.tasks.spelling.helpers import lexicon, write_test_set


def corrector(threshold: float) -> tuple[CandidateCorrection, Ranker]:
    """A task with a model of random weights that changes words from a probability on."""
    task = CandidateCorrection(SecConfig())
    task._inputs = CandidateInputs(lexicon())
    task.restore(dict.fromkeys(KINDS, threshold))
    torch.manual_seed(0)
    config = RankerConfig(features=task._inputs.features, width=8, layers=1, heads=1)
    return task, Ranker(config).eval()


TASK, MODEL = corrector(0.02)
WORDS = st.sampled_from(
    ["teh", "cat", "Berln,", "villiage", "12", "mat.", "a@b.org", "thecat", "“We”"]
)
SPACES = st.sampled_from([" ", "  ", "\t", "\n", "\r\n", " \n "])
TEXT = st.lists(st.tuples(WORDS, SPACES), max_size=12).map(
    lambda parts: "".join(map("".join, parts))
)


@settings(max_examples=50, deadline=None)
@given(TEXT)
def test_only_the_corrected_words_change(text: str) -> None:
    (changes,) = TASK.changes(MODEL, [text])
    record = make_record(text, changes, corrects=True)
    assert record.keys() == {"corrected", "changes"}
    at, kept = 0, []
    for change in changes:
        assert text[change.start : change.end] == change.text
        assert not set(change.text) & set(" \t\r\n")
        kept.append(text[at : change.start])
        at = change.end
    rest = iter(record["corrected"].split("\n"))
    assert len([*rest]) == len(text.split("\n"))
    restored, place = "", 0
    for part, change in zip([*kept, text[at:]], [*changes, None], strict=True):
        assert record["corrected"].startswith(part, place)
        restored += part + (change.text if change else "")
        place += len(part) + (len(change.correction) if change else 0)
    assert restored == text


def test_words_change_in_this_text() -> None:
    (changes,) = TASK.changes(MODEL, ["teh villiage, 12"])
    assert {change.text for change in changes} <= {"teh", "villiage,"}
    assert changes
    (none,) = corrector(1.0)[0].changes(MODEL, ["teh villiage, 12"])
    assert none == []


def test_words_in_a_script_that_the_lexicon_lacks_are_left_alone_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task, model = corrector(0.0)
    text = "teh 京 我们在东京。 กา кот, teh"
    with caplog.at_level(logging.WARNING):
        (record,) = task.predict(model, [{"text": text}])
    assert [change["start"] for change in record["changes"]] == [0, 21]
    assert record["corrected"].split(" ")[1:-1] == text.split(" ")[1:-1]
    assert "their script: 4 of 6 (CJK 2, THAI 1, CYRILLIC 1)" in caplog.text


def test_only_what_the_detector_flags_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = corrector(0.0)
    monkeypatch.setattr(task, "flags", lambda texts, context: [[False, True] for _ in texts])
    ((change,),) = task.changes(model, ["teh  caat"])
    assert (change.start, change.text) == (5, "caat")


def test_lines_are_judged_as_texts_are() -> None:
    lines = ["teh villiage", "We saw teh  berln ."]
    expected = [
        apply_corrections(line, TASK.changes(MODEL, [line])[0]) for line in lines
    ]  # fmt: skip
    assert TASK.judge(MODEL, lines, ALONE) == expected


def test_words_are_judged_again_beside_likely_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = corrector(0.0)
    texts, neighbors = [["teh", "caat", "thecat"]], []
    likely = {"the": 0.8, "cat": 0.4, "the cat": 0.9}

    def score(model: Ranker, own: object, beside: object, device: object) -> object:
        neighbors.append(beside)
        rows = task._inputs.build_rows(texts)
        written = [text for candidates in rows.texts for text in candidates]
        return rows, np.log([likely.get(text, 1e-3) for text in written])

    monkeypatch.setattr(task, "score_beside", score)
    task.score(model, texts, torch.device("cpu"))
    # What is unlikely, and two words, do not replace a neighbor.
    assert neighbors == [texts, [["the", "caat", "thecat"]]]


def test_training_texts_are_partly_corrected_neighbors() -> None:
    pairs = [Pair([f"wrong{n}"] * 5 + ["same"], ["right"] * 5 + ["same"], "") for n in range(400)]
    found = [correct_most_errors(pair) for pair in pairs]
    assert found == [correct_most_errors(pair) for pair in pairs]
    corrected = np.array([words.count("right") for words in found])
    assert {words[-1] for words in found} == {"same"}
    assert 0.22 < np.mean(corrected == 0) < 0.38
    assert 0.65 < np.mean(corrected[corrected > 0]) / 5 < 0.76
    split = Pair(["onthe"], ["on", "the"], "")
    assert correct_most_errors(split) == ["onthe"]


def test_the_label_of_a_word_is_the_row_of_its_right_candidate() -> None:
    pair = Pair(["Teh", "cat", "xqzk", "teh"], ["The", "cat", "house", "teh"], "name")
    rows = CandidateInputs(lexicon()).build_rows([pair.source])
    labels = label_rows([pair], rows)
    places = (labels - rows.starts[:-1]).tolist()
    assert places[1:] == [0, 1, 0]  # itself, none of the candidates, itself
    assert rows.texts[0][places[0]] == "The"


def test_the_right_words_where_words_are_joined_or_divided() -> None:
    assert find_right_words(Pair(["teh", "cat"], ["the", "cat"], "")) == ["the", "cat"]
    assert find_right_words(Pair(["onthe", "mat"], ["on", "the", "mat"], "")) == ["on the", "mat"]
    assert find_right_words(Pair(["ca", "t", "sat"], ["cat", "sat"], "")) == [None, None, "sat"]


def test_the_threshold_with_the_best_f1_within_the_false_alarms() -> None:
    pairs = [Pair(["a", "b", "c", "d"], ["A", "B", "c", "d"], "")]
    found = [[Choice("A", 0.9), Choice("B", 0.6), Choice("x", 0.5), Choice("y", 0.1)]]
    clean = [[Choice("z", 0.7), Choice("z", 0.2), Choice("z", 0.1), Choice("z", 0.1)]]
    assert find_best_threshold(pairs, found, clean, 0.5) == pytest.approx(0.55)
    assert find_best_threshold(pairs, found, clean, 0.0) == pytest.approx(
        0.75
    )  # the clean 0.7 stays


def test_thresholds_of_kinds_of_words_with_more_false_alarms() -> None:
    texts = [["cat", "Tom", "Ann", "Bob", "USSR1", "12"]]
    choices = [[*(Choice("x", probability) for probability in (0.9, 0.8, 0.7, 0.1, 0.0, 0.0))]]
    thresholds = raise_thresholds(0.5, texts, choices, 0.4)
    assert thresholds == {
        "lower case": 0.9,  # none of one word may be changed
        "capitalized": 0.7,  # one of three
        "acronym": 0.5,
        "inner capitals": 0.5,
        "non-ASCII letters": 0.5,
        "digits or symbols": 0.5,
    }


def test_each_kind_of_word_has_a_threshold() -> None:
    task, model = corrector(0.0)
    assert {change.text for change in task.changes(model, ["teh Teh"])[0]} == {"teh", "Teh"}
    task.restore({**dict.fromkeys(KINDS, 0.0), "capitalized": 1.0})
    assert {change.text for change in task.changes(model, ["teh Teh"])[0]} == {"teh"}


def test_kept_words_are_not_changed(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("villiage\n", encoding="utf-8")
    task, model = corrector(0.0)
    kept = CandidateCorrection(SecConfig(keep_words=["teh", str(names)]))
    kept._inputs = task._inputs
    kept.restore(task.state())
    text = "Teh caat's villiage, teh-caat."
    assert {change.text for change in task.changes(model, [text])[0]} == set(text.split())
    assert {change.text for change in kept.changes(model, [text])[0]} == {"caat's"}
    assert task.data_fingerprint() is None
    assert kept.data_fingerprint() == "f8b3db21eb87be08"


def test_probabilities_and_the_logit_of_an_error() -> None:
    scores = torch.tensor([2.0, 0.0, 1.0, 0.5, -0.5])
    rows, words = torch.tensor([1, 1, 1, 2, 2]), torch.tensor([[1, 2], [2, 0]])
    logs = compute_log_probabilities(scores, rows)
    assert torch.allclose(logs[:3], scores[:3].log_softmax(0))
    assert torch.allclose(logs[3:], scores[3:].log_softmax(0))
    found = compute_error_logits(scores, rows, words)
    wrong = 1 - logs[0].exp()
    assert found[0, 0] == pytest.approx(float(torch.logit(wrong)), abs=1e-5)
    assert found[0, 1] == found[1, 0] == pytest.approx(-1.0)


def test_a_model_is_reloaded_with_its_threshold(tmp_path: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
    TASK.export(MODEL, weights, tmp_path)
    again = CandidateCorrection(SecConfig())
    model = again.load(tmp_path)
    assert again.state() == dict.fromkeys(KINDS, 0.02)
    texts = ["teh villiage"]
    assert again.changes(model, texts) == TASK.changes(MODEL, texts)
    (tmp_path / "correction.json").unlink()
    with pytest.raises(DataError, match="expected model/ of a run of task=sec"):
        CandidateCorrection(SecConfig()).load(tmp_path)
    assert again.state() == dict.fromkeys(KINDS, 0.02)


@pytest.mark.parametrize("threshold", [-1, 1.5, "0.5", float("nan"), None])
def test_an_edited_threshold_is_refused(tmp_path: Path, threshold: object) -> None:
    TASK.export(MODEL, MODEL.state_dict(), tmp_path)
    thresholds = {**dict.fromkeys(KINDS, 0.02), KINDS[0]: threshold}
    (tmp_path / "correction.json").write_text(json.dumps({"thresholds": thresholds}))
    with pytest.raises(DataError, match="correction.json cannot be read"):
        CandidateCorrection(SecConfig()).load(tmp_path)


def test_a_model_exported_before_any_evaluation_leaves_the_threshold(tmp_path: Path) -> None:
    task, model = corrector(0.02)
    task.restore(None)
    task.export(model, model.state_dict(), tmp_path)
    assert (tmp_path / "correction.json").read_text() == '{"thresholds": null}\n'
    task.restore({"lower case": 0.3})  # as `finish` chooses it after the last checkpoint
    task.load(tmp_path)
    assert task.state() == {"lower case": 0.3}


def test_a_model_that_began_with_another_is_opened_without_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    TASK.export(MODEL, MODEL.state_dict(), tmp_path / "model")
    config = SecConfig(model_name=str(tmp_path / "gone"), benchmarks=str(write_test_set(tmp_path)))
    (tmp_path / "config.yaml").write_text(format_yaml(config))
    task, folder = open_task(str(tmp_path), {})
    assert isinstance(task, CandidateCorrection)
    texts = ["teh villiage"]
    assert task.changes(task.load(folder), texts) == TASK.changes(MODEL, texts)

    pytest.importorskip("symspellpy")
    settings = EvaluateConfig(checkpoint=[str(tmp_path)], out_dir=str(tmp_path / "report"))
    run_evaluation(settings, [locate_model(str(tmp_path))], ALONE)
    assert json.loads((tmp_path / "report/evaluation.json").read_text())["task"] == "sec"


def test_an_exported_corrector_is_in_its_dtype(tmp_path: Path) -> None:
    task, model = corrector(0.02)
    task._config = SecConfig(export_dtype="bfloat16")
    task.export(model, model.state_dict(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = CandidateCorrection(SecConfig()).load(tmp_path).state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded[name], weight.bfloat16().float()), name
