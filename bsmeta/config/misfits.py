"""Finds the values that do not fit a schema, by one walk along its fields.

OmegaConf merges all values or none, stops at the first error, and often does not report its
location. So one merge types the values, and only where it fails each is tried by itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.command_line import COMMAND_LINE
from bsmeta.config.describe import entries_of, group_options, key_names, suggestion, type_name
from bsmeta.config.hydra_ext import MISSING, NO_VALUE, key_of
from bsmeta.core.problems import Problem, show

HELP = "see --help for every key"
Names = tuple[Any, ...]  # of sections and a key, from the outside in


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that the schema does not accept.

    Attributes:
        path: The names of its sections, and its own; entries of lists by their index.
        expected: The type as text; None: there is no such key.
        reason: OmegaConf's message, or "".
        siblings: If there is no such key: the keys of the section.
        dropped: The part of the path that must be removed for the rest to fit.
    """

    path: Names
    value: Any
    expected: str | None
    reason: str = ""
    siblings: tuple[str, ...] = ()
    dropped: Names

    @property
    def key(self) -> str:
        return dotted(self.path)


def dotted(path: Sequence[Any]) -> str:
    """A path of names as one key."""
    return ".".join(map(str, path))


def misfits(values: Mapping[Any, Any], schema: type, path: Names = ()) -> Iterator[Misfit]:
    """Yields the values that do not fit the dataclass of a section.

    Args:
        values: The values as parsed from YAML; interpolations fit everywhere.
        path: The names of the section.
    """
    types = typing.get_type_hints(schema)
    for name, value in values.items():
        at = (*path, name)
        if name in types:
            yield from _of_value(value, types[name], at)
        else:
            siblings = tuple(dotted((*path, known)) for known in types)
            yield Misfit(path=at, value=value, expected=None, siblings=siblings, dropped=at)


def _of_value(value: Any, kind: Any, path: Names) -> Iterator[Misfit]:
    entries, is_section = entries_of(kind), dataclasses.is_dataclass(kind)
    if is_section and isinstance(value, Mapping):
        yield from misfits(value, kind, path)
        return
    if entries is not None and isinstance(value, list):
        inside = [
            dataclasses.replace(misfit, dropped=path)
            for index, entry in enumerate(value)
            if isinstance(entry, Mapping)
            for misfit in misfits(entry, entries, (*path, index))
        ]
        if inside:
            yield from inside
            return
    error = _refusal(kind, value)
    if error is None and value not in (MISSING, NO_VALUE):
        return
    inner = re.search(r"full_key: value[.\[](\w+)", str(error))
    expected = f"a value of type {type_name(typing.get_args(kind)[-1] if inner else kind)}"
    if is_section:
        expected = "keys and values"
        if value is None:
            expected += " (an empty section must be deleted)"
    at = (*path, inner[1]) if inner else path
    if inner and isinstance(value, Mapping):
        value = value.get(inner[1], value)
    reason = str(error or "").partition("\n")[0].replace("field 'value'", f"field '{dotted(path)}'")
    yield Misfit(path=at, value=value, expected=expected, reason=reason, dropped=path)


def _refusal(kind: Any, value: Any) -> OmegaConfBaseException | None:
    """The error of setting a field of a type to a value."""
    if isinstance(value, str) and "${" in value:
        return None
    field = ("value", kind, dataclasses.field(default=MISSING))
    holder = OmegaConf.structured(dataclasses.make_dataclass("Holder", [field]))
    try:
        if entries_of(kind):
            OmegaConf.merge(holder, {"value": value})
        else:  # its messages name the type that was found
            holder.value = value
    except OmegaConfBaseException as error:
        return error
    return None


def typed(values: dict[str, Any], schema: type) -> tuple[DictConfig, list[Misfit]]:
    """The values in the types of the schema; what does not fit has the default of the schema.

    Args:
        values: The values as parsed from YAML; what does not fit is removed from them.
    """
    found: list[Misfit] = []
    try:
        merged = None if _has_missing(values) else _merged(values, schema)
    except OmegaConfBaseException:
        merged = None
    if merged is None:
        found = [*misfits(values, schema)]
        for misfit in found:
            section: Any = values
            for name in misfit.dropped[:-1]:
                section = section[name]
            section.pop(misfit.dropped[-1], None)
        merged = _merged(values, schema)
    return merged, found


def _merged(values: dict[str, Any], schema: type) -> DictConfig:
    merged = OmegaConf.merge(OmegaConf.structured(schema), values)
    assert isinstance(merged, DictConfig)
    return merged


def _has_missing(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return any(map(_has_missing, value.values() if isinstance(value, dict) else value))
    return value in (MISSING, NO_VALUE)


def of_misfit(misfit: Misfit, file: str, schema: type, override: str = "") -> Problem:
    """The problem of a value in a file, or in an override, that the schema does not accept."""
    if misfit.expected is None:
        return unknown_key(misfit.key, schema, file, misfit.siblings)
    found = show(misfit.value)
    if key_of(override) == misfit.key:
        found = override.partition("=")[2]
    if misfit.value in (MISSING, NO_VALUE):
        return Problem(misfit.key, file, NO_VALUE, misfit.expected, f"{misfit.key}=VALUE")
    expected = f"{misfit.expected} ({misfit.reason})"
    return Problem(misfit.key, file, found, expected, f"correct it; {HELP}")


def unknown_key(
    name: str, schema: type, file: str = COMMAND_LINE, siblings: Sequence[str] = ()
) -> Problem:
    """The problem of an unknown key, with the most similar key, preferably from `siblings`."""
    groups = [*group_options()] if file == COMMAND_LINE else []
    expected = f"a key of {schema.__name__}"
    if groups:
        expected += f", or one of the groups {', '.join(groups)}"
    if name in key_names(schema):  # in a file, as one name with dots
        fix = f"write it nested, {': {'.join(name.split('.'))}: …{'}' * name.count('.')}"
        return Problem(name, file, "one name with dots", "a section with the key in it", fix)
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.8)
    known = near[0] if near else suggestion(name, schema)
    if known:
        expected += f" (did you mean {known}?)"
    fix = f"write {known}, or drop it" if known else f"drop it; {HELP}"
    return Problem(name, file, "an unknown key", expected, fix)
