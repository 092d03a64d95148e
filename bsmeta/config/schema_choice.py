"""Chooses the schema of a configuration: the one that its defaults list names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml

from bsmeta.config.describe import CONFIG_FOLDER
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.hydra_ext import argument_parser

Config = TypeVar("Config")


def store_name(schema: type) -> str:
    """The name of a schema in defaults lists: `causal_lm_config` for `CausalLMConfig`."""
    border = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(border, "_", schema.__name__).lower()


def choose(
    arguments: Sequence[str], schemas: Sequence[type[Config]], config_name: str
) -> type[Config]:
    """The schema of a command line; the first if it cannot be determined, which is refused later.

    Args:
        arguments: The arguments after the program's name.
        schemas: The schemas that it may name.
        config_name: The configuration that is used without `--config-name`.
    """
    try:
        parsed, _ = argument_parser().parse_known_intermixed_args(list(arguments))
    except ConfigurationError:
        return schemas[0]
    folders = [parsed.config_dir, parsed.config_path or CONFIG_FOLDER]
    known = {store_name(schema): schema for schema in schemas}
    name = _first_of(
        str(parsed.config_name or config_name),
        [Path(folder).expanduser() for folder in folders if folder],
        set(known),
        set(),
    )
    return known.get(name, schemas[0])


def _first_of(name: str, folders: Sequence[Path], known: set[str], seen: set[str]) -> str:
    """The first schema that the defaults list of a file names, directly or through its files."""
    stem = name.removesuffix(".yaml").lstrip("/")
    if stem in known:
        return stem
    file = next((path for at in folders if (path := at / f"{stem}.yaml").is_file()), None)
    if file is None or stem in seen:
        return ""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return ""
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            found = _first_of(entry, folders, known, seen | {stem})
            if found:
                return found
    return ""
