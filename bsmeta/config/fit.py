"""Checks values against the schema, key by key, and reports each misfit with its full path.

OmegaConf merges all or nothing, stops at the first error, and often does not report its location.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.describe import entries_of, type_name


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that the schema does not accept.

    Attributes:
        key: Its dotted key; entries of lists by their index.
        value: What was found.
        expected: The type as text; None: there is no such key.
        siblings: If there is no such key: the keys of the section.
        reason: OmegaConf's message, or "".
        outermost: The key that must be removed for the rest to fit.
    """

    key: str
    value: Any
    expected: str | None
    reason: str
    outermost: str
    siblings: tuple[str, ...] = ()


def misfits(values: Mapping[Any, Any], schema: type, prefix: str = "") -> Iterator[Misfit]:
    """Yields the values that do not fit the dataclass of a section.

    Args:
        values: The values as parsed from YAML; interpolations fit everywhere.
        schema: The dataclass.
        prefix: The dotted key of the section with a trailing dot, or "".
    """
    types = typing.get_type_hints(schema)
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in types:
            siblings = tuple(f"{prefix}{one}" for one in types)
            yield Misfit(
                key=key, value=value, expected=None, reason="", outermost=key, siblings=siblings
            )
        elif dataclasses.is_dataclass(types[name]) and isinstance(value, Mapping):
            yield from misfits(value, types[name], f"{key}.")
        elif not _is_interpolation(value):
            yield from _of_value(schema, name, value, types[name], key)


def _of_value(schema: type, name: str, value: Any, kind: Any, key: str) -> Iterator[Misfit]:
    entries = entries_of(kind)
    if entries is not None and isinstance(value, list):
        found: list[Misfit] = []
        for number, entry in enumerate(value):
            if isinstance(entry, Mapping):
                found += misfits(entry, entries, f"{key}.{number}.")
        if found:
            yield from (dataclasses.replace(misfit, outermost=key) for misfit in found)
            return
    try:
        OmegaConf.merge(OmegaConf.structured(schema), {name: value})
    except OmegaConfBaseException as error:
        is_section = dataclasses.is_dataclass(kind)
        expected = f"a value of type {type_name(kind)}"
        if is_section:
            expected = "keys and values (an empty section must be deleted)"
        reason = str(error).splitlines()[0]
        inner = re.search(rf"full_key: {re.escape(name)}[.\[](\w+)", str(error))
        place = f"{key}.{inner[1]}" if inner else key
        yield Misfit(key=place, value=value, expected=expected, reason=reason, outermost=key)


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value
