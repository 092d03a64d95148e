"""Texts with several labels, from the table to the annotator, through real processes."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, pipeline

from bsmeta import evaluate, predict
from bsmeta.annotate.inputs.sources import InputRecord
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.classification.classifier import Classifier
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Chunk, Examples, open_examples
from bsmeta.tasks.classification.model import (
    ScoredSets,
    compute_label_weights,
    load_model,
    read_thresholds,
)
from bsmeta.tasks.classification.results import compute_scores
from bsmeta.tasks.classification.store import SPLITS
from bsmeta.tasks.classification.task import TextClassifier, build_set_batch
from bsmeta.training.checkpoints.checkpoint import TRAINER_STATE_FILE
from bsmeta.training.ranks.processes import ALONE
from tests.annotate.helpers import annotated, values
from tests.conftest import command, run_warm
from tests.tasks.classification.helpers import bert_tokenizer, data_config, write_csv
from tests.tasks.training import TRAIN, events

Launch = Callable[..., CompletedProcess[str]]

# Each topic has words of its own; a text may have several topics, or none.
TOPICS = {
    "farm": ("cow", "barn", "plow", "hay"),
    "money": ("bank", "loan", "coin", "debt"),
    "water": ("boat", "river", "fish", "wave"),
}
FILLER = ("the", "of", "and", "with", "old", "near", "some", "many")


def make_rows(count: int = 240) -> list[dict[str, Any]]:
    draw = np.random.default_rng(5)
    rows = []
    for number in range(count):
        topics = [topic for topic in TOPICS if draw.random() < 0.4]
        words = [*draw.choice(FILLER, 6), str(number)]
        for topic in topics:
            words += [str(word) for word in draw.choice(TOPICS[topic], 3)]
        rows.append({"text": " ".join(draw.permutation(words)), "topics": topics})
    return rows


def write_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_cells(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The same rows as CSV, whose labels are separated."""
    cells = [(row["text"], "; ".join(row["topics"])) for row in rows]
    return write_csv(path, cells, ["text", "topics"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A run of `method=auto` on JSON lines."""
    folder = tmp_path_factory.mktemp("several")
    table = write_json(folder / "topics.jsonl", make_rows())
    done = run_warm(
        command(
            TRAIN, "--config-name", "classification", f"data_config.csv={table}",
            "data_config.label_column=topics", "data_config.max_length=16",
            f"model_name={encoder}", f"out_dir={folder}/run", "trackers=[]",
            "learning_rate=0.005", "num_train_epochs=2", "class_weights={money: 2}",
            "bootstrap_resamples=100", "data_config.split_fractions=[0.6,0.2,0.2]",
            processes=1,
        )
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "run"


def read_report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return content


def test_the_report_compares_the_model_with_cheap_systems(run: Path) -> None:
    report = read_report(run / "evaluation")
    assert list(report["systems"])[:4] == [
        "model", "model, first chunk only", "most frequent set of labels", "most frequent labels",
    ]  # fmt: skip
    # The linear system is chosen, and is the baseline, too; the three others follow.
    assert report["choice"]["chosen"] == "linear"
    assert list(report["systems"])[4:] == [
        "TF-IDF + linear SVM", "frozen vectors + logistic regression",
        "TF-IDF and frozen vectors + linear SVM", "fine-tuned encoder",
    ]  # fmt: skip
    assert report["systems"]["TF-IDF + linear SVM"]["micro_f1"]["minus_model"] == 0.0
    assert report["systems"]["model"]["micro_f1"]["value"] > 0.8
    assert report["systems"]["most frequent labels"]["micro_f1"]["value"] < 0.8
    assert "confusion" not in report["systems"]["model"]
    assert set(report["choice"]["systems"]) == {"linear", "frozen", "combined", "fine_tune"}
    assert set(report["per_label"]["farm"]) == {"precision", "recall", "f1", "texts", "threshold"}
    page = (run / "evaluation" / "evaluation.md").read_text()
    assert "The strongest baseline is " in page
    assert "threshold" in page
    assert {file.name for file in (run / "evaluation").glob("*.png")} == {
        "systems.png", "labels.png", "curves.png",
    }  # fmt: skip


def test_scores_of_the_predictions_are_those_of_scikit_learn(run: Path) -> None:
    with (run.parent / "topics_testset_predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [
        "row",
        "label",
        "prediction",
        *(f"probabilities.{name}" for name in TOPICS),
        "chunks",
    ]
    assert [*rows[0]] == columns
    assert len(rows) == 48

    source = make_rows()
    truth, guess = ([[name in json.loads(row[column]) for name in TOPICS] for row in rows]
                    for column in ("label", "prediction"))  # fmt: skip
    for row in rows:
        assert json.loads(row["label"]) == source[int(row["row"]) - 1]["topics"]
    scores = read_report(run / "evaluation")["scores"]
    assert scores["subset_accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))
    for average in ("micro", "macro"):
        expected = metrics.f1_score(truth, guess, average=average)
        assert scores[f"{average}_f1"] == pytest.approx(expected)
    expected = metrics.f1_score(truth, guess, average="samples", zero_division=1.0)
    assert scores["sample_f1"] == pytest.approx(expected)

    # A text has a label if its probability reaches the threshold that the model was exported with.
    thresholds = read_thresholds(load_model(run / "model"))
    assert thresholds is not None
    for row in rows:
        reached = [
            name
            for name, threshold in zip(TOPICS, thresholds, strict=True)
            if float(row[f"probabilities.{name}"]) >= threshold
        ]
        assert json.loads(row["prediction"]) == reached


def test_thresholds_are_chosen_without_the_test_split(run: Path, tmp_path: Path) -> None:
    """A table whose test rows have other labels gives the same thresholds."""
    task, _ = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    test_rows = {int(row) for row in task.examples.list_sources("test")}
    assert test_rows.isdisjoint(task.examples.list_sources("validation").tolist())

    chosen = []
    for name, changes in (("same", False), ("other", True)):
        split_of = {
            int(row): split for split in SPLITS for row in task.examples.list_sources(split)
        }
        rows = []
        for number, row in enumerate(make_rows(), 1):
            topics = row["topics"][number % 3 == 0 :]  # noise, so that thresholds differ
            if changes and split_of[number] == "test":
                topics = [topic for topic in TOPICS if topic not in topics]
            rows.append({**row, "topics": topics, "split": split_of[number]})
        table = write_json(tmp_path / f"{name}.jsonl", rows)
        data = data_config(table, label_column="topics", split_column="split")
        config = ClassificationConfig(
            data_config=data, model_name=str(run / "model"), method="linear",
            tokenizer_name=str(run / "model"), out_dir=str(tmp_path / name),
        )  # fmt: skip
        system = TextClassifier(config).fit_systems().load("linear", None)
        chosen.append(system.description.thresholds)
    assert chosen[0] == chosen[1]
    assert chosen[0] is not None
    assert set(chosen[0]) != {0.5}


def test_evaluations_score_several_labels(run: Path) -> None:
    evaluations = events(run, "eval")
    assert [event["split"] for event in evaluations] == ["validation", "validation", "test"]
    for event in evaluations:
        assert {"loss", "subset_accuracy", "micro_f1", "macro_f1", "sample_recall"} <= event.keys()
        assert "accuracy" not in event
    assert all("subset_accuracy" in step["parts"] for step in events(run, "step"))
    stats = json.loads((run.parent / "topics_train_test_stats.json").read_text())
    assert stats["epochs"][-1]["training_subset_accuracy"] is not None
    # A checkpoint has the thresholds of the evaluation before it.
    checkpoints = [*run.glob("checkpoint-*step")]
    assert checkpoints
    for checkpoint in checkpoints:
        fine_tuned = load_model(checkpoint / "model")
        assert isinstance(fine_tuned, Classifier)
        state = json.loads((checkpoint / TRAINER_STATE_FILE).read_text())
        assert fine_tuned.description.thresholds == state["task"]


def test_the_exported_folder_says_that_a_text_may_have_several_labels(run: Path) -> None:
    content = json.loads((run / "model" / "config.json").read_text())
    assert content["problem_type"] == "multi_label_classification"
    assert len(content["text_classifier"]["thresholds"]) == 3
    card = (run / "model" / "README.md").read_text()
    assert "of which a text may have several or none: farm, money, water." in card
    assert "multi\\_label\\_classification" in card or "multi_label_classification" in card
    assert "micro_f1" in card.replace("\\", "")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_another_table_is_evaluated_in_every_format(run: Path, tmp_path: Path, ending: str) -> None:
    rows = make_rows(20)
    table = tmp_path / f"new.{ending}"
    overrides: dict[str, Any] = {}
    if ending == "csv":
        write_cells(table, rows)
        overrides = {"data_config": {"label_separator": ";"}}
    elif ending == "jsonl":
        write_json(table, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), table)
    evaluate.main(
        EvaluateConfig(
            checkpoint=str(run), validation_file=str(table), out_dir=str(tmp_path / "report"),
            bootstrap_resamples=20, overrides=overrides,
        )
    )  # fmt: skip
    report = read_report(tmp_path / "report")
    assert report["texts"] == 20
    assert report["distribution"][table.name] == {
        topic: sum(topic in row["topics"] for row in rows) for topic in TOPICS
    }
    assert report["notes"][0].endswith("of 20 texts are in the training split, too")
    assert report["systems"]["model"]["micro_f1"]["value"] > 0.8


def test_a_table_of_the_other_form_is_refused(run: Path, tmp_path: Path) -> None:
    def check(table: Path, message: str, error: type[Exception] = ConfigurationError) -> None:
        with pytest.raises(error, match=message):
            evaluate.main(EvaluateConfig(checkpoint=str(run), validation_file=str(table)))

    row = {"text": "the boat", "topics": "water"}
    one = write_json(tmp_path / "one.jsonl", [row])
    check(one, "but the model has several labels, as a list")
    cells = write_cells(tmp_path / "cells.csv", make_rows(3))
    check(cells, "label_separator is null")
    other = write_json(tmp_path / "other.jsonl", [{**row, "topics": ["water", "wather"]}])
    check(other, r"row 1 has the label 'wather', which the model does not know \(did", DataError)


def test_predictions_are_lists_of_labels(run: Path, tmp_path: Path) -> None:
    texts = ["cow barn hay and bank loan coin", "the of with", "fish wave boat of the", "…"]
    table = write_json(tmp_path / "new.jsonl", [{"text": text} for text in texts])
    for ending in ("csv", "jsonl"):
        output = tmp_path / f"out.{ending}"
        predict.main(PredictConfig(checkpoint=str(run), input=str(table), output=str(output)))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines[:3]] == [["farm", "money"], [], ["water"]]
    assert [*lines[0]["probabilities"]] == [*TOPICS]
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["prediction"]) for row in rows[:3]] == [["farm", "money"], [], ["water"]]
    assert float(rows[0]["probabilities.farm"]) == pytest.approx(lines[0]["probabilities"]["farm"])


def test_the_annotator_records_every_label(run: Path) -> None:
    def annotate(text: str) -> list[str]:
        return values(annotated(InputRecord(text=text), "label", label_model=str(run)))

    assert annotate("cow barn hay and bank loan coin") == ["farm", "money"]
    assert annotate("the of with") == []


def make_task(folder: Path, encoder: Path, **keys: Any) -> TextClassifier:
    table = folder / "topics.jsonl"
    if not table.exists():
        write_json(table, make_rows(120))
    settings = {"method": "fine_tune", "head_start": "random", **keys}
    config = ClassificationConfig(
        data_config=data_config(table, label_column="topics"), model_name=str(encoder),
        out_dir=str(folder / "run"), **settings,
    )  # fmt: skip
    return TextClassifier(config)


def test_a_model_of_transformers_says_its_problem_type_to_pipelines(
    tmp_path: Path, encoder: Path
) -> None:
    task = make_task(tmp_path, encoder, pooling="head")
    model = task.build_model().eval()
    task.evaluate(model, ALONE)
    task.export(model, model.state_dict(), tmp_path / "model")
    classify = pipeline("text-classification", str(tmp_path / "model"), top_k=None, device="cpu")
    (entries,) = classify(["cow and bank"])
    scores = {entry["label"]: entry["score"] for entry in entries}
    (prediction,) = task.predict(task.load(tmp_path / "model"), [{"text": "cow and bank"}])
    assert scores == pytest.approx(prediction["probabilities"], abs=1e-5)  # sigmoids

    # The thresholds outlast the run that chose them, in the folder and in a checkpoint.
    resumed = make_task(tmp_path, encoder, pooling="head")
    resumed.restore(task.state())
    resumed.export(model, model.state_dict(), tmp_path / "again")
    chosen = task.state()
    for name in ("model", "again"):
        thresholds = read_thresholds(load_model(tmp_path / name))
        assert thresholds is not None
        assert thresholds.tolist() == chosen


def test_a_model_of_others_is_read_by_its_problem_type(tmp_path: Path, encoder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder, id2label={0: "a", 1: "b"}, problem_type="multi_label_classification"
    )
    model.save_pretrained(tmp_path / "several")
    thresholds = read_thresholds(load_model(tmp_path / "several"))
    assert thresholds is not None
    assert thresholds.tolist() == [0.5, 0.5]
    model.config.problem_type = None
    model.save_pretrained(tmp_path / "one")
    assert read_thresholds(load_model(tmp_path / "one")) is None

    content = json.loads((tmp_path / "several" / "config.json").read_text())
    content["label_thresholds"] = [0.5, 2]
    (tmp_path / "several" / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="label_thresholds: thresholds: expected 2 values from 0"):
        read_thresholds(load_model(tmp_path / "several"))


def test_a_metric_of_the_other_form_does_not_select_a_checkpoint(
    tmp_path: Path, encoder: Path
) -> None:
    task = make_task(tmp_path, encoder, keep_best_by="accuracy")
    with pytest.raises(ConfigurationError, match="has several labels; expected one of loss, subse"):
        _ = task.examples
    assert make_task(tmp_path, encoder, keep_best_by="micro_f1").examples.has_several


def test_the_loss_is_the_binary_cross_entropy_by_the_weights_of_the_labels(
    tmp_path: Path, encoder: Path
) -> None:
    task = make_task(tmp_path, encoder, pooling="head", dropout=0.0)
    model = task.build_model().eval()
    chunks = [Chunk([2, 7, 8, 3], (0, 2), 4, 0, "ab"), Chunk([2, 9, 3], (), 9, 0, "c")]
    weights = [1.0, 4.0, 3.0]
    batch = build_set_batch(chunks, bert_tokenizer(), weights, "topics.jsonl")
    assert batch.tensors["labels"].tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert batch.tensors["weights"].tolist() == [[1.0, 1.0, 3.0], [1.0, 1.0, 1.0]]
    assert (batch.weight, batch.counts["chunks"]) == (8.0, 2.0)

    with torch.no_grad():
        logits = model(
            input_ids=batch.tensors["input_ids"], attention_mask=batch.tensors["attention_mask"]
        ).logits
        loss = task.loss(model, batch.tensors)
    expected = functional.binary_cross_entropy_with_logits(
        logits, batch.tensors["labels"], pos_weight=torch.tensor(weights), reduction="sum"
    )
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)

    scored = ScoredSets.of(chunks, logits.numpy(), np.full(3, 0.5), weights)
    assert compute_scores(scored, weights)["loss"] == pytest.approx(expected.item() / 8, rel=1e-5)


def test_balanced_weights_are_those_of_rows_without_the_label() -> None:
    counts = {"a": 2, "b": 5}
    assert compute_label_weights("balanced", "ab", counts, 10) == [4.0, 1.0]
    assert compute_label_weights({"b": 3}, "ab", counts, 10) == [1.0, 3.0]


def read_table(table: Path, **keys: Any) -> Examples:
    return open_examples(data_config(table, label_column="topics", **keys), bert_tokenizer())


def test_all_formats_give_the_same_database(tmp_path: Path) -> None:
    rows = make_rows(60)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    tables = [
        read_table(write_json(tmp_path / "a.jsonl", rows)),
        read_table(write_cells(tmp_path / "b.csv", rows), label_separator=";"),
        read_table(tmp_path / "c.parquet", labels="several"),
    ]
    for split in SPLITS:
        texts = [
            (text, [table.labels[number] for number in label])
            for table in tables
            for _, text, label in table.read_texts(split)
            if isinstance(label, tuple)
        ]
        count = len(texts) // 3
        assert texts[:count] == texts[count : 2 * count] == texts[2 * count :] != []
        for text, topics in texts[:count]:
            assert {"text": text, "topics": topics} in rows
        chunks = tables[0].read(tables[0].list_chunks(split))
        assert all(isinstance(chunk.label, tuple) for chunk in chunks)
        assert tables[0].count_labels(split) == {
            topic: sum(topic in topics for _, topics in texts[:count]) for topic in TOPICS
        }
    (note,) = tables[0].facts["notes"]
    assert note.startswith("several labels: ")


def test_another_separator_or_form_is_refused_by_name(tmp_path: Path) -> None:
    table = write_cells(tmp_path / "b.csv", make_rows(60))
    built = read_table(table, label_separator=";").database
    for path in (table, built):
        with pytest.raises(ConfigurationError, match="label_separator: ; in the database, None no"):
            read_table(path)
    read_table(write_json(tmp_path / "a.jsonl", make_rows(60)))
    with pytest.raises(ConfigurationError, match="labels: several in the database, one now"):
        read_table(tmp_path / "a.sqlite", labels="one")
    assert "data_config.label_separator" not in read_table(tmp_path / "a.jsonl").key


def test_leaks_and_doubtful_labels_are_in_the_warnings(tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} {' '.join(row['topics'])}"} for row in make_rows(60)]
    for row, split in zip(rows, ["train"] * 40 + ["validation"] * 10 + ["test"] * 10, strict=True):
        row["split"] = split
    rows[-1] = {**rows[0], "topics": ["Farm"], "split": "test"}
    rows.append({"text": "x y z", "topics": ["Farm", "rare"], "split": "train"})
    table = write_json(tmp_path / "leaks.jsonl", rows)
    warnings = "\n".join(read_table(table, split_column="split").facts["warnings"])
    assert "labels that may be meant as one: 'Farm' and 'farm'" in warnings
    assert "1 text has more than one set of labels: row 1 (" in warnings
    assert "1 of 10 rows of the test split have a text that is also in the training" in warnings
    assert "label has no row in the test split: 'rare'" in warnings
    assert "texts contain one of their labels, word for word" in warnings


def test_a_label_that_is_never_trained_on_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "split": "train"} for row in make_rows(40)]
    rows.append({"text": "x", "topics": ["late"], "split": "test"})
    table = write_json(tmp_path / "late.jsonl", rows)
    with pytest.raises(DataError, match="column 'split' leaves no row for training with .* 'late'"):
        read_table(table, split_column="split")
    empty = write_json(tmp_path / "empty.jsonl", [{"text": "a", "topics": []}] * 9)
    with pytest.raises(DataError, match="all rows have no label in column 'topics'; expected at"):
        read_table(empty)


def test_a_damaged_set_of_labels_is_refused(tmp_path: Path) -> None:
    database = read_table(write_json(tmp_path / "a.jsonl", make_rows(60))).database
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE facts SET value = '[[0, 7]]' WHERE name = 'label_sets'")
    with pytest.raises(DataError, match="a set of labels has the number 7, expected 0 to [1-6]"):
        read_table(tmp_path / "a.jsonl")


def test_a_table_of_one_label_still_trains_from_json_lines(tmp_path: Path) -> None:
    rows = [{"text": f"stop {n}", "topics": "ab"[n % 2]} for n in range(30)]
    examples = read_table(write_json(tmp_path / "one.jsonl", rows))
    assert not examples.has_several
    assert examples.read_truth("test").dtype == np.int64
    assert "label_sets" not in examples.facts
