"""The types of a schema: names in defaults lists and in messages, and the types inside."""

from __future__ import annotations

from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.schema_types import (
    describe_type,
    drop_none,
    find_entry_schema,
    format_schema_name,
)
from bsmeta.config.data import SourceConfig


def test_names_in_defaults_lists_are_in_snake_case() -> None:
    assert format_schema_name(CausalLMConfig) == "causal_lm_config"
    assert format_schema_name("package.module:RowsConfig") == "rows_config"


@pytest.mark.parametrize(
    ("value_type", "name"),
    [
        (int, "int"),
        (str | None, "str | None"),
        (list[str], "list[str]"),
        (list[SourceConfig], "list[SourceConfig]"),
    ],
)
def test_types_in_messages_have_no_module(value_type: Any, name: str) -> None:
    assert describe_type(value_type) == name


def test_only_lists_of_dataclasses_have_an_entry_schema() -> None:
    assert find_entry_schema(list[SourceConfig]) is SourceConfig
    assert find_entry_schema(list[str]) is None
    assert find_entry_schema(int) is None


def test_none_is_removed_only_where_one_type_remains() -> None:
    assert drop_none(int | None) is int
    assert drop_none(int) is int
    assert drop_none(int | str | None) == int | str | None
