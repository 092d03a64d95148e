"""The lines of a dialogue: settings, prompts, and what is neither."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.generation.dialogue import Dialogue
from bsmeta.tasks.causal_lm.generation.requests import Request

Generate = Callable[..., int]


def test_a_dialogue_through_a_pipe_answers_each_prompt_and_names_each_mistake(
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


def open_dialogue() -> Dialogue:
    config = MetadataConfig(metadata_list=["title", "url", "html"])
    return Dialogue(Request(temperature=0.5), config)


def test_settings_apply_to_later_prompts_until_reset() -> None:
    lines = ["title=Sets", "seed=7", "A", "title=", "seed=", "B"]
    assert list(open_dialogue().iterate_requests(lines)) == [
        Request(prompt="A", temperature=0.5, seed=7, metadata={"title": "Sets"}),
        Request(prompt="B", temperature=0.5, seed=42, metadata={}),
    ]


def test_a_leading_space_makes_any_line_a_prompt() -> None:
    assert open_dialogue().parse(" title=Sets") == Request(prompt="title=Sets", temperature=0.5)


def test_a_line_with_another_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="^prompt: expected any of title, url, html, "):
        open_dialogue().parse("prompt=A")
    with pytest.raises(ConfigurationError, match="not readable: "):
        open_dialogue().parse("metadata={title")


def test_a_refused_setting_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    requests = list(open_dialogue().iterate_requests(["temperature=-1", "A"]))
    assert requests == [Request(prompt="A", temperature=0.5)]
    assert "temperature=-1.0: expected 0 or more" in capsys.readouterr().err
