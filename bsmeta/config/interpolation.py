"""Replaces `${…}` in a configuration: files before it is composed, all else after.

`${from_file:PATH}` is the content of another file as (part of) a value:

    data_config:
      metadata_config:
        html_parser_config: ${from_file:parts/html_v2.yaml}

PATH is relative to the config folder that contains the file (`hydra_configs/`, or the one of
`--config-dir`), else to `hydra_configs/`; it may contain `${oc.env:NAME,default}`. YAML and JSON
files are parsed; any other file yields its text without the final newline. The content replaces
`${from_file:…}` before anything is composed: it may itself contain `${…}`, also `${from_file:…}`,
and each of its keys can be overridden as if it had been written there.

All other `${…}` are resolved by field type, and all errors reported at once. OmegaConf converts the
value of an interpolation to the type of its field only for numbers, strings and booleans. Here
lists, mappings and sections are converted, too: a variable may hold YAML, `TYPES='[url, title]'`.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import (
    InterpolationResolutionError,
    InterpolationValidationError,
    OmegaConfBaseException,
)

from bsmeta.config.describe import type_name
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, nearest, show
from bsmeta.core.files import CONFIG_FOLDER

_OPENS = "${from_file:"
_YAML = (".yaml", ".yml", ".json")

_VARIABLE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_]\w*(?:\.\w+)*)(?=\s*[},])")


def expand(
    values: Any,
    folder: Path,
    where: str,
    files: list[Path] | None = None,
    chain: tuple[Path, ...] = (),
) -> Any:
    """Replaces every `${from_file:…}` in nested dicts and lists by the content of its file.

    Args:
        values: The values as parsed from YAML.
        folder: The config folder that paths are relative to.
        where: The location of `values`, for error messages.
        files: Every file that is read is appended to this list.
        chain: The files that are being read, outermost first.

    Raises:
        ConfigurationError: If a file is missing, includes itself, or does not fit its place.
    """
    if isinstance(values, dict):
        return {k: expand(v, folder, f"{where}: {k}", files, chain) for k, v in values.items()}
    if isinstance(values, list):
        return [expand(value, folder, where, files, chain) for value in values]
    if not isinstance(values, str) or _OPENS not in values:
        return values
    parts = list(_parts(values, where))
    if len(parts) == 1:
        return _content(parts[0][1], folder, where, files, chain)

    def text(path: str) -> str:
        content = _content(path, folder, where, files, chain)
        if not isinstance(content, str):
            raise _within_text(where, path, content)
        return content

    return "".join(text(part) if is_path else part for is_path, part in parts)


def expand_overrides(overrides: Sequence[str], folder: Path) -> list[str]:
    """Like `expand`, for `key=value` of a command line; writes the content in Hydra's grammar."""

    def expanded(text: str) -> str:
        written = ""
        for is_path, part in _parts(text, "the command line"):
            content = _content(part, folder, text) if is_path else part
            if is_path and not isinstance(content, str) and not re.search(r"[=\[,:]\s*$", written):
                raise _within_text("the command line", part, content)
            written += _literal(content) if is_path else part
        return written

    return [expanded(override) for override in overrides]


def _within_text(where: str, path: str, content: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {_OPENS}{path}}} stands within a text, but the file holds "
        f"{type(content).__name__}; let it be the whole value, or name a text file"
    )


def _parts(text: str, where: str) -> Iterator[tuple[bool, str]]:
    """Splits a text into (False, literal text) and (True, the path of a `${from_file:path}`)."""
    at = 0
    while (start := text.find(_OPENS, at)) >= 0:
        if start > at:
            yield False, text[at:start]
        depth, end = 1, start + len(_OPENS)
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ConfigurationError(f"{where}: {text} is not closed; expected a }}")
        yield True, text[start + len(_OPENS) : end - 1]
        at = end
    if at < len(text):
        yield False, text[at:]


