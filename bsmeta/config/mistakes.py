"""Composes overrides onto files, and finds every mistake in both.

Hydra only merges: what it composes has no types, and an override may set any key. `misfits` finds
what does not fit the schema, by one walk along its fields: OmegaConf merges all values or none,
stops at the first error, and often does not report its location. So one merge types the values, and
only where it fails each is tried by itself. Hydra itself refuses only what is not in its grammar,
groups and defaults lists; it stops at the first of these, so each override is then tried alone.
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
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.command_line import COMMAND_LINE
from bsmeta.config.describe import entries_of, group_options, suggestion, type_name
from bsmeta.config.hydra_ext import (
    MISSING,
    NO_VALUE,
    key_of,
    nested,
    reading,
    sets_key,
    settable,
    shown_path,
    store_name,
)
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, closest, nearest, refuse, show
from bsmeta.core.keys import key_names

HELP = "see --help for every key"
Names = tuple[Any, ...]  # of sections and a key, from the outside in

ABSENT = object()
Refusal = (HydraException, OmegaConfBaseException)
Composer = Callable[[Sequence[str]], dict[str, Any]]
# Advice on "+key=value" cannot work, because the schema is closed; the rest is of no use to a user.
_NOISE = ("To append", "Config search path", "provider=", "See https", "Error merging")
_CONTEXT = ("object_type", "reference_type", "full_key", "In '", "Check that it's in")


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


def plain(composed: DictConfig) -> dict[str, Any]:
    """What Hydra has composed, without its own settings; every `${…}` as it is written."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items() if name != "hydra"}


def composer(folder: Path, name: str) -> Composer:
    """Returns a function that composes overrides onto the file `name` of `folder` or the user's."""

    def composed(overrides: Sequence[str]) -> dict[str, Any]:
        GlobalHydra.instance().clear()
        reading.clear()
        reading.main_folder = folder
        try:
            with hydra.initialize_config_dir(str(folder), version_base="1.3"):
                whole = hydra.compose(name, settable(overrides), return_hydra_config=True)
        except RecursionError as error:
            files = ", ".join(map(shown_path, reading.files))
            raise ConfigurationError(f"the defaults lists of {files} name each other") from error
        HydraConfig.instance().set_config(whole)  # for ${hydra:…}
        return plain(whole)

    return composed


def compose_all(
    compose: Composer, overrides: Sequence[str], schema: type, earlier: Sequence[Problem] = ()
) -> tuple[DictConfig, list[Problem]]:
    """Composes all that can be composed.

    Args:
        overrides: `key=value` as on the command line.
        earlier: Mistakes that have been found before.

    Returns:
        The configuration without what is wrong, and all mistakes: those of the files before those
        of the overrides.

    Raises:
        ConfigurationError: Listing the mistakes, if nothing can be composed.
    """
    of_files: list[Problem] = []
    found = {
        override: _of_grammar(override) or _of_group(override, schema) for override in overrides
    }

    def fine() -> list[str]:
        return [override for override in overrides if not found[override]]

    def problems() -> list[Problem]:
        of_overrides = [problem for override in overrides for problem in found[override]]
        return [*earlier, *of_files, *of_overrides]

    try:
        values = compose(fine())
    except Refusal:
        of_files, is_whole = _of_files(compose, schema)
        if not is_whole:
            refuse(problems())
        if any(_without_schema(compose([]), (), schema)):
            reading.keys = frozenset()  # nothing has them, so that overrides have to add them
        for override in fine():
            try:
                compose([override])
            except Refusal as refusal:
                found[override] = [_of_override(override, refusal, schema)]
        try:
            values = compose(fine())
        except Refusal as refusal:
            refuse(problems() or [_of_file(refusal, schema)])
            raise
    if not of_files:
        of_files += _without_schema(values, overrides, schema)
    config, wrong = typed(values, schema)
    composed = [override for override in reversed(fine()) if sets_key(override)]
    for misfit in wrong:
        culprit = next((one for one in composed if _sets(one, misfit.path)), None)
        if culprit is None:
            of_files.append(_of_content(misfit, schema))
        else:
            found[culprit] = [*found[culprit], of_misfit(misfit, COMMAND_LINE, schema, culprit)]
    if wrong and len(fine()) < len(overrides):
        config, _ = typed(compose(fine()), schema)
    return config, problems()


