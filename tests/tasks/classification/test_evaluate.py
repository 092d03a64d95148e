"""The test set after the last step, and `evaluate.py`: results, report and files."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from bsmeta import evaluate, explain, generate
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.saved_runs import format_yaml, read_saved_config
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.classification import classifier, systems
from bsmeta.tasks.classification import evaluate as module
from bsmeta.tasks.classification import model as model_module
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.tasks.classification.evaluate import (
    MODEL_SUFFIX,
    PREDICTIONS_SUFFIX,
    STATS_SUFFIX,
    name_result_file,
    predict_baselines,
    read_epochs,
    save_model,
    write_predictions,
)
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored, build_with_head, load_model
from bsmeta.tasks.classification.report import MAJORITY, summarize_results
from bsmeta.tasks.classification.results import Results, TestSet
from bsmeta.tasks.classification.systems import Split, fit_word_system, predict_by_words
from bsmeta.tasks.classification.task import TextClassifier
from bsmeta.training.ranks.processes import FinishContext
from tests.tasks.classification.helpers import (
    CHUNKS,
    LABELS,
    LOGITS,
    bert_tokenizer,
    data_config,
    results,
    write_csv,
    write_leanings,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """The folder of a run that made no step."""
    folder = tmp_path_factory.mktemp("run")
    table = write_leanings(tmp_path_factory.mktemp("data"))
    config = ClassificationConfig(
        data_config=data_config(table), model_name=str(encoder), method="fine_tune", pooling="head"
    )
    task = TextClassifier(config)
    model = task.build_model()
    task.export(model, model.state_dict(), folder / "model")
    (folder / "config.yaml").write_text(format_yaml(config))
    (folder / "metrics.jsonl").write_text("")
    return folder


def evaluated(run: Path, **keys: Any) -> dict[str, Any]:
    evaluate.main(EvaluateConfig(checkpoint=str(run), bootstrap_resamples=100, **keys))
    name = Path(keys["validation_file"]).stem if "validation_file" in keys else None
    folder = run / ("evaluation" if name is None else f"evaluation-{name}")
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


def test_the_test_split_of_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(run)
    assert (found["source"], found["texts"]) == ("leanings.csv, test split", 6)
    assert list(found["systems"]) == [
        "model", "model, first chunk only", "most frequent label", "TF-IDF + linear SVM"
    ]  # fmt: skip
    assert "Scores on leanings.csv, test split" in capsys.readouterr().out


def test_a_linear_model_is_its_own_baseline(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("fitted again")

    folder = tmp_path / "run"
    config = ClassificationConfig(
        data_config=data_config(write_leanings(tmp_path)), model_name=str(encoder),
        method="linear", out_dir=str(folder),
    )  # fmt: skip
    task = TextClassifier(config)
    model = task.build_model()
    task.export(model, model.state_dict(), folder / "model")
    (folder / "config.yaml").write_text(format_yaml(config))
    (folder / "metrics.jsonl").write_text("")
    monkeypatch.setattr(module, "fit_word_system", fail)
    found = evaluated(folder)
    assert found["systems"]["TF-IDF + linear SVM"]["accuracy"]["minus_model"] == 0.0


def test_another_csv_file_is_evaluated_if_the_model_has_its_labels(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("Beat my Republican opponent!", "left"), ("stop signs " * 20, "neutral")]
    other = write_csv(tmp_path / "other.csv", rows, ["text", "label"])
    with caplog.at_level(logging.WARNING):
        found = evaluated(run, validation_file=str(other))
    assert (found["source"], found["texts"], found["folded_texts"]) == ("other.csv", 2, 1)
    assert found["distribution"] == {"other.csv": {"left": 1, "neutral": 1, "right": 0}}

    unknown = write_csv(tmp_path / "unknown.csv", [("a", "centre")], ["text", "label"])
    with pytest.raises(DataError, match="row 1 has the label 'centre', which the model does not"):
        evaluated(run, validation_file=str(unknown))


def test_rows_that_are_left_out_are_in_the_report(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("Beat my opponent!", "left"), ("", "right"), ("stop signs", "neutral")]
    other = write_csv(tmp_path / "gaps.csv", rows, ["text", "label"])
    skip = {"data_config": {"on_bad_row": "skip"}}
    with caplog.at_level(logging.WARNING):
        found = evaluated(run, validation_file=str(other), overrides=skip)
    assert found["texts"] == 2
    assert found["notes"] == [
        "1 row was left out: row 2 (line 3): no text in 'text'",
    ]
    assert "1 row was left out" in (run / "evaluation-gaps" / "evaluation.md").read_text()
    assert "TF-IDF + linear SVM" in found["systems"]  # the run's own table is read as before

    with pytest.raises(DataError, match=r"with \+overrides.data_config.on_bad_row=skip"):
        evaluated(run, validation_file=str(other))
    more = write_csv(tmp_path / "more.csv", [*rows, ("a", "centre")], ["text", "label"])
    with pytest.raises(DataError, match="row 4 has the label 'centre'"):
        evaluated(run, validation_file=str(more), overrides=skip)


def test_texts_of_the_training_split_and_its_absence_are_reported(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, _ = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    table = Path(task.examples.facts["csv"])
    with caplog.at_level(logging.WARNING):
        found = evaluated(run, validation_file=str(table))
    assert found["texts"] == 60
    assert "leanings.csv: 48 of 60 texts are in the training split, too" in caplog.text
    assert found["notes"] == ["48 of 60 texts are in the training split, too"]

    other = table.rename(tmp_path / "moved.csv")
    try:
        with caplog.at_level(logging.WARNING):
            found = evaluated(run, validation_file=str(other))
        assert "no baselines, because the training data cannot be read" in caplog.text
        assert list(found["systems"]) == ["model", "model, first chunk only"]
        assert found["notes"] == ["not compared with the training texts, which cannot be read"]
    finally:
        other.rename(table)


@pytest.mark.parametrize("keys", [{"windows": "first_piece"}, {"prompt": True}])
def test_keys_of_the_language_model_are_refused(run: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(keys))}: no effect"):
        evaluated(run, **keys)


def test_programs_that_do_not_know_the_task_refuse_it_by_name(run: Path) -> None:
    rest = "works with task=causal_lm only; for task=classification there is evaluate.py and"
    with pytest.raises(ConfigurationError, match=f"task=classification: generate.py {rest}"):
        generate.main(GenerateConfig(checkpoint=str(run)))
    with pytest.raises(ConfigurationError, match=f"task=classification: explain.py {rest}"):
        explain.main(ClassificationConfig())


def test_predictions_of_new_texts(run: Path) -> None:
    task, folder = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    model = task.load(folder)
    texts = ["Beat my Republican opponent!", "stop signs " * 20, " "]
    first, second, third = task.predict(model, ({"text": text} for text in texts))
    assert first.keys() == {"prediction", "probabilities", "chunks"}
    assert sum(second["probabilities"].values()) == pytest.approx(1.0)
    assert [*second["probabilities"]] == ["left", "neutral", "right"]
    assert (first["chunks"], second["chunks"]) == (1, 3)
    nothing = dict.fromkeys(["left", "neutral", "right"])
    assert third == {"prediction": None, "probabilities": nothing, "chunks": 0}


def test_the_model_is_counted_without_its_weights(run: Path) -> None:
    task, _ = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    shape = task.shape()
    assert {parameter.device.type for parameter in shape.model.parameters()} == {"meta"}
    assert (shape.rows, shape.length) == (16, 16)


def test_predictions_are_one_line_for_each_source_text(tmp_path: Path) -> None:
    write_predictions(tmp_path / "ads_predictions.csv", Scored.of(CHUNKS, LOGITS), LABELS)
    # The second text: softmax of the means of log(.5, .25, .25) and log(.1, .1, .8).
    assert (tmp_path / "ads_predictions.csv").read_text() == (
        "row,label,prediction,probabilities.left,probabilities.neutral,probabilities.right,chunks\n"
        "3,left,left,0.800000,0.100000,0.100000,1\n"
        "7,right,right,0.269752,0.190744,0.539504,2\n"
        "9,neutral,left,0.500000,0.300000,0.200000,1\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["ads_predictions.csv"]


def test_other_systems_are_compared_with_the_model() -> None:
    found = {system.name: system for system in results().systems}
    matrices = {
        name: system.confusion.matrix([0, 1, 2])[:3, :3].tolist() for name, system in found.items()
    }
    assert matrices == {
        "model": [[1, 0, 0], [1, 0, 0], [0, 0, 1]],
        "model, first chunk only": [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
        "most frequent label": [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
        "TF-IDF + linear SVM": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    }
    assert results().units == (2, "values of page")
    assert results().per_label["left"] == {
        "precision": 0.5,
        "recall": 1.0,
        "f1": pytest.approx(2 / 3),
        "texts": 1.0,
    }
    sentences = summarize_results(results())
    assert sentences[0].startswith("The model predicts 66.7% of 3 texts right")
    assert sentences[1] == (
        "2 values of page are few to resample: 95% intervals over them are rough, and usually too "
        "narrow."
    )
    assert sentences[2].startswith(
        "1 of 3 texts is longer than a chunk. Truncated to the first one, 33.3% of all would be "
        "right: -33.3 points compared with the model"
    )
    assert sentences[-2] == (
        "1 label is never predicted: 'neutral'. With class_weights=balanced, the texts of rare "
        "labels weigh more."
    )
    assert sentences[-1] == "1 of 4 rows repeats the text of an earlier row."


def test_what_was_trained_is_kept_if_the_report_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Results:
        raise MemoryError

    monkeypatch.setattr(module, "compute_results", fail)
    task, folder = open_task(str(run), {"results_dir": str(tmp_path)})
    assert isinstance(task, TextClassifier)
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "model").symlink_to(folder)
    context = FinishContext(folder=tmp_path, exported=tmp_path)
    with pytest.raises(MemoryError):
        task.finish(torch.nn.Identity(), context)
    lines = (tmp_path / "leanings_testset_predictions.csv").read_text().splitlines()
    assert len(lines) == 7
    saved = torch.load(tmp_path / "leanings_trained_model.sav", weights_only=True)
    assert saved["labels"] == ["left", "neutral", "right"]
    stats = json.loads((tmp_path / "leanings_train_test_stats.json").read_text())
    assert 0 <= stats["test"]["scores"]["accuracy"] <= 1


@pytest.mark.parametrize(("safe", "label"), [(False, "=1+1"), (True, "'=1+1")])
def test_labels_of_the_predictions_that_are_formulas(
    tmp_path: Path, safe: bool, label: str
) -> None:
    chunks = [Chunk([1], 0, 3, 0, "a"), Chunk([1], 1, 4, 0, "b")]
    scored = Scored.of(chunks, np.zeros((2, 2)))
    write_predictions(tmp_path / "out.csv", scored, ["=1+1", "-2"], spreadsheet_safe=safe)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["label"] for row in rows] == [label, "-2"]
    assert [row["prediction"] for row in rows] == [label, label]
    assert [row["row"] for row in rows] == ["3", "4"]


def test_logits_of_some_texts_at_a_time_predict_alike(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, folder = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    model = task.load(folder)
    records = [{"text": "stop signs " * count} for count in (1, 20, 3, 0, 40, 2)]
    whole = [*task.predict(model, records)]
    monkeypatch.setattr(model_module, "MAX_LOGITS", 12)  # four chunks
    parts = [*task.predict(model, records)]
    assert [part["chunks"] for part in parts] == [1, 3, 1, 0, 6, 1]
    for part, found in zip(parts, whole, strict=True):
        assert part["prediction"] == found["prediction"]
        assert part["probabilities"] == pytest.approx(found["probabilities"], abs=1e-6)


def test_epochs_from_the_metrics_of_a_run(tmp_path: Path) -> None:
    def step(number: int, loss: float, accuracy: float, chunks: float, weight: float) -> dict:
        counts = {"chunks": chunks, "weight": weight}
        return {"event": "step", "step": number, "loss": loss, "parts": {"accuracy": accuracy},
                "counts": counts}  # fmt: skip

    lines = [
        step(1, 1.0, 0.5, 4, 6), step(2, 0.4, 1.0, 2, 2),
        {"event": "eval", "step": 2, "split": "validation", "loss": 0.7, "accuracy": 0.6},
        {"event": "save", "step": 2},
        step(3, 0.6, 0.75, 4, 6), step(4, 0.2, 0.5, 2, 2),
        {"event": "eval", "step": 4, "split": "validation", "loss": 0.6, "accuracy": 0.8},
        {"event": "eval", "step": 4, "split": "test", "loss": 9.0, "accuracy": 0.1},
    ]  # fmt: skip
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_epochs(metrics, 2) == [
        {"epoch": 1.0, "step": 2, "training_loss": pytest.approx(0.85),
         "training_accuracy": pytest.approx(4 / 6), "validation_loss": 0.7,
         "validation_accuracy": 0.6},
        {"epoch": 2.0, "step": 4, "training_loss": pytest.approx(0.5),
         "training_accuracy": pytest.approx(4 / 6), "validation_loss": 0.6,
         "validation_accuracy": 0.8},
    ]  # fmt: skip


@pytest.mark.parametrize("table", ["ads.csv", "ads.csv.gz", "ads.sqlite"])
def test_result_files_are_named_as_in_the_seed_document(table: str) -> None:
    data = ClassificationDataConfig(csv=f"folder/{table}")
    config = ClassificationConfig(data_config=data)
    assert [
        str(name_result_file(config, name))
        for name in (PREDICTIONS_SUFFIX, STATS_SUFFIX, MODEL_SUFFIX)
    ] == [
        "folder/ads_testset_predictions.csv",
        "folder/ads_train_test_stats.json",
        "folder/ads_trained_model.sav",
    ]
    config = replace(config, results_dir="elsewhere")
    assert str(name_result_file(config, MODEL_SUFFIX)) == "elsewhere/ads_trained_model.sav"


def test_the_saved_model_holds_tensors_and_plain_values_only(tmp_path: Path, encoder: Path) -> None:
    data = ClassificationDataConfig(max_length=16)
    config = ClassificationConfig(model_name=str(encoder), data_config=data)
    model = build_with_head(config, bert_tokenizer(), LABELS).eval()
    save_model(tmp_path / "ads_trained_model.sav", model, config)
    saved = torch.load(tmp_path / "ads_trained_model.sav", weights_only=True)
    assert (saved["labels"], saved["max_length"], saved["fold_by"]) == (
        ["left", "neutral", "right"], 16, "tokens"
    )  # fmt: skip
    again = BertForSequenceClassification(model.config_class.from_dict(saved["config"])).eval()
    again.load_state_dict(saved["state_dict"])
    ids = torch.tensor([[2, 7, 8, 3]])
    torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits)

    model.save_pretrained(tmp_path / "model")
    folder = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert folder.config.id2label == {0: "left", 1: "neutral", 2: "right"}
    torch.testing.assert_close(folder(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_folder_that_cannot_be_written_is_the_user_s_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Set results_dir=FOLDER and resume the run"):
        write_predictions(tmp_path / "file" / "x.csv", Scored.of(CHUNKS, LOGITS), LABELS)


def test_baselines_are_scored_on_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    test = TestSet("a.csv", ("a", "b", "c"), [Chunk([], 0, n, 0, "a") for n in range(3)],
                   ["1", "2", "3"], "texts", {}, [])  # fmt: skip
    found, _ = predict_baselines(test, Split(np.array([1, 1, 0, 2]), ["a"] * 4), [1.0] * 3)
    assert found[MAJORITY].tolist() == [1, 1, 1]
    texts = ["cut the taxes", "lower taxes now", "raise the wages", "fair wages for all"]
    labels = np.array([0, 0, 1, 1])

    def guessed(texts: list[str], labels: np.ndarray, others: list[str]) -> list[int]:
        model, notes = fit_word_system("ab", [1.0, 1.0], Split(labels, texts))
        assert model is not None
        assert notes == []
        return predict_by_words(model, others).tolist()

    others = ["taxes", "wages", "taxes", "wages", "taxes"]
    assert guessed(texts, labels, others) == [0, 1, 0, 1, 0]
    monkeypatch.setattr(classifier, "MAX_WORD_LOGITS", 4)  # two texts at a time
    assert guessed(texts, labels, others) == [0, 1, 0, 1, 0]
    assert guessed(["!", "?"], np.array([1, 1]), ["a"]) == [1]
    assert guessed(["!", "?"], np.array([0, 1]), ["a"]) == [0]
    monkeypatch.setattr(systems, "MAX_WORD_WEIGHTS", 30)
    model, (note,) = fit_word_system("ab", [1.0, 1.0], Split(labels, texts))
    assert model is None
    assert note.startswith("TF-IDF + linear SVM left out: with 2 labels")


def test_a_table_with_other_labels_than_the_model_is_refused(run: Path, tmp_path: Path) -> None:
    """Scores compare indexes: with the labels of `right` and `left` swapped, they were the same."""
    other_run = tmp_path / "run"
    shutil.copytree(run, other_run)
    file = other_run / "model" / "config.json"
    content = json.loads(file.read_text())
    assert content["id2label"] == {"0": "left", "1": "neutral", "2": "right"}
    content["id2label"] = {"0": "right", "1": "neutral", "2": "left"}
    file.write_text(json.dumps(content))

    with pytest.raises(ConfigurationError) as error:
        evaluated(other_run)
    table = read_saved_config(run / "config.yaml", TASKS, {}).data_config.csv  # type: ignore[attr-defined]
    assert str(error.value) == (
        f"checkpoint={other_run}: the model has the labels right, neutral, left, and the table "
        f"{table} has left, neutral, right; expected the same labels in the same order: restore "
        "the table that the model was trained on, or name another table: validation_file=FILE"
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": "left", "1": "left", "2": "right"}, "'left' occurs more than once"),
        ({"0": "left", "1": "", "2": "right"}, "one of them is empty or no text"),
        ({"0": "left", "1": "neutral", "3": "right"}, "one of them is empty or no text"),
    ],
)
def test_a_head_without_a_distinct_label_for_each_logit_is_refused(
    run: Path, tmp_path: Path, labels: dict[str, str], message: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(run / "model", model)
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**content, "id2label": labels}))
    with pytest.raises(DataError, match=rf"config\.json: id2label: labels: {message}"):
        load_model(model)
