"""The classifier through the trainer: real processes, killed and resumed, one, two and four."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from selectolax.lexbor import LexborHTMLParser

from bsmeta.tasks.classification.model import load_model
from tests.conftest import REPOSITORY
from tests.tasks.classification.helpers import TEXT, saved_results, write_csv, write_leanings
from tests.tasks.training import (
    TRAIN,
    Documents,
    Launch,
    Steps,
    assert_same_runs,
    events,
    train_killed_and_resumed,
    train_with_deepspeed,
)


def arguments(csv: Path, encoder: Path, out_dir: Path, *more: str) -> list[str]:
    return [
        "--config-name", "classification", f"data_config.csv={csv}", f"model_name={encoder}",
        f"out_dir={out_dir}", f"results_dir={out_dir}/results", "trackers=[]",
        "data_config.max_length=16", "data_config.per_device_train_batch_size=4",
        "learning_rate=0.005", "num_train_epochs=3", "class_weights=balanced",
        "label_smoothing=0.05", "log_documents=true", "bootstrap_resamples=200", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_two_processes_killed_and_resumed_repeat_the_undisturbed_run(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, encoder: Path, workers: int
) -> None:
    csv = write_leanings(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = (f"data_config.num_workers={workers}", "method=fine_tune")
    launch(TRAIN, *arguments(csv, encoder, whole, *more), processes=2)
    again = arguments(csv, encoder, killed, *more)
    train_killed_and_resumed(launch, again, 17, processes=2)

    assert [e["step"] for e in events(killed, "resume")] == [12]
    assert_same_runs(killed, whole, steps, documents)
    kept = saved_results(tmp_path / "leanings.sqlite")
    assert [result["run"] for result in kept] == [str(whole), str(killed)]
    assert kept[0]["test"] == kept[1]["test"]
    for name in ("testset_predictions.csv", "train_test_stats.json"):
        first, second = (run / f"results/leanings_{name}" for run in (whole, killed))
        assert first.read_text() == second.read_text()

    rows = [set().union(*(documents(whole)[s] for s in range(n, n + 12))) for n in (1, 13, 25)]
    assert [len(epoch) for epoch in rows] == [48, 48, 48]  # each source row in each epoch
    assert rows[0] == rows[1] == rows[2]


def test_a_table_without_validation_and_test_leaves_the_model_and_the_losses(
    launch: Launch, tmp_path: Path, encoder: Path
) -> None:
    csv, out_dir = write_leanings(tmp_path), tmp_path / "run"
    launch(TRAIN, *arguments(
        csv, encoder, out_dir, "data_config.split_fractions=[1,0,0]", "keep_best_by=null",
        "method=fine_tune", "head_start=random", "early_stopping_patience=null",
        "export_best=false", "num_train_epochs=1",
    ))  # fmt: skip
    assert sorted(file.name for file in (out_dir / "results").iterdir()) == [
        "leanings_train_test_stats.json", "leanings_trained_model.sav",
    ]  # fmt: skip
    stats = json.loads((out_dir / "results/leanings_train_test_stats.json").read_text())
    assert stats["test"] is None
    assert [(epoch["epoch"], epoch["step"]) for epoch in stats["epochs"]] == [(1.0, 27)]
    assert stats["epochs"][0].keys() == {"epoch", "step", "training_loss", "training_accuracy"}
    assert events(out_dir, "eval") == []


@pytest.mark.long
def test_a_linear_run_imports_neither_compiler_nor_deepspeed_and_resumes(tmp_path: Path) -> None:
    """Each of these libraries takes a large part of a second to import."""
    tokenizer = REPOSITORY / "examples/tokenizer"
    run = arguments(write_leanings(tmp_path), tokenizer, tmp_path / "run", "method=linear")
    slow = {"torch._dynamo", "torch.distributed.tensor", "deepspeed", "sympy"}
    report = f"lambda: print('LOADED', sorted({slow} & set(sys.modules)))"

    for more in ([], ["resume_from_checkpoint_dir=latest"]):
        program = (
            f"import atexit, runpy, sys\natexit.register({report})\n"
            f"sys.argv = {[str(TRAIN), *run, *more]!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "LOADED []"

    assert len(events(tmp_path / "run", "resume")) == 1
    first, resumed = saved_results(tmp_path / "leanings.sqlite")
    assert first["test"] == resumed["test"]


def test_no_label_ends_a_finished_run(launch: Launch, tmp_path: Path, encoder: Path) -> None:
    """Two dollar signs would enclose a formula, and an underscore begins what legends leave out."""
    labels = ("$\\frac{$ x", "$10 to $20", "_hidden", "a\nb")
    rows = [(f"{TEXT.split()[row % 7]} {row}", labels[row % 4]) for row in range(100)]
    table, out_dir = write_csv(tmp_path / "odd.csv", rows, ["text", "label"]), tmp_path / "run"
    done = launch(TRAIN, *arguments(table, encoder, out_dir, "method=linear"))
    assert "could not be drawn" not in done.stderr
    assert json.loads((out_dir / "status.json").read_text())["state"] == "done"
    assert (out_dir / "model" / "config.json").is_file()
    assert "A classifier of texts by label: " in (out_dir / "model" / "README.md").read_text()
    report = out_dir / "evaluation"
    assert {"systems.png", "confusion.png", "labels.png"} <= {
        file.name for file in report.iterdir()
    }
    page = LexborHTMLParser((report / "report.html").read_text())
    drawn = [node.text() for node in page.css("svg text")]
    for label in ("$\\frac{$ x", "$10 to $20", "_hidden", "a\\nb"):
        assert drawn.count(label) == 3  # two axes of the confusion matrix, and the shares


@pytest.mark.slow
def test_one_two_and_four_processes_train_on_the_same_batches_with_the_same_test_result(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, encoder: Path
) -> None:
    csv = write_leanings(tmp_path)
    runs = []
    for processes in (1, 2, 4):
        out_dir = tmp_path / str(processes)
        rows = f"data_config.per_device_train_batch_size={8 // processes}"
        more = arguments(csv, encoder, out_dir, rows, "dropout=0")
        launch(TRAIN, *more, processes=processes)
        runs.append(out_dir)
    alone, *others = runs
    expected = events(alone, "eval")[-1]
    assert expected["split"] == "test"
    for other in others:
        # A rank names a text once, however many chunks of it are in its part of the step.
        assert {step: {*names} for step, names in documents(other).items()} == {
            step: {*names} for step, names in documents(alone).items()
        }
        for number, step in steps(alone).items():
            assert steps(other)[number]["loss"] == pytest.approx(step["loss"], rel=1e-4)
        found = events(other, "eval")[-1]
        assert found["accuracy"] == expected["accuracy"]
        assert found.keys() == expected.keys()
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_trains_evaluates_and_finishes(tmp_path: Path, encoder: Path, stage: int) -> None:
    csv = write_leanings(tmp_path)
    out_dir = tmp_path / "run"
    train_with_deepspeed(tmp_path, stage, arguments(csv, encoder, out_dir))
    assert [event["split"] for event in events(out_dir, "eval")] == ["validation"] * 3 + ["test"]
    assert (out_dir / "evaluation" / "report.html").exists()
    saved = torch.load(out_dir / "results/leanings_trained_model.sav", weights_only=True)
    exported = load_model(out_dir / "model").state_dict()
    assert all(torch.equal(saved["state_dict"][name], exported[name]) for name in exported)


def test_labels_that_yaml_reads_as_booleans(launch: Launch, tmp_path: Path) -> None:
    rows = [(f"{'good' if n % 2 else 'bad'} item {n}", ("no", "yes")[n % 2]) for n in range(60)]
    write_csv(tmp_path / "table.csv", rows, ["text", "label"])
    head = (
        "defaults: [demo_classification, _self_]\nmethod: linear\ntrackers: []\n"
        f"data_config: {{csv: {tmp_path}/table.csv, label_column: label, split_by: null, "
        f"database: {tmp_path}/table.sqlite}}\n"
    )
    given = ("--config-dir", str(tmp_path), "--config-name", "job", f"results_dir={tmp_path}")
    (tmp_path / "job.yaml").write_text(f"{head}class_weights: {{yes: 1, no: 3}}\n")
    refused = launch(TRAIN, *given, f"out_dir={tmp_path}/a", "check_only=true", check=False)
    assert refused.returncode == 2
    assert "class_weights in" in refused.stderr
    assert "found the key true, expected a text (YAML reads yes, on and true" in refused.stderr
    assert 'Fix: "yes" with its quotes in YAML, or such as class_weights=' in refused.stderr

    (tmp_path / "job.yaml").write_text(f'{head}class_weights: {{"yes": 1, "no": 3}}\n')
    launch(TRAIN, *given, f"out_dir={tmp_path}/b")
    (tmp_path / "job.yaml").write_text(head)
    launch(TRAIN, *given, f"out_dir={tmp_path}/c", 'class_weights={"yes": 1, "no": 3}')
    saved = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in "bc"]
    assert [config["class_weights"] for config in saved] == [{"yes": 1, "no": 3}] * 2


def test_a_tokenizer_that_is_not_here_is_refused_before_the_run(
    launch: Launch, tmp_path: Path
) -> None:
    csv = write_leanings(tmp_path)
    given = (
        "--config-name", "classification", f"data_config.csv={csv}", "method=linear",
        "check_only=true",
    )  # fmt: skip
    nowhere = {"HF_HUB_CACHE": str(tmp_path)}
    done = launch(TRAIN, *given, **nowhere)
    assert "not on this machine" in " ".join(done.stdout.split())
    # The library of the Hub reads this variable when it is imported.
    refused = subprocess.run(
        [sys.executable, str(TRAIN), *given], capture_output=True, text=True, check=False,
        env={**os.environ, **nowhere, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.endswith(
        '1. model_name in Hydra configuration: found "google-bert/bert-base-uncased", which is not '
        "on this machine, and HF_HUB_OFFLINE is set, expected a folder with a tokenizer, by which "
        "method=linear divides long texts.\n   Fix: tokenizer_name=FOLDER\n"
    )
