"""Chooses the schema of a command line from the defaults lists of its configuration."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bsmeta.config.hydra_options import make_option_parser
from bsmeta.config.schema_types import format_schema_name
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.parsing import parse_yaml

Config = TypeVar("Config")


def choose_schema(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config]:
    """Returns the schema that the defaults lists of the command line's configuration name first.

    Args:
        schemas: The possible schemas; one as `module:attribute` is imported if it is chosen. The
            first is chosen if the configuration names none, which is refused later.
    """
    chosen = find_schema(arguments, schemas, config_name) or schemas[0]
    schema: type[Config] = pkgutil.resolve_name(chosen) if isinstance(chosen, str) else chosen
    return schema


def find_schema(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config] | str | None:
    """Returns the schema that `choose_schema` chooses; None if the configuration names none."""
    schemas_by_name = {format_schema_name(schema): schema for schema in schemas}
    for name in _read_configurations(arguments, config_name):
        if name in schemas_by_name:
            return schemas_by_name[name]
    return None


def list_offered_schemas(
    arguments: Sequence[str],
    schemas: Sequence[type[Config] | str],
    config_name: str,
    list_more: Callable[[], Sequence[str]],
) -> list[type[Config] | str]:
    """Lists the schemas among which `choose_schema` chooses.

    Args:
        list_more: Lists the schemas of other distributions, whose modules it imports; called only
            if the configuration names none of `schemas`.
    """
    if find_schema(arguments, schemas, config_name) is not None:
        return [*schemas]
    return [*schemas, *list_more()]


def _read_configurations(arguments: Sequence[str], config_name: str) -> Iterator[str]:
    """Yields the main configuration, and those that its defaults list names, directly or not."""
    try:
        options, _ = make_option_parser().parse_known_intermixed_args(list(arguments))
    except ConfigurationError:
        return

    folders = [options.config_dir, options.config_path or CONFIG_FOLDER]
    pending = [str(options.config_name or config_name)]
    read_names = set()
    while pending:
        name = pending.pop(0).removesuffix(".yaml").lstrip("/")
        yield name
        files = [Path(folder).expanduser() / f"{name}.yaml" for folder in folders if folder]
        file = next(filter(Path.is_file, files), None)
        if file is not None and name not in read_names:
            read_names.add(name)
            pending[:0] = _list_names_in_defaults(file)


def is_for_program(
    file: Path, folders: Sequence[Path], schemas: Collection[str], parents: Sequence[Path] = ()
) -> bool:
    """Whether a configuration may belong to a program: it has one of its schemas, or none.

    Every other entry of its defaults list must be an existing file, which is checked in the same
    way; other entries are schemas of other programs.

    Args:
        parents: The files whose defaults lists lead to this one.
    """
    if file in parents:  # the lists name each other
        return False
    for name in _list_names_in_defaults(file):
        if name in ("_self_", *schemas):
            continue
        files = [folder / f"{name}.yaml" for folder in folders]
        included = next(filter(Path.is_file, files), None)
        if included is None or not is_for_program(included, folders, schemas, [*parents, file]):
            return False
    return True


def _list_names_in_defaults(file: Path) -> list[str]:
    """Lists the entries of a file's defaults list that are names rather than choices of groups."""
    return [entry for entry in _read_defaults(file) if isinstance(entry, str)]


def _read_defaults(file: Path) -> list[Any]:
    """Reads the defaults list of a file; [] if it has none, or cannot be read."""
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    entries = content.get("defaults") if isinstance(content, dict) else None
    return entries if isinstance(entries, list) else []
