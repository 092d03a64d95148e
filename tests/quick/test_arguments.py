"""Paths on the command line are the pages."""

from __future__ import annotations

import pytest

from bsmeta.quick.arguments import name_pages


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
def test_paths_become_the_pages_key(arguments: list[str], expected: list[str]) -> None:
    assert name_pages(arguments) == expected
