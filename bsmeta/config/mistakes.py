"""Finds every mistake in a command line or YAML files that Hydra refuses to compose.

Hydra stops at the first mistake. `mistakes` drops the invalid keys of files one by one, then tries
each override alone, so that one message can name all mistakes. It also returns the configuration
without them, so that the checks of what is left can report in the same message. Values are checked
against the schema key by key, because OmegaConf merges all or nothing, stops at the first error,
and often does not report its location.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.command_line import COMMAND_LINE
from bsmeta.config.describe import entries_of, group_options, key_names, keys, suggestion, type_name
from bsmeta.config.hydra_ext import nested, reading, shown_path
from bsmeta.core.problems import Problem, closest, nearest, show


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that the schema does not accept.

    Attributes:
        key: Its dotted key; entries of lists by their index.
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
        prefix: The dotted key of the section with a trailing dot, or "".
    """
    types = typing.get_type_hints(schema)
    leaves = {
        name: value
        for name, value in values.items()
        if name in types and not _is_section(value, types[name]) and not _is_interpolation(value)
    }
    if _refusal(schema, leaves) is None:
        leaves = {}  # one merge checks all values; one for each value takes seconds
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in types:
            siblings = tuple(f"{prefix}{type_}" for type_ in types)
            yield Misfit(
                key=key, value=value, expected=None, reason="", outermost=key, siblings=siblings
            )
        elif _is_section(value, types[name]):
            yield from misfits(value, types[name], f"{key}.")
        elif name in leaves:
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
    if (error := _refusal(schema, {name: value})) is not None:
        is_section = dataclasses.is_dataclass(kind)
        expected = f"a value of type {type_name(kind)}"
        if is_section:
            expected = "keys and values (an empty section must be deleted)"
        reason = str(error).splitlines()[0]
        inner = re.search(rf"full_key: {re.escape(name)}[.\[](\w+)", str(error))
        place = f"{key}.{inner[1]}" if inner else key
        yield Misfit(key=place, value=value, expected=expected, reason=reason, outermost=key)


def _refusal(schema: type, values: Mapping[Any, Any]) -> OmegaConfBaseException | None:
    """The error of merging values into a section."""
    try:
        OmegaConf.merge(OmegaConf.structured(schema), values)
    except OmegaConfBaseException as error:
        return error
    return None


