"""Composes training configurations in Python: from a name, a file or an object, and overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.composition import EMPTY_COMPOSITION
from bsmeta.config.composing.override_values import format_override_value
from bsmeta.config.composing.schema_choice import choose_schema, list_offered_schemas
from bsmeta.config.saved_runs import change_keys
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import find_entry
from bsmeta.core.errors import ConfigurationError, raise_problems, suggest_nearest
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import find_bound_problems
from bsmeta.tasks import BUILT_IN, TASKS

Configuration = str | Path | RunConfig

Overrides = Mapping[str, Any]
"""New values by key: dotted (`{"data_config.num_workers": 0}`) or nested.

Strings are literal: `${…}` in them is not resolved. If the configuration is composed from files,
overrides may also choose a group: `{"+recipes": "meco"}`.
"""


def compose_configuration(config: Configuration, overrides: Overrides | None = None) -> RunConfig:
    """Composes a training configuration of any task.

    Args:
        config: The name of a configuration (`bsmeta configs` lists them), the path of a YAML file,
            or a configuration object.
        overrides: Keys to change.

    Raises:
        UserError: If there is no such configuration, or a value is invalid.
    """
    check_overrides(overrides)
    if isinstance(config, RunConfig):
        run_config = change_keys(config, nest_overrides(overrides))
    else:
        run_config = _compose_files(config, overrides)
    raise_problems([*find_bound_problems(run_config)])
    return run_config


def check_configuration(config: RunConfig) -> None:
    """Refuses a configuration that training would refuse, except for problems of the launch.

    Raises:
        ConfigurationError: If it is invalid; lists all problems.
    """
    entry, problems = find_entry(config, TASKS)
    task_problems = entry.value_problems(config, EMPTY_COMPOSITION)
    raise_problems([*problems, *find_value_problems(config), *task_problems])


def check_overrides(overrides: Any) -> None:
    """Refuses overrides that are not a mapping.

    Raises:
        ConfigurationError: If they are neither None nor a mapping with strings as keys.
    """
    if overrides is None:
        return
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise ConfigurationError(
            f"overrides={overrides!r}: expected keys with their values, such as "
            '{"max_train_steps": 100} or {"data_config.num_workers": 0}'
        )


def nest_overrides(overrides: Overrides | None) -> dict[str, Any]:
    """Converts overrides to nested mappings, without dots in keys.

    Raises:
        ConfigurationError: If a key is set twice.
    """
    nested: dict[str, Any] = {}
    for path, value in _iterate_leaves(overrides or {}):
        *section_names, name = path
        section = nested
        for depth, section_name in enumerate(section_names, start=1):
            section = section.setdefault(section_name, {})
            if not isinstance(section, dict):
                raise _make_repetition_error(path[:depth])
        if name in section:
            raise _make_repetition_error(path)
        section[name] = value
    return nested


def list_override_arguments(overrides: Overrides | None) -> list[str]:
    """Converts overrides to command-line arguments, `key=value` in Hydra's grammar.

    Raises:
        ConfigurationError: If a key is set twice, or a value cannot be written in this grammar.
    """
    leaves = _iterate_leaves(nest_overrides(overrides))
    return [f"{'.'.join(path)}={format_override_value(value)}" for path, value in leaves]


def _make_repetition_error(path: tuple[str, ...]) -> ConfigurationError:
    return ConfigurationError(f"overrides: {'.'.join(path)} is set twice; expected one value")


class _Leaf(NamedTuple):
    """A key that is not a section, and its value."""

    path: tuple[str, ...]
    value: Any


def _iterate_leaves(overrides: Overrides, prefix: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    """Yields the leaves of nested overrides.

    Args:
        prefix: The path of the section that contains `overrides`.
    """
    for key, value in overrides.items():
        path = (*prefix, *key.split("."))
        if _is_section(value):
            yield from _iterate_leaves(value, path)
        else:
            yield _Leaf(path, value)


def _is_section(value: Any) -> bool:
    """Whether a value is a nonempty mapping with identifiers as keys."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and name.isidentifier() for name in value)


def list_config_arguments(config: str | Path) -> list[str]:
    """Returns the command-line arguments that name a configuration.

    Raises:
        ConfigurationError: If there is no such configuration.
    """
    name, folder = _locate_config(config)
    arguments = ["--config-name", name]
    return arguments if folder is None else [*arguments, "--config-dir", str(folder)]


class _ConfigLocation(NamedTuple):
    """The location of a configuration file.

    Attributes:
        name: The file name without its suffix.
        folder: The folder of the file; None: the configurations of the package.
    """

    name: str
    folder: Path | None


def _compose_files(config: str | Path, overrides: Overrides | None) -> RunConfig:
    """Composes a configuration from its files, given by name or path."""
    location = _locate_config(config)
    arguments = list_config_arguments(config)
    built_in_schemas = [entry.schema for entry in BUILT_IN.values()]
    schemas: list[type[RunConfig] | str] = list_offered_schemas(
        arguments, built_in_schemas, "", TASKS.list_installed_schemas
    )
    return compose_command_line(
        choose_schema(arguments, schemas, ""),
        location.name,
        list_override_arguments(overrides),
        location.folder,
    )


def _locate_config(config: str | Path) -> _ConfigLocation:
    """Finds a configuration of the package by its name, or the file at a path.

    Raises:
        ConfigurationError: If there is none.
    """
    if not isinstance(config, (str, Path)):
        raise ConfigurationError(
            f"config={config!r}: expected the name of a configuration, the path of a YAML file, or "
            "a configuration, such as bsmeta.open_run(folder).config"
        )

    path = Path(config).expanduser()
    if path.suffix == ".yaml" or len(path.parts) > 1:
        if path.is_dir():
            raise ConfigurationError(
                f"config={config}: a folder; bsmeta.open_run({str(path)!r}).config is the "
                "configuration of a run"
            )
        if not path.with_suffix(".yaml").is_file():
            raise ConfigurationError(f"config={config}: there is no such file (from {Path.cwd()})")
        return _ConfigLocation(path.stem, path.parent.resolve())

    packaged = sorted(file.stem for file in CONFIG_FOLDER.glob("*.yaml"))
    if path.stem not in packaged:
        raise ConfigurationError(
            f"config={config}: expected the path of a YAML file, or one of {', '.join(packaged)}"
            f"{suggest_nearest(path.stem, packaged)}"
        )
    return _ConfigLocation(path.stem, None)
