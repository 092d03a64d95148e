"""Plain values to the configuration of a schema, with all that does not fit; saved ones, too.

What Hydra composes has no types. `fill` sets the fields of the schema one by one, so that every
value that does not fit is found. Then `resolve` replaces every `${…}` by its value in the type of
its field. OmegaConf does so for numbers, strings and booleans; here lists, mappings and sections
are converted, too: a variable may hold YAML, `TYPES='[url, title]'`. Nothing is resolved in what a
run has saved (`bsmeta.config.saved`).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import (
    InterpolationResolutionError,
    InterpolationValidationError,
    OmegaConfBaseException,
)

from bsmeta.config.saved import changed_texts, mark, read_saved, shielded, unshielded
from bsmeta.config.sources import MISSING, NO_VALUE, group_options, reading
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, look_up, refuse, show
from bsmeta.core.errors import MISSING as ABSENT
from bsmeta.core.keys import (
    address_problems,
    bound_problems,
    expand_home,
    key_names,
    refuse_out_of_bounds,
    type_hints,
)
from bsmeta.core.parsing import parse_json, parse_yaml
from bsmeta.core.secrets import redact_values

if TYPE_CHECKING:
    from bsmeta.config.schema import RunConfig
    from bsmeta.config.task_entry import TaskEntry

Config = TypeVar("Config")
Run = TypeVar("Run", bound="RunConfig")
Names = tuple[Any, ...]  # of sections and a key, from the outside in

COMMAND_LINE = "the command line"
HELP = "see --help for every key"

_VARIABLE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_]\w*(?:\.\w+)*)(?=\s*[},])")
_KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_BRACE = re.compile(r"\$\{|[{}]")
_SELECT = "oc.select:"


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that the schema does not accept.

    Attributes:
        path: The names of its sections, and its own; entries of lists by their index.
        expected: The type as text; None: there is no such key.
        reason: OmegaConf's message, or "".
        siblings: If there is no such key: the keys of the section.
        found: The value as text; None: as YAML has it.
        fix: What to write instead; None: to correct it.
    """

    path: Names
    value: Any
    expected: str | None
    reason: str = ""
    siblings: tuple[str, ...] = ()
    found: str | None = None
    fix: str | None = None

    @property
    def key(self) -> str:
        return dotted(self.path)


def dotted(path: Sequence[Any]) -> str:
    """A path of names as one key."""
    return ".".join(map(str, path))


def store_name(schema: type | str) -> str:
    """The name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`."""
    name = schema.rpartition(":")[2] if isinstance(schema, str) else schema.__name__
    border = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(border, "_", name).lower()