def _content(
    path: str,
    folder: Path,
    where: str,
    files: list[Path] | None = None,
    chain: tuple[Path, ...] = (),
) -> Any:
    file = _find(path, folder, where)
    if file in chain:
        cycle = " -> ".join(str(link) for link in (*chain[chain.index(file) :], file))
        raise ConfigurationError(f"{where}: circular from_file reference: {cycle}")
    text = file.read_text(encoding="utf-8")
    if file.suffix not in _YAML:
        values: Any = text.removesuffix("\n")
    else:
        try:
            values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
        except OSError as error:  # a single number or the like
            raise ConfigurationError(
                f"{where}: {file} holds neither keys and values nor a list: {error}"
            ) from error
    if files is not None and file not in files:
        files.append(file)
    return expand(values, folder, str(file), files, (*chain, file))


def _find(path: str, folder: Path, where: str) -> Path:
    try:
        name = str(OmegaConf.create({"path": path}).path)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{where}: {_OPENS}{path}}}: {reason}; the path is needed before anything is composed "
            "and may hold ${oc.env:NAME,default} only"
        ) from error
    folders = list(dict.fromkeys((folder, CONFIG_FOLDER)))
    for folder in folders:
        file = (folder / Path(name).expanduser()).resolve()
        if file.is_file():
            return file
    here = (folders[0] / name).parent
    known = sorted(entry.name for entry in here.iterdir()) if here.is_dir() else []
    raise ConfigurationError(
        f"{where}: {_OPENS}{path}}}: there is no such file"
        f"{nearest(Path(name).name, known)}; expected it in {' or '.join(map(str, folders))}"
    )


def _literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_literal(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)


def resolve(composed: DictConfig) -> list[Problem]:
    """Replaces every interpolation of a section by its value in the field's type, in place.

    Returns:
        The problems; a value that cannot be resolved is replaced by the schema's default.
    """
    problems = []
    written = OmegaConf.to_container(composed, resolve=False)
    for section, name, key in reversed(list(_interpolations(composed, ""))):
        text = OmegaConf.to_container(section, resolve=False)[name]  # type: ignore[index]
        try:
            _settle(section, name)
        except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
            variables = [*dict.fromkeys(_variables(text, written, ()))]
            kind = _field_type(section, name)
            problems.append(_problem(key, str(text), variables, kind, error))
            schema = OmegaConf.get_type(section)
            if dataclasses.is_dataclass(schema):
                section[name] = getattr(schema(), name)
            else:  # an entry of a list or mapping; those before it keep their index
                with open_dict(section):
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
    elif OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)  # it may itself contain some
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


def _variables(value: Any, written: Any, seen: tuple[str, ...]) -> Iterator[str]:
    """Yields the environment variables of a value as written, and of the keys it refers to."""
    for text in _texts(value):
        yield from _VARIABLE.findall(text)
        for name in _REFERENCE.findall(text):
            if name not in seen:
                yield from _variables(_at(written, name), written, (*seen, name))


def unread(written: dict[str, Any], name: str) -> list[str]:
    """The dotted keys below a key that nothing refers to; a whole branch by its name.

    Args:
        written: A configuration as composed, before `resolve`.
        name: A key of it. Where nothing refers to any part of it, the result is [].
    """
    references = {found for text in _texts(written) for found in _REFERENCE.findall(text)}
    inside = {found for found in references if f"{found}.".startswith(f"{name}.")}
    return [*_unread(written[name], name, inside)] if inside else []


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
    else:
        yield name


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)


def _at(values: Any, name: str) -> Any:
    """The value at a dotted key of nested dicts and lists; None if there is none."""
    for part in name.split("."):
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            values = values.get(part) if isinstance(values, dict) else None
    return values


def _problem(key: str, text: str, variables: list[str], kind: Any, error: Exception) -> Problem:
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
    values = [(name, os.environ.get(name)) for name in variables]
    named = [f"{name} is unset" if value is None else f"{name}={value}" for name, value in values]
    found = "; ".join([show(text), *named])
    is_resolved = isinstance(error, InterpolationValidationError)
    if isinstance(error, InterpolationResolutionError) and not is_resolved and not variables:
        expected = "a key, or a resolver (oc.env, repo, from_file)"
        fix = f"correct it, or {pass_it}"
    else:
        expected = f"a value of type {type_name(kind)}" if kind else "a value that fits"
        names = " or ".join(variables)
        fix = f"export {names} with another value, or {pass_it}" if variables else pass_it
    return Problem(key, HYDRA, found, f"{expected} ({reason})", fix)
