"""The types of a schema: their names in messages, and the types inside of them."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any


def format_schema_name(schema: type | str) -> str:
    """Returns the name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`."""
    name = schema.rpartition(":")[2] if isinstance(schema, str) else schema.__name__
    border = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(border, "_", name).lower()


def describe_type(value_type: Any) -> str:
    """Returns a type in the notation of messages: `int`, `list[str]`, `str | None`."""
    if isinstance(value_type, type) and not typing.get_args(value_type):
        return value_type.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(value_type))


def find_entry_schema(value_type: Any) -> Any:
    """Returns the dataclass of a list's entries; None if they are not dataclasses."""
    for argument in typing.get_args(value_type):
        if isinstance(argument, type) and dataclasses.is_dataclass(argument):
            return argument
    return None


def drop_none(value_type: Any) -> Any:
    """Returns a type without `| None`."""
    arguments = typing.get_args(value_type)
    others = [argument for argument in arguments if argument is not type(None)]
    is_optional = len(others) < len(arguments)
    return others[0] if is_optional and len(others) == 1 else value_type
