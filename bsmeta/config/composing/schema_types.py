"""Names and takes apart the types of a schema."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any


def format_schema_name(schema: type | str) -> str:
    """Returns the name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`.

    Args:
        schema: A dataclass, or its path as `module:attribute`.
    """
    name = schema.rpartition(":")[2] if isinstance(schema, str) else schema.__name__
    word_boundary = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(word_boundary, "_", name).lower()


def describe_type(value_type: Any) -> str:
    """Formats a type for messages, without modules: `int`, `list[str]`, `str | None`."""
    if isinstance(value_type, type) and not typing.get_args(value_type):
        return value_type.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(value_type))


def find_entry_schema(value_type: Any) -> Any:
    """Returns the dataclass of the entries of a list or mapping; None if they have another type."""
    for argument in typing.get_args(value_type):
        if isinstance(argument, type) and dataclasses.is_dataclass(argument):
            return argument
    return None


def drop_none(value_type: Any) -> Any:
    """Returns the type `X` for `X | None`; any other type unchanged."""
    arguments = typing.get_args(value_type)
    other_types = [argument for argument in arguments if argument is not type(None)]
    is_optional = len(other_types) < len(arguments)
    return other_types[0] if is_optional and len(other_types) == 1 else value_type
