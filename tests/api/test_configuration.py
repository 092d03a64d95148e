"""Keys that are changed in Python have the values that were given, however they are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bsmeta
from bsmeta.api.configuration import (
    compose_configuration,
    list_override_arguments,
    nest_overrides,
)
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import ConfigurationError

SEPARATOR = "data_config.metadata_config.metadata_sep"


def compose(overrides: dict[str, Any], config: Any = "demo") -> CausalLMConfig:
    composed = compose_configuration(config, overrides)
    assert isinstance(composed, CausalLMConfig)
    return composed


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        ({"seed": 1, "learning_rate": 1e-05}, ["seed=1", "learning_rate=1e-05"]),
        ({"data_config": {"num_workers": 0, "content": "a b"}},
         ["data_config.num_workers=0", "data_config.content='a b'"]),
        ({"out_dir": Path("runs/a"), "trackers": []}, ["out_dir='runs/a'", "trackers=[]"]),
        ({"check_only": True, "resume": None}, ["check_only=true", "resume=null"]),
        ({"+recipes": "meco"}, ["+recipes='meco'"]),
        ({"a": ["b's", 1]}, [r"a=['b\'s',1]"]),
        ({"a": {"b c": "d"}, "e": {}}, ['a={"b c":"d"}', "e={}"]),
    ],
)  # fmt: skip
def test_overrides_become_arguments_of_a_command_line(
    overrides: dict[str, Any], arguments: list[str]
) -> None:
    assert list_override_arguments(overrides) == arguments


def test_dotted_keys_and_nested_mappings_are_equivalent() -> None:
    nested = {"data_config": {"num_workers": 0, "metadata_config": {"max_seq_len": 64}}}
    dotted = {"data_config.num_workers": 0, "data_config.metadata_config.max_seq_len": 64}
    assert nest_overrides(dotted) == nest_overrides(nested) == nested
    assert compose(dotted) == compose(nested)
    assert compose(nested, compose({})) == compose(nested)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_a_text_is_passed_literally(text: str) -> None:
    """Quotes, backslashes, brackets, `~` and `${…}` are not parsed."""
    assert compose({SEPARATOR: text}).data_config.metadata_config.metadata_sep == text


@pytest.mark.parametrize(
    "text", ["${oc.env:HOME}", "it's", "\\", "\\'", "a\\${b}", "~/x", "[1, 2]", "null", "{a: b}"]
)
def test_texts_that_look_like_grammar_are_passed_literally(text: str) -> None:
    assert compose({SEPARATOR: text}).data_config.metadata_config.metadata_sep == text


def test_a_group_is_chosen_like_a_key() -> None:
    assert compose({"+recipes": "meco"}, "v2") != compose({}, "v2")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1"], r"overrides=\['seed=1'\]: expected keys with their values"),
        ({1: 2}, "expected keys with their values"),
        ({"seed": object()}, "is a object; expected a text, a number"),
        ({"sed": 1}, "did you mean seed"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"data_config": 1, "data_config.content": "all"}, "data_config"),
    ],
)
def test_wrong_overrides_are_refused(overrides: Any, message: str) -> None:
    with pytest.raises(bsmeta.UserError, match=message):
        compose_configuration("demo", overrides)


def test_a_repeated_key_is_refused() -> None:
    for overrides in ({"a.b": 1, "a": {"b": 2}}, {"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}):
        with pytest.raises(ConfigurationError, match="is set twice; expected one value"):
            nest_overrides(overrides)