def _is_section(value: Any, kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(value, Mapping)


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


HELP = "see --help for every key"
# Advice on "+key=value" cannot work, because the schema is closed; the rest is of no use to a user.
_NOISE = ("To append", "Config search path", "provider=", "See https", "Error merging")
_CONTEXT = ("object_type", "reference_type", "full_key", "In '", "Check that it's in")
_PLACE = re.compile(r"In '(.+?)'")
_FULL_KEY = re.compile(r"full_key: ([\w.\[\]-]+)")
_UNKNOWN = re.compile(r"[Kk]ey '(.+?)' (?:is )?not in")
Refusal = (HydraException, OmegaConfBaseException)
Composer = Callable[[Sequence[str]], DictConfig]


def composer(folder: Path, name: str) -> Composer:
    """Returns a function that composes overrides onto the file `name` of `folder` or the user's."""

    def composed(overrides: Sequence[str]) -> DictConfig:
        GlobalHydra.instance().clear()
        reading.clear()
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            return hydra.compose(name, [*overrides])

    return composed


def mistakes(
    error: Exception, overrides: Sequence[str], compose: Composer, schema: type
) -> tuple[list[Problem], DictConfig | None]:
    """Finds all that cannot be composed, and composes the rest.

    Args:
        error: Hydra's error for all of it together.
        overrides: `key=value` as on the command line.
        compose: Composes some of the overrides; raises Hydra's errors.

    Returns:
        The mistakes, at least one; and the configuration without them (None if it fails, too).
    """
    found, is_whole = _of_files(compose, schema)
    if not is_whole:
        return found, None
    fine = []
    for override in overrides:
        try:
            compose([override])
        except Refusal as refusal:
            found += _of_section(override, schema) or [_of_override(override, refusal, schema)]
        else:
            fine.append(override)
    try:
        return found or [_of_file(error)], compose(fine)
    except Refusal:
        return found or [_of_file(error)], None


def _of_files(compose: Composer, schema: type) -> tuple[list[Problem], bool]:
    """Finds the mistakes in files, and drops them from everything composed from here on.

    Returns:
        The mistakes, and whether the files can be composed without them.
    """
    found: list[Problem] = []
    while True:
        try:
            compose([])
        except Refusal as refusal:
            missing = isinstance(refusal, MissingConfigException) and refusal.missing_cfg_file
            fresh = [] if missing else [*_of_contents(schema)]
            found += fresh or [_of_file(refusal)]
            if missing and missing not in reading.left_out_defaults:
                reading.left_out_defaults.add(missing)
            elif not fresh:
                return found, False
        else:
            return found, True


def _of_contents(schema: type) -> Iterator[Problem]:
    """Yields and drops the values that do not fit the schema in the files that Hydra has read."""
    for file, (package, content) in [*reading.contents.items()]:
        section, known = package.partition(".")[0], key_names(schema)
        if section and section not in known:
            if section not in reading.left_out:
                yield _without_package(section, shown_path(file))
            reading.left_out.add(section)
            continue
        for misfit in misfits(nested(package, content), schema):
            if misfit.outermost in reading.left_out:
                continue
            yield of_misfit(misfit, shown_path(file), schema)
    for package, content in reading.contents.values():
        reading.left_out |= {
            misfit.outermost for misfit in misfits(nested(package, content), schema)
        }


def of_misfit(misfit: Misfit, file: str, schema: type) -> Problem:
    """The problem of a value in a file that the schema does not accept."""
    if misfit.expected is None:
        return unknown_key(misfit.key, schema, file, misfit.siblings)
    expected = f"{misfit.expected} ({misfit.reason})"
    return Problem(misfit.key, file, show(misfit.value), expected, f"correct it; {HELP}")


def _of_section(override: str, schema: type) -> list[Problem]:
    """The misfits in an override that holds a mapping or a list."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return []
    name, value = parsed.key_or_group, parsed.value()
    if not isinstance(value, (dict, list)) or name not in key_names(schema):
        return []
    package, _, leaf = name.rpartition(".")
    found = misfits(nested(package, {leaf: value}), schema)
    return [of_misfit(misfit, COMMAND_LINE, schema) for misfit in found]


def _of_override(override: str, error: Exception, schema: type) -> Problem:
    name, equals, value = override.partition("=")
    name = name.lstrip("+~")
    message = explain(error)
    if not equals and not override.startswith("~"):
        fix = f"{name}=VALUE, or --config-name {name}, if that is meant"
        return Problem(name, COMMAND_LINE, "no value", "key=value", fix)
    if _UNKNOWN.search(_text(error)):
        inner, place = _FULL_KEY.search(_text(error)), _PLACE.search(_text(error))
        if place and place[1] == f"{name}/{value}":
            return _without_package(name, _path_of(place[1]))
        return unknown_key(inner[1] if inner else name, schema)
    options = group_options().get(name.partition("@")[0], [])
    if isinstance(error, MissingConfigException) and error.options:
        options = [*error.options]
    if "No match in the defaults list" in message and value in options:
        expected = "a + before it: no configuration has it from the outset"
        return Problem(name, COMMAND_LINE, show(value), expected, f"+{name}={value}")
    if isinstance(error, MissingConfigException) or "No match in the defaults list" in message:
        if options:
            expected = f"one of {', '.join(options)}{nearest(value, options)}"
            plus = "+" if override.startswith("+") or "No match" in message else ""
            fix = f"{plus}{name}={closest(value, options)}"
            return Problem(name, COMMAND_LINE, show(value), expected, fix)
        return unknown_key(name, schema)
    types = {key.name: key.type for key in keys(schema)}
    expected = f"a value of type {types[name]} ({message})" if name in types else message
    if isinstance(error, OverrideParseException):
        expected = f"key=value in Hydra's grammar ({message})"
        fix = f"put the value within two kinds of quotes: \"{name}='{value}'\"; {HELP}"
        return Problem(name, COMMAND_LINE, value or "nothing", expected, fix)
    return Problem(name, COMMAND_LINE, value or "nothing", expected, f"correct it; {HELP}")


def _of_file(error: Exception) -> Problem:
    """A mistake in how YAML files are combined, or in a combination of overrides."""
    message, place = explain(error), _PLACE.search(_text(error))
    file = _path_of(place[1]) if place else "the configuration"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = [name.removesuffix(".yaml") for name in error.options or ()]
        expected = f"one of {', '.join(options)}" if options else "a file of a config folder"
        fix = f"- {group}: {closest(option, options)}" if options else "correct it, or delete it"
        return Problem(
            group or "defaults", file, show(option), expected + nearest(option, options), fix
        )
    where = _FULL_KEY.search(_text(error))
    key = where[1] if where else "(the whole)"
    return Problem(key, file, message, "something that Hydra can compose", f"correct it; {HELP}")


def _path_of(name: str) -> str:
    """The file that Hydra refers to by a name such as `job` or `model/gpt2`."""
    same = [file for file in reading.files if f"{file.with_suffix('')}".endswith(f"/{name}")]
    return shown_path(same[0]) if same else f"{name}.yaml"


def _without_package(group: str, file: str) -> Problem:
    """The problem of a group's file whose keys would be nested under the group's name."""
    expected = "# @package _global_ in its first line: it sets keys of the whole configuration"
    fix = "write that line, and the keys as in a main configuration"
    return Problem(group, file, "no such line", expected, fix)


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


def explain(error: BaseException) -> str:
    """Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = dict.fromkeys(line.strip() for line in _text(error).splitlines() if line.strip())
    return "; ".join(line for line in lines if not line.startswith(_NOISE + _CONTEXT))


def _text(error: BaseException) -> str:
    """The messages of an error and of its cause."""
    return f"{error}\n{error.__cause__ or ''}"
