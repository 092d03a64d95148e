"""evaluate.py, explain.py, generate.py and predict.py with a classifier's checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from bsmeta import evaluate, explain, generate
from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.compose import to_yaml
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.config.tools import GenerateConfig
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.classification.task import TextClassifier
from tests.tasks.classification.helpers import data_config, write_csv, write_leanings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """The folder of a run that made no step."""
    folder = tmp_path_factory.mktemp("run")
    csv = write_leanings(tmp_path_factory.mktemp("data"))
    config = ClassificationConfig(data_config=data_config(csv), model_name=str(encoder))
    task = TextClassifier(config)
    model = task.build_model()
    task.export(model, model.state_dict(), folder / "model")
    (folder / "config.yaml").write_text(to_yaml(config))
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


def test_another_csv_file(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [("Beat my Republican opponent!", "left"), ("stop signs " * 20, "neutral")]
    other = write_csv(tmp_path / "other.csv", rows, ["text", "label"])
    with caplog.at_level(logging.WARNING):
        found = evaluated(run, validation_file=str(other))
    assert (found["source"], found["texts"], found["folded_texts"]) == ("other.csv", 2, 1)
    assert found["distribution"] == {"other.csv": {"left": 1, "neutral": 1, "right": 0}}

    unknown = write_csv(tmp_path / "unknown.csv", [("a", "centre")], ["text", "label"])
    with pytest.raises(DataError, match="row 1 has the label 'centre', which the model does not"):
        evaluated(run, validation_file=str(unknown))


def test_texts_of_the_training_split_and_its_absence_are_reported(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, _ = open_task(str(run), {})
    assert isinstance(task, TextClassifier)
    table = Path(task.examples.facts["csv"])
    with caplog.at_level(logging.WARNING):
        found = evaluated(run, validation_file=str(table))
    assert found["texts"] == 60
    assert "leanings.csv: 48 of its texts are in the training split, too" in caplog.text

    other = table.rename(tmp_path / "moved.csv")
    try:
        with caplog.at_level(logging.WARNING):
            found = evaluated(run, validation_file=str(other))
        assert "no baselines, because the training data cannot be read" in caplog.text
        assert list(found["systems"]) == ["model", "model, first chunk only"]
    finally:
        other.rename(table)


@pytest.mark.parametrize("keys", [{"windows": "first_piece"}, {"prompt": True}])
def test_keys_of_the_language_model_are_refused(run: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(keys))}: without a meaning"):
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
