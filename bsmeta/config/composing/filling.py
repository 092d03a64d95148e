"""Sets the fields of a schema to plain values one by one, and collects the values that do not fit.

Hydra composes plain values, and OmegaConf would stop at the first one that does not fit the schema.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.composing.from_file import NO_VALUE, UNSET_MARK
from bsmeta.config.composing.misfits import Misfit, Names, join_key
from bsmeta.config.composing.schema_types import describe_type, drop_none, find_entry_schema
from bsmeta.config.composing.structures import open_structure, unlock
from bsmeta.core.errors import format_value
from bsmeta.core.keys import read_type_hints
from bsmeta.core.parsing import parse_json


def fill_section(
    section: DictConfig, values: Mapping[Any, Any], path: Names = ()
) -> Iterator[Misfit]:
    """Sets the fields of a section and of its subsections; yields the values that do not fit.

    A field whose value does not fit keeps the default of the schema. An interpolation fits any
    field.

    Args:
        values: The values as parsed from YAML.
        path: The path of the section.
    """
    schema: Any = OmegaConf.get_type(section)
    types = read_type_hints(schema)
    for name, value in values.items():
        key_path = (*path, name)
        value = _parse_mapping(value, types.get(name))
        if name not in types:
            siblings = tuple(join_key((*path, sibling)) for sibling in types)
            yield Misfit(path=key_path, value=value, expected=None, siblings=siblings)
        elif dataclasses.is_dataclass(types[name]) and isinstance(value, Mapping):
            yield from fill_section(section[name], value, key_path)
        else:
            yield from _set_field(section, value, types[name], key_path)


def _parse_mapping(value: Any, value_type: Any) -> Any:
    """Parses a JSON text as a mapping, if the schema has one there; returns other values unchanged.

    Overrides write a mapping with quoted keys as JSON, because Hydra's grammar has no quoted keys.
    """
    value_type = drop_none(value_type)
    takes_mapping = (
        value_type is Any
        or dataclasses.is_dataclass(value_type)
        or typing.get_origin(value_type) is dict
    )
    if not (takes_mapping and isinstance(value, str) and value.startswith("{")):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def find_misread_booleans(value: Any, value_type: Any, path: Names = ()) -> Iterator[Misfit]:
    """Yields a misfit for each boolean where the schema has a text, such as an unquoted `no`.

    Args:
        value_type: The type of the value in the schema.
        path: The path of the value.
    """
    value_type = drop_none(value_type)
    entry_type = Any
    if typing.get_origin(value_type) in (list, dict):
        entry_type = typing.get_args(value_type)[-1]

    if isinstance(value, Mapping):
        is_section = isinstance(value_type, type) and dataclasses.is_dataclass(value_type)
        field_types = read_type_hints(value_type) if is_section else {}
        for name, entry in value.items():
            if isinstance(name, bool):
                yield _describe_misread_key(name, path)
            else:
                yield from find_misread_booleans(
                    entry, field_types.get(name, entry_type), (*path, name)
                )
    elif isinstance(value, list):
        for entry in value:
            yield from find_misread_booleans(entry, entry_type, path)
    elif isinstance(value, bool) and value_type is str:
        yield _describe_misread_value(value, path)


def _describe_misread_value(value: bool, path: Names) -> Misfit:
    """Returns the misfit of a boolean where the schema has a text."""
    word = "yes" if value else "no"
    fix = f'"{word}" with its quotes in YAML, or {word} on the command line'
    return Misfit(path=path, value=value, expected=_explain_quotes(value), fix=fix)


def _describe_misread_key(value: bool, path: Names) -> Misfit:
    """Returns the misfit of a boolean that is a key of the mapping at a path."""
    word = "yes" if value else "no"
    mapping = f"{join_key(path)}='{json.dumps({word: 1})}'"
    fix = f'"{word}" with its quotes in YAML, or such as {mapping} on the command line'
    found = f"the key {format_value(value)}"
    return Misfit(path=path, value=value, expected=_explain_quotes(value), found=found, fix=fix)


def _explain_quotes(value: bool) -> str:
    """Returns the expected type of a text that YAML has read as a boolean."""
    words = "yes, on and true" if value else "no, off and false"
    return f"a text (YAML reads {words} without quotes as {format_value(value)})"


def _set_field(section: DictConfig, value: Any, value_type: Any, path: Names) -> Iterator[Misfit]:
    """Sets the field at the end of a path, or yields the parts of its value that do not fit."""
    misread_booleans = list(find_misread_booleans(value, value_type, path))
    if misread_booleans:
        yield from misread_booleans
        return

    entry_schema = find_entry_schema(value_type)
    has_sections = entry_schema is not None and isinstance(value, list)
    if has_sections:
        value, misfits = _fill_entries(value, entry_schema, path)
        if misfits:
            yield from misfits
            return

    if value in (UNSET_MARK, NO_VALUE):
        yield Misfit(
            path=path, value=NO_VALUE, expected=f"a value of type {describe_type(value_type)}"
        )
        return
    try:
        section[path[-1]] = value
        if has_sections:
            unlock(section[path[-1]])
    except OmegaConfBaseException as error:
        yield _describe_refused_value(value, value_type, path, error)


def _fill_entries(
    entries: Sequence[Any], schema: type, path: Names
) -> tuple[list[Any], list[Misfit]]:
    """Converts the mappings in a list to sections of a schema.

    Returns:
        The entries, and the misfits in them.
    """
    typed_entries: list[Any] = []
    misfits: list[Misfit] = []
    for index, entry in enumerate(entries):
        typed_entry = entry
        if isinstance(entry, Mapping):
            typed_entry = open_structure(schema)
            misfits += fill_section(typed_entry, entry, (*path, index))
        typed_entries.append(typed_entry)
    return typed_entries, misfits


def _describe_refused_value(
    value: Any, value_type: Any, path: Names, error: OmegaConfBaseException
) -> Misfit:
    """Returns the misfit of a value that OmegaConf refuses."""
    reason = str(error).partition("\n")[0]
    expected = f"a value of type {describe_type(value_type)}"
    if dataclasses.is_dataclass(value_type):
        expected = "keys and values"
        if value is None:
            expected += " (an empty section must be deleted)"
    elif error.key != path[-1]:  # an entry of a list or mapping
        path = (*path, error.key)
        entry_type = typing.get_args(drop_none(value_type))[-1]
        expected = f"a value of type {describe_type(entry_type)}"
        if isinstance(value, Mapping):
            value = value.get(error.key, value)

    return Misfit(path=path, value=value, expected=expected, reason=reason)
