"""What is refused before a spelling run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.launch import Launch
from bsmeta.tasks.spelling import config as spelling
from bsmeta.tasks.spelling.config import NoiseConfig, SedWordsConfig


def named(**settings: Any) -> list[str]:
    config = SedWordsConfig(**{"datasets": [__file__], **settings})
    return [f"{problem.key}: {problem.fix}" for problem in spelling.find_value_problems(config)]


def test_packages_that_are_needed_later_are_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "find_spec", lambda module: None)
    assert named(benchmarks=str(tmp_path)) == [
        "noise.misspellings: pip install codespell, or noise.misspellings=FILE.json",
        "benchmarks: pip install symspellpy, or benchmarks=null",
    ]
    assert named(noise=NoiseConfig(method="artificial")) == []
    artificial = NoiseConfig(method="artificial")
    assert named(noise=artificial, word_lists=["wordfreq:de", str(tmp_path / "none.txt")]) == [
        "word_lists: pip install wordfreq, or word_lists=[]",
        "word_lists: correct word_lists",
    ]


def test_files_of_kept_words_exist(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Tskhinvali\n", encoding="utf-8")
    artificial = NoiseConfig(method="artificial")
    names = ["kubectl", str(tmp_path / "names.txt"), str(tmp_path / "none.txt")]
    assert named(noise=artificial, keep_words=names[:2]) == []
    assert named(noise=artificial, keep_words=names) == ["keep_words: correct keep_words"]


@pytest.mark.parametrize("letters", ["", "a b", "ab1"])
def test_artificial_edits_insert_letters_only(letters: str) -> None:
    noise = NoiseConfig(method="artificial", letters=letters)
    assert named(noise=noise) == ["noise.letters: noise.letters=abcdefghijklmnopqrstuvwxyz"]


def test_accents_and_slips_are_parts_of_the_errors() -> None:
    assert named(noise=NoiseConfig(accent_share=0.4, slip_share=0.6)) == []
    more = NoiseConfig(accent_share=0.5, slip_share=0.6)
    assert named(noise=more) == ["noise.slip_share: noise.slip_share=0.5"]


@pytest.mark.parametrize(
    ("processes", "settings", "found", "fix"),
    [
        (1, {"gradient_accumulation_steps": 3, "batch_shares": 3}, None, ""),
        (2, {"gradient_accumulation_steps": 3, "batch_shares": 3}, "3", "batch_shares=6"),
        (2, {"gradient_accumulation_steps": 2}, None, ""),
        (
            1,
            {"gradient_accumulation_steps": 3},
            "null (8)",
            "batch_shares=9 batch_max_length=4608, or fewer parts",
        ),
        (16, {}, "null (8)", "batch_shares=16 batch_max_length=8192, or fewer parts"),
        (1, {"gradient_accumulation_steps": 0}, None, ""),  # refused for itself
    ],
)
def test_processes_divide_every_step(
    processes: int, settings: dict[str, Any], found: str | None, fix: str
) -> None:
    launch = Launch(source="test", num_processes=processes)
    problems = spelling.find_start_problems(SedWordsConfig(**settings), launch, None)
    expected = [] if found is None else [("batch_shares", found, fix)]
    assert [(one.key, one.found, one.fix) for one in problems] == expected
