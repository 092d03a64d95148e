"""Real processes predict the rows of a file, and read a table ahead of a run."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from bsmeta import predict
from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import DataError, UserError
from bsmeta.predict import read_text
from bsmeta.tasks.checkpoints import open_task
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.task import TextClassifier
from tests.conftest import REPOSITORY
from tests.tasks.classification.helpers import data_config, write_csv, write_leanings

PREDICT = REPOSITORY / "bsmeta" / "predict.py"
TRAIN = REPOSITORY / "bsmeta" / "train.py"
STOPPED = Path(__file__).with_name("stopped_predict.py")
Launch = Callable[..., CompletedProcess[str]]
LABELS = ("left", "neutral", "right")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A run folder with an untrained model; the table that it was trained on is gone."""
    folder = tmp_path_factory.mktemp("run")
    table = write_leanings(folder)
    config = ClassificationConfig(
        data_config=data_config(table), model_name=str(encoder), method="fine_tune",
        head_start="random",
    )  # fmt: skip
    task = TextClassifier(config)
    torch.manual_seed(1)
    model = task.build_model()
    torch.nn.init.normal_(model.head.weight)
    task.export(model, model.state_dict(), folder / "model")
    (folder / "config.yaml").write_text(format_yaml(config))
    for file in folder.glob("leanings*"):
        file.unlink()
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_text_on_the_command_line_is_predicted(launch: Launch, run: Path, tmp_path: Path) -> None:
    done = launch(PREDICT, f"checkpoint={run}", "text=stop signs, today [1]", "show=json")
    result = json.loads(done.stdout)
    assert result["text"] == "stop signs, today [1]"

    done = launch(PREDICT, f"checkpoint={run}", "text=stop signs, today [1]")
    label, *lines = done.stdout.splitlines()
    assert label == result["prediction"]
    assert sorted(line.split()[1] for line in lines) == ["left", "neutral", "right"]
    done = launch(PREDICT, f"checkpoint={run}", "text=signs", "show=diff", check=False)
    assert done.returncode == 2
    assert "does not change texts; expected show=text or show=json" in done.stderr


@pytest.mark.parametrize(
    ("prediction", "first_line"), [("left", "left"), (["left", "a"], "left, a"), ([], "(no label)")]
)
def test_the_five_highest_probabilities_are_shown(
    prediction: str | list[str], first_line: str
) -> None:
    probabilities = {"a": 0.02, "left": 0.9, "b": 0.03, "c": 0.01, "d": 0.035, "e": 0.005}
    text = predict.format_prediction({"prediction": prediction, "probabilities": probabilities})
    assert text == (
        f"{first_line}\n   90.0%  left\n    3.5%  d\n    3.0%  b\n    2.0%  a\n    1.0%  c\n"
    )


def test_a_text_without_tokens_has_no_prediction() -> None:
    result = {"prediction": None, "probabilities": {"a": None, "left": None}, "chunks": 0}
    text = predict.format_prediction(result)
    assert text == "(no prediction: the text has no tokens)\n"


