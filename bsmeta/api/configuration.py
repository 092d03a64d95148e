"""Composes training configurations in Python: from a name, a file or an object, and overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bsmeta.config.compose import compose_command_line
from bsmeta.config.composition import EMPTY_COMPOSITION
from bsmeta.config.override_values import format_override_value
from bsmeta.config.saved_runs import change_keys
from bsmeta.config.schema import RunConfig
from bsmeta.config.schema_choice import choose_schema, list_offered_schemas
from bsmeta.config.task_entry import find_entry
from bsmeta.config.value_checks import find_value_problems
from bsmeta.core.errors import ConfigurationError, raise_problems, suggest_nearest
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import find_bound_problems
from bsmeta.tasks import BUILT_IN, TASKS

Configuration = str | Path | RunConfig

Overrides = Mapping[str, Any]
"""New values by key: dotted (`{"data_config.num_workers": 0}`) or nested.

Strings are literal: `${…}` in them is not resolved. Where a configuration is composed from files, a
group may be chosen as well: `{"+recipes": "meco"}`.
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
        ConfigurationError: Lists all problems.
    """
    entry, problems = find_entry(config, TASKS)
    raise_problems(
        [*problems, *find_value_problems(config), *entry.value_problems(config, EMPTY_COMPOSITION)]
    )


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
    """Returns overrides as nested mappings, without dots in keys.

    Raises:
        ConfigurationError: If a key is set twice.
    """
    nested: dict[str, Any] = {}
    for path, value in _flatten(overrides or {}):
        *sections, name = path
        section = nested
        for number, part in enumerate(sections, start=1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise _make_repetition_error(path[:number])
        if name in section:
            raise _make_repetition_error(path)
        section[name] = value
    return nested


def list_override_arguments(overrides: Overrides | None) -> list[str]:
    """Returns overrides as command-line arguments, `key=value` in Hydra's grammar.

    Raises:
        ConfigurationError: If a key is set twice, or a value cannot be written in this grammar.
    """
    leaves = _flatten(nest_overrides(overrides))
    return [f"{'.'.join(path)}={format_override_value(value)}" for path, value in leaves]


def _make_repetition_error(path: tuple[str, ...]) -> ConfigurationError:
    return ConfigurationError(f"overrides: {'.'.join(path)} is set twice; expected one value")


class _Leaf(NamedTuple):
    """A key that is not a section, and its value."""

    path: tuple[str, ...]
    value: Any


def _flatten(overrides: Overrides, sections: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    """Yields the leaves of nested overrides.

    A nonempty mapping is a section if all its keys are identifiers; otherwise it is a value.

    Args:
        sections: The path of the section that `overrides` are in.
    """
    for key, value in overrides.items():
        path = (*sections, *key.split("."))
        is_section = isinstance(value, Mapping) and value
        if is_section and all(isinstance(name, str) and name.isidentifier() for name in value):
            yield from _flatten(value, path)
        else:
            yield _Leaf(path, value)


def list_config_arguments(config: str | Path) -> list[str]:
    """Returns the command-line arguments that name a configuration.

    Raises:
        ConfigurationError: If there is no such configuration.
    """
    name, folder = _locate_config(config)
    arguments = ["--config-name", name]
    return arguments if folder is None else [*arguments, "--config-dir", str(folder)]


class _ConfigLocation(NamedTuple):
    """A configuration file."""

    name: str
    folder: Path | None  # None: the configurations of the package


def _compose_files(config: str | Path, overrides: Overrides | None) -> RunConfig:
    """Composes the configuration with a name, or at the path of a file."""
    location = _locate_config(config)
    arguments = list_config_arguments(config)
    built_in = [entry.schema for entry in BUILT_IN.values()]
    schemas: list[type[RunConfig] | str] = list_offered_schemas(
        arguments, built_in, "", TASKS.list_installed_schemas
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