def type_name(kind: Any) -> str:
    """A type as a user reads it: `int`, `list[str]`, `str | None`."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind))


def entries_of(kind: Any) -> Any:
    """The dataclass that a list holds, if it holds one."""
    options = [argument for argument in typing.get_args(kind) if isinstance(argument, type)]
    return next(filter(dataclasses.is_dataclass, options), None)


def required(kind: Any) -> Any:
    """A type without `| None`."""
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    is_optional = len(options) < len(typing.get_args(kind))
    return options[0] if is_optional and len(options) == 1 else kind


def fill(section: DictConfig, values: Mapping[Any, Any], path: Names = ()) -> Iterator[Misfit]:
    """Sets the fields of a section, and of the sections in it; yields the values that do not fit.

    Their fields keep the default of the schema. Interpolations fit everywhere.

    Args:
        values: The values as parsed from YAML.
        path: The names of the section.
    """
    schema: Any = OmegaConf.get_type(section)
    types = type_hints(schema)
    for name, value in values.items():
        at = (*path, name)
        value = _from_json(value, types.get(name))
        if name not in types:
            siblings = tuple(dotted((*path, known)) for known in types)
            yield Misfit(path=at, value=value, expected=None, siblings=siblings)
        elif dataclasses.is_dataclass(types[name]) and isinstance(value, Mapping):
            yield from fill(section[name], value, at)
        else:
            yield from _set(section, value, types[name], at)


def _from_json(value: Any, kind: Any) -> Any:
    """The mapping that a text holds as JSON, where the schema has a mapping; else the value.

    On a command line, this is how keys have quotes, for which Hydra's grammar has none.
    """
    kind = required(kind)
    takes_mapping = kind is Any or dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict
    if not (takes_mapping and isinstance(value, str) and value.startswith("{")):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def misread_booleans(value: Any, kind: Any, path: Names = ()) -> Iterator[Misfit]:
    """Yields the booleans of a value where the schema has texts: `no` without quotes in YAML.

    Args:
        kind: The type of the value in the schema.
    """
    kind = required(kind)
    entry_type = typing.get_args(kind)[-1] if typing.get_origin(kind) in (list, dict) else Any
    if isinstance(value, Mapping):
        is_section = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        fields = type_hints(kind) if is_section else {}
        for name, entry in value.items():
            if isinstance(name, bool):
                yield _misread(name, path, is_key=True)
            else:
                yield from misread_booleans(entry, fields.get(name, entry_type), (*path, name))
    elif isinstance(value, list):
        for entry in value:
            yield from misread_booleans(entry, entry_type, path)
    elif isinstance(value, bool) and kind is str:
        yield _misread(value, path, is_key=False)


def _misread(value: bool, path: Names, *, is_key: bool) -> Misfit:
    """A boolean that is a text of the schema, or a key of the mapping at the path."""
    word, others = ("yes", "on and true") if value else ("no", "off and false")
    expected = f"a text (YAML reads {word}, {others} without quotes as {show(value)})"
    if not is_key:
        fix = f'"{word}" with its quotes in YAML, or {word} on the command line'
        return Misfit(path=path, value=value, expected=expected, fix=fix)
    mapping = f"{dotted(path)}='{json.dumps({word: 1})}'"
    fix = f'"{word}" with its quotes in YAML, or such as {mapping} on the command line'
    found = f"the key {show(value)}"
    return Misfit(path=path, value=value, expected=expected, found=found, fix=fix)


def _set(section: DictConfig, value: Any, kind: Any, path: Names) -> Iterator[Misfit]:
    misread = [*misread_booleans(value, kind, path)]
    if misread:
        yield from misread
        return
    entries = entries_of(kind)
    if entries is not None and isinstance(value, list):
        filled: list[Any] = []
        inside: list[Misfit] = []
        for index, entry in enumerate(value):
            if isinstance(entry, Mapping):
                typed = OmegaConf.structured(entries)
                inside += fill(typed, entry, (*path, index))
                entry = typed
            filled.append(entry)
        if inside:
            yield from inside
            return
        value = filled
    try:
        if value not in (MISSING, NO_VALUE):
            section[path[-1]] = value
            return
        yield Misfit(path=path, value=NO_VALUE, expected=f"a value of type {type_name(kind)}")
    except OmegaConfBaseException as error:
        yield _misfit(value, kind, path, error)


def _misfit(value: Any, kind: Any, path: Names, error: OmegaConfBaseException) -> Misfit:
    expected, reason = f"a value of type {type_name(kind)}", str(error).partition("\n")[0]
    if dataclasses.is_dataclass(kind):
        expected = "keys and values"
        if value is None:
            expected += " (an empty section must be deleted)"
    elif error.key != path[-1]:  # an entry of a list or mapping
        path = (*path, error.key)
        expected = f"a value of type {type_name(typing.get_args(required(kind))[-1])}"
        if isinstance(value, Mapping):
            value = value.get(error.key, value)
    return Misfit(path=path, value=value, expected=expected, reason=reason)


def of_misfit(misfit: Misfit, file: str, schema: type, given: str | None = None) -> Problem:
    """The problem of a value that the schema does not accept.

    Args:
        file: What sets it.
        given: The value as it was written, if it is known.
    """
    key, expected = misfit.key, misfit.expected
    if expected is None:
        return unknown_key(key, schema, file, misfit.siblings)
    if misfit.value == NO_VALUE:
        return Problem(key, file, NO_VALUE, expected, f"{key}=VALUE")
    if misfit.fix is not None:
        return Problem(key, file, misfit.found or show(misfit.value), expected, misfit.fix)
    found = show(misfit.value) if given is None else given
    return Problem(key, file, found, f"{expected} ({misfit.reason})", f"correct it; {HELP}")


def unknown_key(
    name: str, schema: type, file: str = COMMAND_LINE, siblings: Sequence[str] = ()
) -> Problem:
    """The problem of an unknown key, with the most similar key, preferably from `siblings`."""
    expected = f"a key of {schema.__name__}"
    if file == COMMAND_LINE:
        expected += f", or one of the groups {', '.join(group_options())}"
    if name in key_names(schema):  # in a file, as one name with dots
        fix = f"write it nested, {': {'.join(name.split('.'))}: …{'}' * name.count('.')}"
        return Problem(name, file, "one name with dots", "a section with the key in it", fix)
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.8)
    known = near[0] if near else suggestion(name, schema)
    if known is not None:
        expected += f" (did you mean {known}?)"
    fix = f"drop it; {HELP}" if known is None else f"write {known}, or drop it"
    return Problem(name, file, "an unknown key", expected, fix)


def suggestion(name: str, schema: type) -> str | None:
    """The key or group most similar to a misspelled one; None if none is."""
    full = {known.rpartition(".")[2]: known for known in reversed(key_names(schema))}
    full |= {group: group for group in group_options()}
    near = difflib.get_close_matches(name.rpartition(".")[2], full, n=1)
    return full[near[0]] if near and full[near[0]] != name else None


def finished(composed: DictConfig, schema: type[Config]) -> tuple[Config, list[Problem]]:
    """Resolves a filled configuration, and converts it to an instance of the schema.

    Returns:
        The instance, in which the schema's defaults replace values that cannot be resolved, and the
        problems.
    """
    problems = resolve(composed)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, schema)
    for name, path in expand_home(config):
        user = path.partition("/")[0]
        expected = f"a path; there is no user {user[1:]} on this machine"
        fix = f"{name}=./{path}, or correct it"
        problems.append(Problem(name, HYDRA, show(path), expected, fix))
    problems += address_problems(config)
    return config, problems


def resolve(composed: DictConfig) -> list[Problem]:
    """Replaces every interpolation of a section by its value in the field's type, in place.

    Returns:
        The problems; a value that cannot be resolved is replaced by the schema's default.
    """
    problems = []
    written = OmegaConf.to_container(composed, resolve=False)
    for section, name, key in reversed([*_interpolations(composed, "")]):
        schema: Any = OmegaConf.get_type(section)
        is_field = dataclasses.is_dataclass(schema)
        kind = required(type_hints(schema)[name]) if is_field else None
        try:
            _settle(section, name, kind)
        except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
            entries: Any = OmegaConf.to_container(section, resolve=False)
            text = entries[name]
            variables = [*dict.fromkeys(_variables(text, written, ()))]
            problems.append(_unresolved(key, str(text), variables, kind, error))
            with open_dict(section):
                if is_field:
                    section[name] = getattr(schema(), name)
                else:  # an entry of a list or mapping; those before it keep their index
                    del section[name]
    return problems[::-1]


def _interpolations(
    section: DictConfig | ListConfig, prefix: str
) -> Iterator[tuple[DictConfig | ListConfig, Any, str]]:
    """Yields the container, the name in it and the dotted key of every interpolation."""
    names = list(section) if isinstance(section, DictConfig) else range(len(section))
    for name in names:
        key = f"{prefix}{name}"
        if OmegaConf.is_interpolation(section, name):
            yield section, name, key
        elif not OmegaConf.is_missing(section, name) and OmegaConf.is_config(section[name]):
            yield from _interpolations(section[name], f"{key}.")


def _settle(section: DictConfig | ListConfig, name: Any, kind: Any) -> None:
    """Sets a field of a type that holds others to the value of its interpolation."""
    value, is_section = section[name], dataclasses.is_dataclass(kind)
    if value is None or not (is_section or typing.get_origin(kind) in (list, dict)):
        return
    if isinstance(value, str):
        value = parse_yaml(value)
        if not isinstance(value, (list, dict)):
            raise TypeError(f"not {type_name(kind)}")
        for misread in misread_booleans(value, kind):
            raise TypeError(misread.expected)
    elif OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)  # it may itself contain some
    section[name] = OmegaConf.merge(OmegaConf.structured(kind), value) if is_section else value


def _unresolved(key: str, text: str, variables: list[str], kind: Any, error: Exception) -> Problem:
    message = str(error)
    pass_it = f"pass {key}=…" if not key.rpartition(".")[2].isdecimal() else "write the value there"
    for name in variables:
        if f"Environment variable '{name}' not found" in message:
            found = f"{text}, but the environment has no {name}"
            expected = f"the variable, or a default: ${{oc.env:{name},VALUE}}"
            return Problem(key, HYDRA, found, expected, f"export {name}=…, or {pass_it}")
    reason = re.sub(r"^While dereferencing interpolation '.*?': ", "", message.partition("\n")[0])
    named = [
        f"{name}={os.environ[name]}" if name in os.environ else f"{name} is unset"
        for name in variables
    ]
    expected = f"a value of type {type_name(kind)}" if kind else "a value that fits"
    fix = pass_it
    is_resolved = not isinstance(error, InterpolationResolutionError) or isinstance(
        error, InterpolationValidationError
    )
    if variables:
        fix = f"export {' or '.join(variables)} with another value, or {pass_it}"
    elif not is_resolved:
        expected = "a key, or a resolver (oc.env, repo, from_file)"
        fix = f"correct it, or {pass_it}"
    return Problem(key, HYDRA, "; ".join([show(text), *named]), f"{expected} ({reason})", fix)


def _variables(value: Any, written: Any, seen: tuple[str, ...]) -> Iterator[str]:
    """Yields the environment variables of a value as written, and of the keys it refers to."""
    for text in _texts(value):
        yield from _VARIABLE.findall(text)
        for name in _REFERENCE.findall(text):
            if name not in seen:
                yield from _variables(look_up(written, name), written, (*seen, name))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)


def to_yaml(config: Any) -> str:
    """The resolved configuration as YAML that `load_resolved` reads back; without secrets.

    Its defaults list names the schema, so that Hydra accepts the file as a configuration, too:
    `train.py --config-dir FOLDER --config-name config` starts the same run again.
    """
    values = {"defaults": [store_name(type(config)), "_self_"]}
    values |= changed_texts(redact_values(dataclasses.asdict(config)), mark)
    values.pop("trust_checkpoint", None)  # of the call, never of a file
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def load_resolved(path: Path, schema: type[Config]) -> Config:
    """Reads a `config.yaml` that a run has written.

    Raises:
        ConfigurationError: If it cannot be read, has something to resolve, or does not fit.
    """
    return to_config(read_saved(path), schema, str(path))


def to_config(values: Mapping[Any, Any], schema: type[Config], file: str) -> Config:
    """Converts finished values to an instance of a schema.

    Args:
        file: What sets them, for messages.

    Raises:
        ConfigurationError: Listing the values that do not fit.
    """
    composed = OmegaConf.structured(schema)
    misfits: list[Misfit] = unshielded([*fill(composed, shielded(values))])
    refuse([of_misfit(misfit, file, schema) for misfit in misfits])
    shielded_config, problems = finished(composed, schema)
    config: Config = unshielded(shielded_config)
    problems += bound_problems(config)
    refuse([dataclasses.replace(problem, file=file) for problem in problems])
    return config


def saved_task(path: Path) -> str:
    """The task of a run, from its `config.yaml`; causal_lm if the file names none.

    Raises:
        ConfigurationError: If the file cannot be read.
    """
    return _task_of(read_saved(path))


def _task_of(values: Mapping[Any, Any]) -> str:
    return str(values.get("task", "causal_lm"))


def saved_config(
    path: Path, tasks: Mapping[str, TaskEntry], overrides: Mapping[str, Any]
) -> RunConfig:
    """The configuration of a training run of one of some tasks, with some keys changed.

    Raises:
        ConfigurationError: If it cannot be read or does not fit, or is of another task.
    """
    values = read_saved(path)
    task = _task_of(values)
    if task not in tasks:
        raise ConfigurationError(f"{path}: trained with task={task}; expected {' or '.join(tasks)}")
    return changed(to_config(values, tasks[task].config, str(path)), overrides)


def changed(config: Run, overrides: Mapping[str, Any]) -> Run:
    """A configuration with some keys changed; both are finished values."""
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(shielded(config)), OmegaConf.create(shielded(dict(overrides)))
        )
        found = unshielded(OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"overrides={dict(overrides)}: {reason}; expected keys of the training configuration "
            "(python bsmeta/train.py --help lists them)"
        ) from error
    assert isinstance(found, type(config))
    if overrides:
        refuse_out_of_bounds(found, "overrides.")
    return found


def refuse_unused(config: Any, used: Sequence[str], purpose: str) -> None:
    """Refuses keys that are set although they have no meaning for a purpose.

    Args:
        purpose: As the message names it, such as `mode=text`.
    """
    default = type(config)()
    names = [field.name for field in dataclasses.fields(config) if field.name not in used]
    unused = [name for name in names if getattr(config, name) != getattr(default, name)]
    if unused:
        raise ConfigurationError(
            f"{', '.join(unused)}: without a meaning for {purpose}; expected some of "
            f"{', '.join(used)}"
        )


def unread_keys(name: str, checked: Collection[str] = ()) -> list[str]:
    """The keys below a key of the configuration that no `${…}` of it reads.

    A whole branch is one name. If nothing reads any part of the key, as in the configuration that a
    run has saved, only those of the command line are listed.

    Args:
        checked: Keys that the program itself reads.
    """
    read = {key for key in _read_keys() if f"{key}.".startswith(f"{name}.")}
    if not read:
        return [key for key in reading.overridden if key.startswith(f"{name}.")]
    return [*_unread(reading.written[name], name, {*read, *checked})]


def is_read(name: str) -> bool:
    """Whether a `${…}` of the configuration reads a key, or one below it."""
    return any(f"{key}.".startswith(f"{name}.") for key in _read_keys())


def _read_keys() -> set[str]:
    """The keys that the `${…}` of the configuration read, as it is composed."""
    return {key for text in _texts(reading.written) for key in _keys_in(text)}


def _keys_in(text: str) -> Iterator[str]:
    """Yields the keys that a text reads; those of a fallback of `oc.select` only if it is used."""
    for body in _interpolated(text):
        arguments = body.removeprefix(_SELECT)
        selects = arguments != body
        name, _, fallback = (part.strip() for part in arguments.partition(","))
        if not _KEY.fullmatch(name) or (fallback and not selects):
            yield from _keys_in(body)  # the arguments of another resolver
        elif selects and look_up(reading.written, name) in (ABSENT, MISSING, NO_VALUE):
            yield from _keys_in(fallback)
        else:
            yield name


def _interpolated(text: str) -> Iterator[str]:
    """Yields the content of each outermost `${…}` of a text."""
    start = depth = 0
    for brace in _BRACE.finditer(text):
        if depth == 0 and brace[0] != "${":
            continue
        if depth == 0:
            start = brace.end()
        depth += -1 if brace[0] == "}" else 1
        if depth == 0:
            yield text[start : brace.start()]


def _unread(value: Any, name: str, references: set[str]) -> Iterator[str]:
    if name in references:
        return
    if not any(found.startswith(f"{name}.") for found in references):
        yield name
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _unread(entry, f"{name}.{key}", references)
    elif isinstance(value, list):
        for at, entry in enumerate(value):
            if isinstance(entry, (dict, list)):  # a list of values is read as a whole
                yield from _unread(entry, f"{name}.{at}", references)
