"""What is refused before a spelling run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.spelling import NoiseConfig, SedWordsConfig
from bsmeta.tasks.spelling import checks


def named(**settings: Any) -> list[str]:
    config = SedWordsConfig(**{"datasets": [__file__], **settings})
    return [f"{problem.key}: {problem.fix}" for problem in checks.value_problems(config)]


def test_packages_that_are_needed_later_are_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda module: None)
    assert named(benchmarks=str(tmp_path)) == [
        "noise.misspellings: pip install codespell, or noise.misspellings=FILE.json",
        "benchmarks: pip install symspellpy, or benchmarks=null",
    ]
    assert named(noise=NoiseConfig(method="artificial")) == []


@pytest.mark.parametrize("letters", ["", "a b", "ab1"])
def test_artificial_edits_insert_letters_only(letters: str) -> None:
    noise = NoiseConfig(method="artificial", letters=letters)
    assert named(noise=noise) == ["noise.letters: noise.letters=abcdefghijklmnopqrstuvwxyz"]
