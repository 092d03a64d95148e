"""`bsmeta build` as a user runs it: built once, used from the cache, never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.waiting import wait_until


def start(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a program of `bsmeta` with a cache folder."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bsmeta", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "BSMETA_CACHE": str(cache)},
    )


def run(cache: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Runs a program of `bsmeta` to its end; returns its output and its errors."""
    process = start(cache, *arguments)
    output, errors = process.communicate()
    assert process.returncode == code, errors
    return output, errors


@pytest.mark.long
def test_a_killed_build_leaves_no_model_and_two_at_once_build_one(tmp_path: Path) -> None:
    build = ("build", "classification", "max_texts=200")
    question = ("predict", "task=classification", "text=Returns a DataFrame, sorted by its index.")
    folder = tmp_path / "ready" / "classification-v2"

    killed = start(tmp_path, *build)
    log = folder.with_name("classification-v2.part") / "data" / "classification.log"
    wait_until(log.exists, killed)
    wait_until(lambda: bool(psutil.Process(killed.pid).children()), killed)
    (training,) = psutil.Process(killed.pid).children()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_until(lambda: not training.is_running() or training.status() == psutil.STATUS_ZOMBIE)
    _, errors = run(tmp_path, *question, code=2)
    assert f"is not built yet (there is no {folder}); `bsmeta build classification`" in errors

    builds = [start(tmp_path, *build) for _ in range(2)]
    outputs = [process.communicate() for process in builds]
    assert [process.returncode for process in builds] == [0, 0], outputs
    assert [f"built already: {folder}" in errors for _, errors in outputs].count(True) == 1
    assert outputs[0][0] == outputs[1][0]
    assert "classification: The model predicts" in outputs[0][0]
    assert outputs[0][0].endswith("bsmeta predict task=classification text=TEXT\n")
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        ".classification.lock", "classification-v2",
    ]  # fmt: skip

    output, _ = run(tmp_path, *question)
    assert output.startswith("pandas\n")
    output, _ = run(tmp_path, *question, "show=json")
    assert json.loads(output)["prediction"] == "pandas"
    card = (folder / "classification" / "model" / "README.md").read_text()
    assert "documentation of Python (PSF-2.0), PostgreSQL (PostgreSQL License)" in card
    assert "```sh\nbsmeta build classification max_texts=200\n```" in card
    assert ".part" not in card
    assert "peak learning rate" not in card
    assert "The last evaluation of the run, on the test data:" in card
    report = (folder / "classification" / "evaluation" / "evaluation.md").read_text()
    assert report.endswith("```bash\nbsmeta build classification max_texts=200\n```\n")
    records = [folder / "classification" / "config.yaml", *folder.glob("*/evaluation/*.*")]
    unfinished = bytes(folder.with_name("classification-v2.part"))
    assert [path for path in records if unfinished in path.read_bytes()] == []

    _, errors = run(tmp_path, "build", "classification", code=2)
    assert f"max_texts=null: {folder} was built with max_texts=200; delete it to" in errors


@pytest.mark.slow
def test_the_built_corrector_and_detector_answer_for_a_text(tmp_path: Path) -> None:
    run(tmp_path, "build", "spelling", "max_texts=600")
    text = "The fuction returns, if posible, the nubmer of rows."
    output, _ = run(tmp_path, "predict", "task=spelling", f"text={text}", "show=json")
    corrections = json.loads(output)
    assert corrections.keys() == {"text", "corrected", "changes"}
    output, _ = run(tmp_path, "predict", "task=spelling", f"text={text}")
    assert output == f"{corrections['corrected']}\n"
    output, _ = run(tmp_path, "predict", "task=spelling_words", f"text={text}", "show=json")
    flags = json.loads(output)
    assert (flags.keys(), flags["text"]) == ({"text", "changes"}, text)
    card = (tmp_path / "ready/spelling-v2/spelling/model/README.md").read_text()
    assert "- misspellings of codespell (dictionary.txt: CC BY-SA 3.0)\n" in card


def test_a_build_needs_a_target(tmp_path: Path) -> None:
    _, errors = run(tmp_path, "build", code=2)
    assert errors == (
        "configuration error: target is not set; expected spelling or classification: bsmeta "
        "build spelling\n"
    )
    assert list(tmp_path.iterdir()) == []
