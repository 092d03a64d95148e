"""A dialogue through a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

Generate = Callable[..., int]


def test_a_dialogue_through_a_pipe(
    generate: Generate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "title=Sets and maps",
        "max_new_tokens=4",
        "temperature=0",
        "A set",
        "titel=Sets",
        "temperature=-1",
        "html=yes",
        "title=",
        "A set",
        " title=Sets",
        "word " * 70,
        "metadata={url: https://a.org/}",
        "A map",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))  # no newline at the end
    assert generate("interactive=true") == 0
    printed = capsys.readouterr()
    texts = printed.out.splitlines()
    assert texts[0] == "Title: Sets and maps |||"
    assert texts[1].startswith("A set")
    assert [line for line in texts if line.endswith("|||")] == [
        "Title: Sets and maps |||",
        "url: https://a.org/ |||",
    ]
    assert sum(line.startswith("A set") for line in texts) == 2
    assert any(line.startswith("title=Sets") for line in texts)
    errors = printed.err
    assert "titel: expected any of html, title, url, timestamp, metadata" in errors
    assert "temperature=-1.0: expected 0 or more" in errors
    assert "html is a local type" in errors
    assert "the model was trained on sequences of 64" in errors
