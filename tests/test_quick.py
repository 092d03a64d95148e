"""`bsmeta quick` as a user runs it: from a file of pages to a table and a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bsmeta
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.command import main
from bsmeta.quick.config import QuickConfig
from tests.quick.pages import make_row, write_rows
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
SHORT: dict[str, Any] = {
    "max_train_steps": 3, "batch_size": 2, "hidden_size": 32, "num_layers": 1, "max_seq_len": 64,
    "near_copies": False,
}  # fmt: skip
READINGS = [
    ["text alone", "text alone"],
    ["with metadata", "its metadata"],
    ["with metadata", "text alone"],
    ["with metadata", "wrong, same length"],
    ["with metadata", "junk words"],
    ["with metadata", "separator alone"],
]


@pytest.mark.long
def test_one_command_turns_a_file_into_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pages = write_rows(tmp_path / "pages.jsonl", [make_row(number) for number in range(100)])
    out_dir = tmp_path / "out"
    main(QuickConfig(pages=str(pages), out_dir=str(out_dir), **SHORT))
    output = capsys.readouterr().out
    assert "held out  20 pages: documents, not sites (5 sites are too few" in output
    assert "Trained and read with metadata (url, title, timestamp), the model needs" in output

    answer = json.loads((out_dir / "quick.json").read_text())
    assert [row[:2] for row in answer["table"]["rows"]] == READINGS
    (sentence,) = answer["answers"]
    assert output.count(sentence) == 1
    assert answer["notes"][0] in output
    assert (out_dir / "evaluation" / "report.html").is_file()
    training, held_out = (
        {json.loads(line)["text"] for line in (out_dir / "data" / name).open()}
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert (len(training), len(held_out), training & held_out) == (80, 20, set())

    # Both runs train on the same text in each step; one of them with metadata.
    steps = {}
    for name in ("without", "with"):
        run = bsmeta.open_run(out_dir / name)
        assert (run.status().state, run.status().step) == ("done", 3)
        steps[name] = run.metrics("step")
    assert [step["targets"] for step in steps["without"]] == [
        step["targets"] for step in steps["with"]
    ]
    assert all("documents_with_metadata" not in step["counts"] for step in steps["without"])
    assert any("documents_with_metadata" in step["counts"] for step in steps["with"])


@pytest.mark.slow
def test_a_stopped_command_continues(tmp_path: Path) -> None:
    """It is stopped in the first run and then started twice; the last start trains nothing."""
    pages = write_rows(tmp_path / "pages.jsonl", [make_row(number) for number in range(100)])
    out_dir = tmp_path / "out"
    arguments = [f"{key}={value}" for key, value in {**SHORT, "max_train_steps": 400}.items()]
    command = [sys.executable, "-P", "-m", "bsmeta", "quick", str(pages), f"out_dir={out_dir}"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        )

    process = start()
    wait_until(lambda: any((out_dir / "without").glob("checkpoint-*step")), process)
    process.terminate()
    output, _ = process.communicate()
    assert process.returncode == 75, output
    assert output.endswith("stopped; the same call continues where it was\n")

    answers = []
    for _ in range(2):
        process = start()
        output, _ = process.communicate()
        assert process.returncode == 0, output
        answers.append(json.loads((out_dir / "quick.json").read_text()))
    assert answers[0] == answers[1]
    starts = {
        name: (out_dir / name / "environment.jsonl").read_text().count('"event": "start"')
        for name in ("without", "with")
    }
    assert starts == {"without": 2, "with": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([make_row(number) for number in range(5)], "pages: 5 pages with different texts; expe"),
        ([{"text": make_row(number)["text"]} for number in range(30)], "so there is nothing to"),
        ([{"url": make_row(number)["url"]} for number in range(30)], "no column of the first"),
    ],
)
def test_pages_that_allow_no_answer_are_refused_with_help(
    rows: list[dict[str, str]], message: str, tmp_path: Path
) -> None:
    pages = write_rows(tmp_path / "pages.jsonl", rows)
    with pytest.raises((ConfigurationError, DataError), match=message):
        main(QuickConfig(pages=str(pages), out_dir=str(tmp_path / "out"), near_copies=False))


def test_a_check_shows_the_plan_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = write_rows(tmp_path / "pages.jsonl", [make_row(number, 1) for number in range(30)])
    config = QuickConfig(
        pages=str(pages), out_dir=str(tmp_path / "out"), near_copies=False, check_only=True
    )
    main(config)
    output = capsys.readouterr().out
    assert "all pages are of one site, site0.example.org" in output
    assert "says nothing about other sites" in output
    assert "0.36 M weights: 2 layers of width 64 (num_layers, hidden_size)" in output
    assert {path.name for path in tmp_path.iterdir()} == {"pages.jsonl"}
