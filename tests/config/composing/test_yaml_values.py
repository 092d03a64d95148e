"""Texts of configuration files become the values that OmegaConf reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bsmeta.config.composing.yaml_values import parse_values

FILE = Path("a.yaml")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("[]", []),
        ("word", {"word": None}),
        ("a: 1e-3", {"a": 0.001}),  # a text to PyYAML
        ("a: 2001-02-03", {"a": "2001-02-03"}),  # a date to PyYAML
        ("a: no\nb: ${c}", {"a": False, "b": "${c}"}),
        ('{"a": [null, "é"]}', {"a": [None, "é"]}),
    ],
)
def test_parsed_values_equal_the_values_of_omegaconf(text: str, values: object) -> None:
    assert parse_values(text, FILE) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", 'found duplicate key a\n  in "a.yaml", line 2, column 1'),
        ("[" * 201, "nested too deeply"),
        ("a: !!python/object/apply:pathlib.Path [a]", "could not determine a constructor"),
        ("a: 2001-99-99", "month must be in 1..12"),
        (f"a: {'9' * 400}", "an integer that is larger than any float"),
    ],
)
def test_malformed_and_extreme_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        parse_values(text, FILE)


def test_a_lone_number_is_refused() -> None:
    with pytest.raises(OSError, match="int"):
        parse_values("3", FILE)


def test_parsing_the_same_text_twice_shares_no_values() -> None:
    parse_values("a: {b: [1]}", FILE)["a"]["b"].append(2)
    assert parse_values("a: {b: [1]}", FILE) == {"a": {"b": [1]}}
