"""Writes and reads the configurations of runs, and changes keys of them.

A saved configuration has finished values: nothing in it is resolved (`bsmeta.config.saved`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.composing.filling import fill_section
from bsmeta.config.composing.interpolation import finish_configuration
from bsmeta.config.composing.misfits import Misfit
from bsmeta.config.composing.schema_types import format_schema_name
from bsmeta.config.composing.structures import open_structure
from bsmeta.config.saved import (
    change_texts,
    escape_interpolations,
    read_saved,
    shield_interpolations,
    unshield_interpolations,
)
from bsmeta.config.schema import DEFAULT_TASK, RunConfig
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import ConfigurationError, raise_problems
from bsmeta.core.keys import find_bound_problems, refuse_out_of_bounds
from bsmeta.core.secrets import redact_values

Config = TypeVar("Config")
Run = TypeVar("Run", bound=RunConfig)


def format_yaml(config: Any) -> str:
    """Formats a resolved configuration, without secrets, as YAML that `load_resolved` reads.

    Its defaults list names the schema, so that Hydra also accepts the file as a configuration:
    `train.py --config-dir FOLDER --config-name config` starts the same run again.
    """
    values = {"defaults": [format_schema_name(type(config)), "_self_"]}
    values |= change_texts(redact_values(dataclasses.asdict(config)), escape_interpolations)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def load_resolved(path: Path, schema: type[Config]) -> Config:
    """Reads a `config.yaml` that a run has written.

    Raises:
        ConfigurationError: If the file cannot be read, has a `${…}`, or does not fit the schema.
    """
    return convert_to_config(read_saved(path), schema, str(path))


def convert_to_config(values: Mapping[Any, Any], schema: type[Config], file: str) -> Config:
    """Converts finished values to an instance of a schema.

    Args:
        file: The source of the values, for messages.

    Raises:
        ConfigurationError: Listing the values that do not fit.
    """
    composed = open_structure(schema)
    misfits: list[Misfit] = unshield_interpolations(
        [*fill_section(composed, shield_interpolations(values))]
    )
    raise_problems([misfit.describe_problem(file, schema) for misfit in misfits])

    shielded_config, problems = finish_configuration(composed, schema)
    config: Config = unshield_interpolations(shielded_config)
    problems += find_bound_problems(config)
    raise_problems([dataclasses.replace(problem, file=file) for problem in problems])
    return config


def read_saved_task(path: Path) -> str:
    """Reads the name of a run's task from its `config.yaml`; `DEFAULT_TASK` if it names none.

    Raises:
        ConfigurationError: If the file cannot be read.
    """
    return _read_task_name(read_saved(path))


def _read_task_name(values: Mapping[Any, Any]) -> str:
    """Returns the name of the task in the values of a `config.yaml`."""
    return str(values.get("task", DEFAULT_TASK))


def read_saved_config(
    path: Path, tasks: Mapping[str, TaskEntry], overrides: Mapping[str, Any]
) -> RunConfig:
    """Reads the configuration of a training run, and changes some keys.

    Args:
        path: The `config.yaml` of the run.
        tasks: The tasks of which the run may be.
        overrides: The new values by key.

    Raises:
        ConfigurationError: If the file cannot be read or does not fit the schema, if the run is of
            another task, or if a key or value is invalid.
    """
    values = read_saved(path)
    task = _read_task_name(values)
    if task not in tasks:
        raise ConfigurationError(f"{path}: trained with task={task}; expected {' or '.join(tasks)}")
    return change_keys(convert_to_config(values, tasks[task].config, str(path)), overrides)


def change_keys(config: Run, overrides: Mapping[str, Any]) -> Run:
    """Returns a configuration with some keys changed; a `${…}` in the new values stays text.

    Raises:
        ConfigurationError: If a key is unknown, or a value does not fit or is out of bounds.
    """
    try:
        merged = OmegaConf.merge(
            open_structure(shield_interpolations(config)),
            OmegaConf.create(shield_interpolations(dict(overrides))),
        )
        changed_config = unshield_interpolations(OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"overrides={dict(overrides)}: {reason}; expected keys of the training configuration "
            "(python bsmeta/train.py --help lists them)"
        ) from error

    assert isinstance(changed_config, type(config))
    if overrides:
        refuse_out_of_bounds(changed_config, "overrides.")
    return changed_config