def test_predicts_csv_and_json_lines_alike(launch: Launch, run: Path, tmp_path: Path) -> None:
    rows = [["7", "stop signs " * 20, "left"], ["8", 'two\nlines, "quoted"', ""], ["9", "!", "x"]]
    table = write_csv(tmp_path / "new.csv", rows, ["id", "text", "label"])
    launch(PREDICT, f"checkpoint={run}", f"input={table}", f"output={tmp_path}/out.csv")
    launch(PREDICT, f"checkpoint={run}", f"input={table}", f"output={tmp_path}/out.jsonl")
    found, lines = rows_of(tmp_path / "out.csv"), rows_of(tmp_path / "out.jsonl")
    assert [[row["id"], row["text"], row["label"]] for row in found] == rows
    assert [row["chunks"] for row in lines] == [3, 2, 1]
    for row, line in zip(found, lines, strict=True):
        shares = {label: float(row[f"probabilities.{label}"]) for label in LABELS}
        assert sum(shares.values()) == pytest.approx(1)
        assert row["prediction"] == max(shares, key=lambda label: shares[label])
        assert {**line, "probabilities": shares, "chunks": row["chunks"]} == {
            **{name: row[name] for name in ("id", "text", "label", "prediction", "chunks")},
            "probabilities": shares,
        }
    assert len({row["probabilities.left"] for row in found}) == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new.csv", "out.csv", "out.jsonl"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 75), (signal.SIGKILL, -9)]
)
def test_an_interrupted_call_is_continued(
    launch: Launch, run: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    rows = [[f"stop {row} " * (1 + row % 9), row] for row in range(300)]
    table = write_csv(tmp_path / "new.csv", rows, ["text", "id"])
    arguments = (f"checkpoint={run}", f"input={table}")
    launch(PREDICT, *arguments, f"output={tmp_path}/whole.csv")
    arguments = (*arguments, f"output={tmp_path}/out.csv")
    stopped = launch(STOPPED, *arguments, check=False, SIGNAL=str(int(number)), AT="250")
    assert stopped.returncode == code
    part = tmp_path / "out.csv.part"
    size = part.stat().st_size
    assert size > 4096
    assert not (tmp_path / "out.csv").exists()
    other = launch(PREDICT, *arguments, "csv_encoding=cp1251", check=False)
    assert other.returncode == 2
    assert "csv_encoding" in other.stderr
    done = launch(PREDICT, *arguments)
    assert "continuing after" in done.stderr
    assert not part.exists()
    whole, found = rows_of(tmp_path / "whole.csv"), rows_of(tmp_path / "out.csv")
    assert [row["id"] for row in found] == [str(row) for row in range(300)]
    for ours, theirs in zip(found, whole, strict=True):
        for name in ("text", "prediction", "chunks"):
            assert ours[name] == theirs[name]
        for label in LABELS:
            share = float(theirs[f"probabilities.{label}"])
            assert float(ours[f"probabilities.{label}"]) == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (b"text\na\n", {"output": None}, "output is not set; expected a .csv or .jsonl file"),
        (b"text\na\n", {"output": "out.txt"}, "expected a name that ends in .csv or .jsonl"),
        (b"text\na\n", {"checkpoint": "nothing"}, "checkpoint=nothing: there is no such folder"),
        (b"text\n", {}, "new.csv has no rows"),
        (b"body\na\n", {}, "there is no column 'text'"),
        (b"text,b\na,b\nc\n", {}, r"row 2 \(line 3\): 1 column, the header has 2"),
        (b"text,prediction\na,b\n", {}, "has 'prediction', which the predictions would overwrite"),
        (b"text,probabilities.left\na,b\n", {}, "has 'probabilities.left', which the predictions"),
        (
            b"text\na\n",
            {"overrides": {"data_config": {"texts": "b"}}},
            "overrides={'data_config': {",
        ),
        (b"text\na\n", {"csv_encoding": "utf8x"}, "csv_encoding=utf8x: there is no such encoding"),
        (
            b"text\na\n",
            {"spreadsheet_safe": True, "output": "out.jsonl"},
            "spreadsheet_safe=true has no effect on output=out.jsonl; expected an output that ends",
        ),
        (None, {}, "new.csv cannot be read: No such file or directory"),
    ],
)
def test_input_that_cannot_be_predicted_is_refused(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    more: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # of the tests' own process
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    if content is not None:
        table.write_bytes(content)
    settings = {"checkpoint": str(run), "input": str(table), "output": str(out), **more}
    with pytest.raises(UserError, match=message):
        predict.main(PredictConfig(**settings))
    assert not out.exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "there is no config.yaml beside the model"),
        ("task: other", "trained with task=other; expected causal_lm or classification"),
        ("task: classification\nstep: 3", "step"),
    ],
)
def test_a_checkpoint_whose_task_is_unknown_is_refused(
    run: Path, tmp_path: Path, config: str | None, message: str
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(UserError, match=message):
        open_task(str(tmp_path), {})


def test_columns_of_another_name_and_rows_that_are_left_out(
    launch: Launch, run: Path, tmp_path: Path
) -> None:
    table = tmp_path / "new.tsv"
    table.write_bytes("id\tbody\n1\tstop\n2\t\n3\t\u200b\n4\tcaf\xe9\n".encode())
    done = launch(
        PREDICT, f"checkpoint={run}", f"input={table}", f"output={tmp_path}/out.csv",
        "+overrides.data_config.text_column=body", "on_bad_row=skip",
    )  # fmt: skip
    assert "1 row left out\n  row 2 (line 3): no text in 'body'" in done.stderr
    found = rows_of(tmp_path / "out.csv")
    assert [(row["id"], row["chunks"]) for row in found] == [("1", "1"), ("3", "0"), ("4", "1")]
    assert [row["prediction"] == "" for row in found] == [False, True, False]


def test_the_table_is_read_ahead_and_shown(launch: Launch, tmp_path: Path, encoder: Path) -> None:
    table = write_leanings(tmp_path)
    arguments = (
        "--config-name", "classification", f"data_config.csv={table}", f"model_name={encoder}",
        "data_config.max_length=16", "data_config.split_by=speaker", "prep_only=true",
        f"out_dir={tmp_path}/run",
    )  # fmt: skip
    for _ in range(2):
        done = launch(TRAIN, *arguments)
        assert f"{table} -> {tmp_path}/leanings.sqlite" in done.stdout
        lines = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
        assert ["source", "rows", "48", "6", "6"] in lines
        assert ["groups", "8", "1", "1"] in lines
        assert ["left", "16", "2", "2"] in lines
    assert not (tmp_path / "run").exists()
    (tmp_path / "leanings.csv").write_text("text,label,speaker\na\n")
    done = launch(TRAIN, *arguments, check=False)
    assert done.returncode == 2
    assert "was built with other settings or from another file" in done.stderr
    assert not (tmp_path / "run").exists()
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("utf-16", "is encoded in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
        ("latin-1", "is not in UTF-8 in line 2; convert it from its encoding, such as CP1252 "
         "(iconv -f CP1252 -t UTF-8)"),
    ],
)  # fmt: skip
def test_a_text_in_another_encoding_is_refused_with_the_remedy(
    encoding: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one\ncafé\n", encoding=encoding)
    with pytest.raises(DataError) as error:
        read_text(str(file))
    assert str(error.value) == f"input={file} {reason}"