def _sets(override: str, path: Names) -> bool:
    """Whether an override sets a key, a section that it is in, or something in it."""
    content = OverridesParser.create().parse_override(override).value()
    return _at(nested(key_of(override), content), path) is not ABSENT


def _without_schema(
    values: Mapping[str, Any], overrides: Sequence[str], schema: type
) -> Iterator[Problem]:
    """Yields a problem unless the schema is among what was composed."""
    deleted = {key_of(override) for override in overrides if override.startswith("~")}
    if {field.name for field in dataclasses.fields(schema)} - deleted - {*values}:
        expected = f"the schema of {schema.__name__} as its first entry"
        fix = f"defaults: [{store_name(schema)}, …, _self_], as in hydra_configs/demo.yaml"
        yield Problem("defaults", HYDRA, "no schema", expected, fix)


def _of_files(compose: Composer, schema: type) -> tuple[list[Problem], bool]:
    """Finds the mistakes in defaults lists, and drops their entries from all that follows.

    Returns:
        The mistakes, and whether the files can be composed without them.
    """
    found: list[Problem] = []
    while True:
        try:
            compose([])
        except Refusal as refusal:
            found.append(_of_file(refusal, schema))
            missing = isinstance(refusal, MissingConfigException) and refusal.missing_cfg_file
            if not missing or missing in reading.left_out:
                return found, False
            reading.left_out.add(str(missing))
        else:
            return found, True


def _of_file(error: Exception, schema: type) -> Problem:
    """A mistake in a defaults list, or in a combination of overrides."""
    place = re.search(r"In '(.+?)'", _text(error))
    file = _path_of(place[1]) if place else "the configuration"
    if unmade := re.search(r"You must specify '(.+?)'", _text(error)):
        options = group_options().get(unmade[1], ["NAME"])
        expected = f"a choice, which the files leave open (???): {', '.join(options)}"
        return Problem(unmade[1], HYDRA, "none", expected, f"{unmade[1]}={options[0]}")
    if not isinstance(error, MissingConfigException) or not error.missing_cfg_file:
        expected = "something that Hydra can compose"
        return Problem("defaults", file, explain(error), expected, f"correct it; {HELP}")
    group, _, option = error.missing_cfg_file.rpartition("/")
    options = [name.removesuffix(".yaml") for name in error.options or ()]
    if not group:
        beside = [path.stem for path in reading.files[-1].parent.glob("*.yaml")] if place else []
        near = nearest(option, [*beside, store_name(schema)])
        expected = f"a file of a config folder, or a schema{near}"
        return Problem("defaults", file, show(option), expected, "correct it, or delete it")
    if not options:
        groups = [*group_options()]
        expected = f"one of the groups {', '.join(groups)}{nearest(group, groups)}"
        fix = f"- {closest(group, groups)}: {option}"
        return Problem("defaults", file, show(f"{group}: {option}"), expected, fix)
    expected = f"one of {', '.join(options)}{nearest(option, options)}"
    return Problem(group, file, show(option), expected, f"- {group}: {closest(option, options)}")


def _path_of(name: str) -> str:
    """The file that Hydra refers to by a name such as `job` or `model/gpt2`."""
    same = [file for file in reading.files if f"{file.with_suffix('')}".endswith(f"/{name}")]
    return shown_path(same[0]) if same else f"{name}.yaml"


def _of_grammar(override: str) -> list[Problem]:
    """What makes an override unreadable for Hydra, whatever the configuration is."""
    name, (_, equals, value) = key_of(override), override.partition("=")
    if not name or not (equals or override.startswith("~")):
        fix = f"{name}=VALUE, or --config-name {name}, if that is meant" if name else "drop it"
        found = "no key" if equals else "no value"
        return [Problem(name or show(override), COMMAND_LINE, found, "key=value", fix)]
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as error:
        reason = str(error).partition("\n")[0]
        expected = f"key=value in Hydra's grammar ({reason})"
        fix = f"put the value within two kinds of quotes: \"{name}='{value}'\"; {HELP}"
        return [Problem(name, COMMAND_LINE, value or "nothing", expected, fix)]
    if parsed.is_sweep_override():
        fix = f"{name}=[{value}], or --multirun to run with each of them"
        return [Problem(name, COMMAND_LINE, value, "one value, or a list in brackets", fix)]
    return []


