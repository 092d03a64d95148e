"""Resolves every `${…}` of a filled configuration, and converts it to an instance of its schema.

OmegaConf resolves interpolations to numbers, strings and booleans. Here, they may also become
lists, mappings and sections: an environment variable may hold YAML, as in `TYPES='[url, title]'`.
Saved configurations are never resolved (`bsmeta.config.saved`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import (
    InterpolationResolutionError,
    InterpolationValidationError,
    OmegaConfBaseException,
)

from bsmeta.config.composing.filling import find_misread_booleans
from bsmeta.config.composing.schema_types import describe_type, drop_none
from bsmeta.config.composing.structures import open_structure
from bsmeta.core.changed_values import expand_home
from bsmeta.core.errors import HYDRA, Problem, format_value, look_up
from bsmeta.core.keys import find_path_problems, read_type_hints
from bsmeta.core.parsing import parse_yaml

Config = TypeVar("Config")

_VARIABLE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_]\w*(?:\.\w+)*)(?=\s*[},])")


def finish_configuration(
    composed: DictConfig, schema: type[Config]
) -> tuple[Config, list[Problem]]:
    """Resolves a filled configuration, and converts it to an instance of the schema.

    Returns:
        The instance, and a problem for each value that cannot be resolved (and has the default of
        the schema), names an unknown user's home, or is not a path that programs can use.
    """
    problems = resolve_interpolations(composed)
    resolved = OmegaConf.to_object(composed)
    assert isinstance(resolved, schema)

    config, unknown_users = expand_home(resolved)
    for name, path in unknown_users:
        user = path.partition("/")[0]
        expected = f"a path; there is no user {user[1:]} on this machine"
        fix = f"{name}=./{path}, or correct it"
        problems.append(Problem(name, HYDRA, format_value(path), expected, fix))

    problems += find_path_problems(config)
    return config, problems


def resolve_interpolations(composed: DictConfig) -> list[Problem]:
    """Replaces every interpolation of a section by its value in the field's type, in place.

    Returns:
        A problem for each value that cannot be resolved, which has the default of the schema.
    """
    problems: list[Problem] = []
    written = OmegaConf.to_container(composed, resolve=False)
    # In reverse, because deleting an entry of a list moves the entries after it.
    for section, name, key in reversed(list(_find_interpolations(composed, ""))):
        schema: Any = OmegaConf.get_type(section)
        is_field = dataclasses.is_dataclass(schema)
        value_type = drop_none(read_type_hints(schema)[name]) if is_field else None
        try:
            _convert_value(section, name, value_type)
        except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
            entries: Any = OmegaConf.to_container(section, resolve=False)
            text = entries[name]
            variables = list(dict.fromkeys(_find_variables(text, written, ())))
            problems.append(_describe_unresolved(key, str(text), variables, value_type, error))
            with open_dict(section):
                if is_field:
                    section[name] = getattr(schema(), name)
                else:  # an entry of a list or mapping
                    del section[name]

    problems.reverse()
    return problems


def _find_interpolations(
    section: DictConfig | ListConfig, prefix: str
) -> Iterator[tuple[DictConfig | ListConfig, Any, str]]:
    """Yields the container of every interpolation, its name or index there, and its dotted key."""
    names = list(section) if isinstance(section, DictConfig) else range(len(section))
    for name in names:
        key = f"{prefix}{name}"
        if OmegaConf.is_interpolation(section, name):
            yield section, name, key
        elif not OmegaConf.is_missing(section, name) and OmegaConf.is_config(section[name]):
            yield from _find_interpolations(section[name], f"{key}.")


def _convert_value(section: DictConfig | ListConfig, name: Any, value_type: Any) -> None:
    """Resolves an interpolation; replaces it in place if it becomes a list, mapping or section.

    Raises:
        OmegaConfBaseException, yaml.YAMLError, TypeError: If it has no value, or one of another
            type.
    """
    value = section[name]
    is_section = dataclasses.is_dataclass(value_type)
    is_container = is_section or typing.get_origin(value_type) in (list, dict)
    if value is None or not is_container:
        return

    if isinstance(value, str):
        value = parse_yaml(value)
        if not isinstance(value, (list, dict)):
            raise TypeError(f"not {describe_type(value_type)}")
        misread_boolean = next(find_misread_booleans(value, value_type), None)
        if misread_boolean is not None:
            raise TypeError(misread_boolean.expected)
    elif OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)  # it may itself contain interpolations

    if is_section:
        value = OmegaConf.merge(open_structure(value_type), value)
    section[name] = value


def _describe_unresolved(
    key: str, text: str, variables: list[str], value_type: Any, error: Exception
) -> Problem:
    """Returns the problem of an interpolation without a value, or with a value of another type.

    Args:
        key: The dotted key of the interpolation.
        text: The interpolation as it was written.
        variables: The environment variables on which its value depends.
        value_type: The type of its field; None for an entry of a list or mapping.
        error: The error with which it could not be resolved.
    """
    message = str(error)
    is_entry = key.rpartition(".")[2].isdecimal()
    how_to_override = "write the value there" if is_entry else f"pass {key}=…"
    for name in variables:
        if f"Environment variable '{name}' not found" in message:
            return _describe_missing_variable(key, text, name, how_to_override)

    reason = re.sub(r"^While dereferencing interpolation '.*?': ", "", message.partition("\n")[0])
    if not variables and _means_missing_value(error):
        expected = f"a key, or a resolver (oc.env, repo, from_file) ({reason})"
        return Problem(
            key, HYDRA, format_value(text), expected, f"correct it, or {how_to_override}"
        )

    found = "; ".join([format_value(text), *map(_describe_variable, variables)])
    expected = "a value that fits"
    if value_type is not None:
        expected = f"a value of type {describe_type(value_type)}"
    fix = how_to_override
    if variables:
        fix = f"export {' or '.join(variables)} with another value, or {how_to_override}"
    return Problem(key, HYDRA, found, f"{expected} ({reason})", fix)


def _describe_missing_variable(key: str, text: str, name: str, how_to_override: str) -> Problem:
    """Returns the problem of an interpolation whose variable is not set.

    Args:
        name: The environment variable.
        how_to_override: An alternative fix.
    """
    return Problem(
        key,
        HYDRA,
        found=f"{text}, but the environment has no {name}",
        expected=f"the variable, or a default: ${{oc.env:{name},VALUE}}",
        fix=f"export {name}=…, or {how_to_override}",
    )


def _means_missing_value(error: Exception) -> bool:
    """Whether an interpolation has no value, rather than a value of another type."""
    if isinstance(error, InterpolationValidationError):
        return False
    return isinstance(error, InterpolationResolutionError)


def _describe_variable(name: str) -> str:
    """Returns an environment variable with its value, or the words that it is unset."""
    return f"{name}={os.environ[name]}" if name in os.environ else f"{name} is unset"


def _find_variables(value: Any, written: Any, visited: tuple[str, ...]) -> Iterator[str]:
    """Yields the environment variables on which a value depends, also through other keys.

    Args:
        value: The value as it was written.
        written: The whole configuration as it was written.
        visited: The keys through which the value was reached.
    """
    for text in find_texts(value):
        yield from _VARIABLE.findall(text)
        for name in _REFERENCE.findall(text):
            if name not in visited:
                yield from _find_variables(look_up(written, name), written, (*visited, name))


def find_texts(value: Any) -> Iterator[str]:
    """Yields every text in the values of nested dicts and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from find_texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from find_texts(entry)
