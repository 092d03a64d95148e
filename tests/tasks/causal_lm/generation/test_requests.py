"""Requests of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Generate = Callable[..., int]


def test_all_bad_lines_of_a_file_are_named(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "requests.jsonl"
    source.write_text('{"prompt": "A"}\n{"promt": "A"}\nA\n[]\n{"top_p": 2}\n')
    assert generate(f"input={source}") == 2
    errors = capsys.readouterr().err
    assert "line 2: Object contains unknown field `promt`" in errors
    assert "line 3: " in errors
    assert "line 4: Expected `object`, got `array`" in errors
    assert "line 5: top_p=2.0: expected 1 or less" in errors
    source.write_text('{"metadata": {"title": "A"}}\n{"id": "b", "metadata": {"site": "A"}}\n')
    assert generate(f"input={source}") == 2
    assert "request b: metadata.site: the model was not trained" in capsys.readouterr().err
