"""Resolves `${…}` in a composed configuration by field type, and reports all errors at once.

OmegaConf converts the value of an interpolation to the type of its field only for numbers, strings
and booleans. Here lists, mappings and sections are converted, too: a variable may hold YAML,
`TYPES='[url, title]'`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from bsmeta.config.checks.problems import HYDRA, Problem, show
from bsmeta.config.describe import type_name

_VARIABLE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)")


def resolve(composed: DictConfig) -> list[Problem]:
    """Replaces every interpolation of a section by its value in the field's type, in place.

    Returns:
        The problems; a value that cannot be resolved is replaced by the schema's default.
    """
    problems = []
    for section, name, key in reversed(list(_interpolations(composed, ""))):
        text = OmegaConf.to_container(section, resolve=False)[name]  # type: ignore[index]
        try:
            _settle(section, name)
        except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
            problems.append(_problem(key, str(text), _field_type(section, name), error))
            schema = OmegaConf.get_type(section)
            if dataclasses.is_dataclass(schema):
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


def _settle(section: DictConfig | ListConfig, name: Any) -> None:
    value = section[name]
    kind = _field_type(section, name)
    if value is None or not _holds_values(kind):
        return
    if isinstance(value, str):
        value = yaml.safe_load(value)
        if not isinstance(value, (list, dict)):
            raise TypeError(f"not {type_name(kind)}")
    if dataclasses.is_dataclass(kind):
        value = OmegaConf.merge(OmegaConf.structured(kind), value)
    section[name] = value


def _field_type(section: DictConfig | ListConfig, name: Any) -> Any:
    """The declared type of a field, without `| None`; None in a free mapping or list."""
    schema = OmegaConf.get_type(section)
    if schema is None or not dataclasses.is_dataclass(schema):
        return None
    kind = typing.get_type_hints(schema)[name]
    options = [argument for argument in typing.get_args(kind) if argument is not type(None)]
    is_optional = type(None) in typing.get_args(kind)
    return options[0] if is_optional and len(options) == 1 else kind


def _holds_values(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, dict) or dataclasses.is_dataclass(kind)


def _problem(key: str, text: str, kind: Any, error: Exception) -> Problem:
    variables = _VARIABLE.findall(text)
    pass_it = f"pass {key}=…" if not key.rpartition(".")[2].isdecimal() else "write the value there"
    unset = [name for name in variables if f"Environment variable '{name}' not found" in str(error)]
    if unset:
        return Problem(
            key=key,
            file=HYDRA,
            found=f"{text}, but the environment has no {unset[0]}",
            expected=f"the variable, or a default: ${{oc.env:{unset[0]},VALUE}}",
            fix=f"export {unset[0]}=…, or {pass_it}",
        )
    reason = re.sub(r"^While dereferencing interpolation '.*?': ", "", str(error).splitlines()[0])
    found = "; ".join([show(text), *(f"{name}={os.environ.get(name)}" for name in variables)])
    if isinstance(error, InterpolationResolutionError) and not variables:
        expected, fix = (
            "a key, or a resolver (oc.env, repo, from_file)",
            f"correct it, or {pass_it}",
        )
    else:
        expected = f"a value of type {type_name(kind)}" if kind else "a value that fits"
        fix = f"export {variables[0]} with another value, or {pass_it}" if variables else pass_it
    return Problem(key, HYDRA, found, f"{expected} ({reason})", fix)
