"""Chooses the schema of a command line, which the defaults lists of its configuration name."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bsmeta.config.composing.hydra_options import make_option_parser
from bsmeta.config.composing.schema_types import format_schema_name
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.parsing import parse_yaml

Config = TypeVar("Config")


def choose_schema(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config]:
    """Returns the schema that a command line's configuration names in its defaults lists.

    If they name several, it is the first one met.

    Args:
        arguments: The arguments of the command line.
        schemas: The possible schemas; one given as `module:attribute` is imported if it is chosen.
            The first is returned if the configuration names none, which is refused later.
        config_name: The main configuration if the command line names none.
    """
    chosen = find_schema(arguments, schemas, config_name) or schemas[0]
    schema: type[Config] = pkgutil.resolve_name(chosen) if isinstance(chosen, str) else chosen
    return schema


def find_schema(
    arguments: Sequence[str], schemas: Sequence[type[Config] | str], config_name: str
) -> type[Config] | str | None:
    """Returns the schema that `choose_schema` chooses; None if the configuration names none."""
    schemas_by_name = {format_schema_name(schema): schema for schema in schemas}
    for name in _list_named_configurations(arguments, config_name):
        if name in schemas_by_name:
            return schemas_by_name[name]
    return None


def list_offered_schemas(
    arguments: Sequence[str],
    schemas: Sequence[type[Config] | str],
    config_name: str,
    list_more: Callable[[], Sequence[str]],
) -> list[type[Config] | str]:
    """Lists the schemas that a command line may name, for `choose_schema`.

    Args:
        schemas: The schemas of this package.
        list_more: Lists the schemas of other distributions. It imports their modules, so it is
            called only if the configuration names none of `schemas`.
    """
    if find_schema(arguments, schemas, config_name) is not None:
        return list(schemas)
    return [*schemas, *list_more()]


def _list_named_configurations(arguments: Sequence[str], config_name: str) -> Iterator[str]:
    """Yields the names of the main configuration, and of all that its defaults lists lead to."""
    try:
        options, _ = make_option_parser().parse_known_intermixed_args(list(arguments))
    except ConfigurationError:
        return

    folders = [options.config_dir, options.config_path or CONFIG_FOLDER]
    pending = [str(options.config_name or config_name)]
    read_names: set[str] = set()
    while pending:
        name = pending.pop(0).removesuffix(".yaml").lstrip("/")
        yield name
        file = _find_file(name, [Path(folder).expanduser() for folder in folders if folder])
        if file is not None and name not in read_names:
            read_names.add(name)
            pending[:0] = _list_names_in_defaults(file)


def _find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Returns the file of a configuration in the first folder that has it; None if none has."""
    for folder in folders:
        file = folder / f"{name}.yaml"
        if file.is_file():
            return file
    return None


def is_for_program(
    file: Path, folders: Sequence[Path], schema_names: Collection[str], parents: Sequence[Path] = ()
) -> bool:
    """Whether a configuration fits a program: it names schemas of the program only, or none.

    All other names in its defaults list must name files, which are checked in the same way; a name
    without a file is a schema of another program.

    Args:
        folders: The config folders, in which defaults lists name files.
        schema_names: The schemas of the program, as defaults lists name them.
        parents: The files whose defaults lists lead to this one.
    """
    if file in parents:  # the defaults lists name each other
        return False

    for name in _list_names_in_defaults(file):
        if name == "_self_" or name in schema_names:
            continue
        included = _find_file(name, folders)
        if included is None:
            return False
        if not is_for_program(included, folders, schema_names, [*parents, file]):
            return False
    return True


def _list_names_in_defaults(file: Path) -> list[str]:
    """Lists the entries of a file's defaults list, without the choices of groups."""
    return [entry for entry in _read_defaults(file) if isinstance(entry, str)]


def _read_defaults(file: Path) -> list[Any]:
    """Reads the defaults list of a file; returns [] if it has none, or cannot be read."""
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    entries = content.get("defaults") if isinstance(content, dict) else None
    return entries if isinstance(entries, list) else []
