"""`bsmeta quick` as a user runs it: from a file of pages to a table and a sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import bsmeta
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.__main__ import name_pages
from bsmeta.quick.command import main
from bsmeta.quick.config import QuickConfig
from tests.quick.pages import make_row, write_rows

READINGS = [
    ["text alone", "text alone"],
    ["with metadata", "its metadata"],
    ["with metadata", "text alone"],
    ["with metadata", "wrong, same length"],
    ["with metadata", "junk words"],
    ["with metadata", "separator alone"],
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pages.jsonl"], ["pages='pages.jsonl'"]),
        (["a.jsonl", "seed=1", "b.jsonl"], ["seed=1", "pages=['a.jsonl','b.jsonl']"]),
        (["a b's.jsonl"], [r"pages='a b\'s.jsonl'"]),
        (["pages=a.jsonl", "--config-dir", "mine"], ["pages=a.jsonl", "--config-dir", "mine"]),
        (["--help", "all"], ["--help", "all"]),
        ([], []),
    ],
)
def test_paths_are_the_pages(arguments: list[str], expected: list[str]) -> None:
    assert name_pages(arguments) == expected


def test_from_a_file_to_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: the second start finds both runs finished, and changes no answer."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pages = write_rows(tmp_path / "pages.jsonl", [make_row(number) for number in range(100)])
    config = QuickConfig(
        pages=str(pages), out_dir=str(tmp_path / "out"), max_train_steps=3, batch_size=2,
        hidden_size=32, num_layers=1, max_seq_len=64, near_copies=False,
    )  # fmt: skip
    assert main(config) == 0
    output = capsys.readouterr().out
    assert "held out       20 pages: documents, not sites (5 sites are too few" in output
    assert "Trained and read with metadata (url, title, timestamp), the model needs" in output

    answer = json.loads((tmp_path / "out" / "quick.json").read_text())
    assert [row[:2] for row in answer["table"]["rows"]] == READINGS
    assert answer["answers"][0] in output.replace("\n", " ")
    for name in ("without", "with"):
        run = bsmeta.open_run(tmp_path / "out" / name)
        assert (run.status().state, run.status().step) == ("done", 3)

    training, held_out = (
        {json.loads(line)["text"] for line in (tmp_path / "out/data" / name).open()}
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert (len(training), len(held_out), training & held_out) == (80, 20, set())

    # The text of each step is the same in both runs.
    steps = [
        [line["text_tokens"] for line in bsmeta.open_run(tmp_path / "out" / name).metrics("step")]
        for name in ("without", "with")
    ]
    assert steps[0] == steps[1]

    shutil.rmtree(tmp_path / "out" / "evaluation")
    assert main(config) == 0
    assert json.loads((tmp_path / "out" / "quick.json").read_text()) == answer
    with pytest.raises(ConfigurationError, match="holds the result of other pages or settings"):
        main(replace(config, seed=1))


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
    assert main(config) == 0
    output = capsys.readouterr().out
    assert "all pages are of one site, site0.example.org" in output
    assert "says nothing about other sites" in output
    assert "0.36 M weights: 2 layers of width 64 (num_layers, hidden_size)" in output
    assert {path.name for path in tmp_path.iterdir()} == {"pages.jsonl"}
