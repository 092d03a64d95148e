"""Requests for text, of a file and from defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.causal_lm.generation.requests import (
    Request,
    apply_steps,
    read_requests,
    replace_defaults,
)

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


def test_missing_fields_of_a_line_have_default_values(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "A"}\n\n{"id": 7, "seed": 1, "metadata": {"title": "B"}}\n')
    assert read_requests(str(file), Request(prompt="The", seed=9)) == [
        Request(prompt="A", seed=9),
        Request(id=7, prompt="The", seed=1, metadata={"title": "B"}),
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": "two"}, "seed='two': Expected `int`, got `str`"),
        ({"sed": 2}, "Object contains unknown field `sed`; expected any of id, metadata, prompt"),
        ({"seed": 2**32}, "seed=4294967296: expected 0 to 4294967295"),
        ({"temperature": -1.0}, "temperature=-1.0: expected 0 or more"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        replace_defaults({"prompt": "A"}, values)
    assert str(error.value).startswith(message)


def test_problems_of_all_requests_are_listed_together() -> None:
    def refuse_empty(request: Request) -> int:
        if not request.prompt:
            raise ConfigurationError("prompt: is empty")
        return len(request.prompt)

    requests = [Request(), Request(prompt="ab"), Request(id="last")]
    assert apply_steps(requests[1:2], refuse_empty) == [2]
    with pytest.raises(ConfigurationError) as error:
        apply_steps(requests, refuse_empty)
    assert str(error.value) == "request 1: prompt: is empty\nrequest last: prompt: is empty"


def test_a_request_with_a_key_twice_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "A"}\n{"prompt": "A", "seed": 1, "prompt": "B"}\n')
    with pytest.raises(DataError) as error:
        read_requests(str(path), Request())
    assert str(error.value) == (
        f'{path}, line 2: an object has the key "prompt" 2 times; expected each key once'
    )


@pytest.mark.parametrize("arguments", [["input={}"], ["mode=attribute", "validation_file={}"]])
def test_a_pipe_is_not_waited_for(
    arguments: list[str],
    generate: Generate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    assert generate(*(argument.format(pipe) for argument in arguments)) == 2
    assert f'found "{pipe}", which is a pipe, a socket or a device' in capsys.readouterr().err