def _of_group(override: str, schema: type) -> list[Problem]:
    """What makes Hydra fail with an error of Python: a group that is set to anything but names."""
    name, value = key_of(override), override.partition("=")[2]
    options, known = group_options().get(name.partition("@")[0], []), key_names(schema)
    if not options or override.startswith("~") or name in known:
        return []
    content = OverridesParser.create().parse_override(override).value()
    chosen = content if isinstance(content, list) else [content]
    if all(isinstance(option, str) for option in chosen):
        return []
    keys = [key for key in known if key.endswith(f".{name}")]
    expected = f"one of {', '.join(options)}: {name} is a group"
    fix = f"{'+' * override.startswith('+')}{name}={options[0]}"
    if keys and isinstance(content, list):
        expected += f", and {keys[0]} a key that takes a list"
        fix = f"{keys[0]}={value}"
    return [Problem(name, COMMAND_LINE, value, expected, fix)]


def _of_override(override: str, error: Exception, schema: type) -> Problem:
    """The problem of an override that Hydra cannot compose onto the files."""
    name, value = key_of(override), override.partition("=")[2]
    message, options = explain(error), group_options().get(name.partition("@")[0], [])
    if override.startswith("~"):
        if not options and name not in key_names(schema):
            return unknown_key(name, schema)
        expected = "a choice that the configuration has made"
        return Problem(override, COMMAND_LINE, "nothing to delete", expected, "drop it")
    is_unlisted = "No match in the defaults list" in message
    if is_unlisted and value in options:
        expected = "a + before it: no configuration has it from the outset"
        return Problem(name, COMMAND_LINE, show(value), expected, f"+{name}={value}")
    if isinstance(error, MissingConfigException):
        options = [*(error.options or options)]
    elif not is_unlisted:
        options = []
    if options:
        expected = f"one of {', '.join(options)}{nearest(value, options)}"
        plus = "+" if override.startswith("+") or is_unlisted else ""
        fix = f"{plus}{name}={closest(value, options)}"
        return Problem(name, COMMAND_LINE, show(value), expected, fix)
    return Problem(name, COMMAND_LINE, value or "nothing", message, f"correct it; {HELP}")


def _of_content(misfit: Misfit, schema: type) -> Problem:
    """The problem of a value that one of the files that Hydra has read sets."""
    places = {
        file: _at(nested(package, content), misfit.path)
        for file, (package, content) in reading.contents.items()
    }
    sure = [file for file, value in places.items() if value == misfit.value]
    file = next((file for file in (*sure, *places) if places[file] is not ABSENT), None)
    if file is None:
        return of_misfit(misfit, HYDRA, schema)
    package = reading.contents[file][0]
    if misfit.expected is None and misfit.path == (package.partition(".")[0],):
        expected = "# @package _global_ in its first line: it sets keys of the whole configuration"
        fix = "write that line, and the keys as in a main configuration"
        return Problem(package, shown_path(file), "no such line", expected, fix)
    return of_misfit(misfit, shown_path(file), schema)


def _at(content: Any, path: Names) -> Any:
    """The value at a path of nested mappings and lists, or the value before it; or ABSENT."""
    for name in path:
        if isinstance(content, Mapping):
            inside = {str(key): value for key, value in content.items()}
            content = inside.get(str(name), ABSENT)
        elif isinstance(content, list) and isinstance(name, int) and name < len(content):
            content = content[name]
    return content


def explain(error: BaseException) -> str:
    """Hydra's message and its cause in one line, without advice that cannot work here."""
    lines = dict.fromkeys(line.strip() for line in _text(error).splitlines() if line.strip())
    return "; ".join(line for line in lines if not line.startswith(_NOISE + _CONTEXT))


def _text(error: BaseException) -> str:
    """The messages of an error and of its cause."""
    return f"{error}\n{error.__cause__ or ''}"
