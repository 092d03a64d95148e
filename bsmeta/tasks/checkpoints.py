"""Opens the task that a checkpoint was trained on, from its saved configuration.

And what `evaluate.py` does for each of the tasks on tables: its keys, the run, the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from bsmeta.config.schema import RunConfig
from bsmeta.config.tools import EvaluateConfig, refuse_unused, saved_config, saved_task
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import TASKS
from bsmeta.training.locations import Location, locate
from bsmeta.training.task import Task

SOURCE = ".source"
"""In the folder of a report on other data than those of the run: the path of these data."""

Config = TypeVar("Config", bound=RunConfig)

INSTEAD = {
    "bootstrap_resamples": "bootstrap_resamples",
    "seed": "seed",
    "benchmarks": "validation_file",
    "benchmark_lines": "max_documents",
}
"""Keys of a training run in whose place `evaluate.py` has one of its own."""


def task_of(location: Location, training_config: str | None = None) -> str:
    """The task that a checkpoint was trained on.

    It is causal_lm if no run's configuration is beside it: any model of the Hub may be evaluated.

    Args:
        location: The checkpoint.
        training_config: The `config.yaml` of its run; None: the one beside it, if there is one.
    """
    if training_config is not None:
        return saved_task(Path(training_config))
    if location.config is None or not location.has_run_config:
        return "causal_lm"
    return saved_task(location.config)


def open_task(checkpoint: str, overrides: Mapping[str, Any]) -> tuple[Task, Path]:
    """The task of a checkpoint, and the folder of its exported model.

    Args:
        checkpoint: A run folder, a checkpoint folder, or the model's folder in one of them.
        overrides: Keys of its configuration to change.

    Raises:
        DataError: If there is no model.
        ConfigurationError: If there is no configuration, or it does not fit.
    """
    location = locate(checkpoint)
    if location.config is None or not location.has_run_config:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: there is no config.yaml beside the model, which says what "
            "it was trained for; expected a run folder, or a checkpoint folder in one"
        )
    schemas = {name: entry.config for name, entry in TASKS.items()}
    config = saved_config(location.config, schemas, overrides)
    begin_with(config, location)
    return TASKS[config.task].make(config), Path(location.model)


def begin_with(config: RunConfig, location: Location) -> None:
    """Names the checkpoint's model in a run's configuration.

    What the run itself began with may not be on this machine.
    """
    own = {"model_name": location.model, "model_config_file": None}
    for name, value in {**own, "tokenizer_name": location.model}.items():
        if hasattr(config, name):
            setattr(config, name, value)


def check_keys(config: EvaluateConfig, task: str, own_key: str) -> None:
    """Checks the keys of `evaluate.py` for a task on a table.

    Args:
        config: The configuration of `evaluate.py`.
        task: The task, as messages name it.
        own_key: The key that has a meaning for it beside those of all tasks.

    Raises:
        ConfigurationError: If a key has no meaning for the task, or an override no effect.
    """
    for key in config.overrides.keys() & INSTEAD.keys():
        raise ConfigurationError(
            f"overrides.{key} would have no effect; expected {INSTEAD[key]}={config.overrides[key]}"
        )
    used = (
        "checkpoint", "training_config", "overrides", "out_dir", "validation_file", own_key,
        "bootstrap_resamples", "seed",
    )  # fmt: skip
    refuse_unused(config, used, f"a checkpoint of {task}")


def training_run(config: EvaluateConfig, location: Location, *schemas: type[Config]) -> Config:
    """The configuration that a checkpoint was trained with, and the resamples that are asked for.

    Raises:
        ConfigurationError: If it does not fit any of the schemas.
    """
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task is known from it
    found = saved_config(file, {schema().task: schema for schema in schemas}, config.overrides)
    assert isinstance(found, schemas)
    changes: dict[str, Any] = {
        "bootstrap_resamples": config.bootstrap_resamples, "seed": config.seed
    }  # fmt: skip
    return replace(found, **changes)


def report_folder(config: EvaluateConfig, location: Location, *, has_other_data: bool) -> Path:
    """`out_dir`; by default in the run folder, or next to the model.

    The files of the training run's own report are in `evaluation/`; those of another checkpoint of
    the run, or of `validation_file`, have its name in that of their folder. Where that would be the
    folder of another file of the same name, the name of the file's own folder is added. Only rank 0
    calls it.

    Args:
        config: The configuration of `evaluate.py`.
        location: The checkpoint.
        has_other_data: Whether `validation_file` is not the data of the run.
    """
    if config.out_dir is not None:
        return Path(config.out_dir)
    parts = ["evaluation"]
    folder = Path() if location.is_on_hub else Path(location.name)
    if location.run_folder is not None and folder.resolve() != location.run_folder:
        parts.append(folder.resolve().name)
        folder = location.run_folder
    if not has_other_data:
        return folder / "-".join(parts)
    assert config.validation_file is not None
    data = Path(config.validation_file)
    source = str(data.absolute()) if data.exists() else config.validation_file
    parts.append(data.name if data.is_dir() else data.name.partition(".")[0])
    digest = xxhash.xxh3_64_hexdigest(source.encode())[:8]
    names = ["-".join([*parts, *more]) for more in ([], [data.absolute().parent.name], [digest])]
    return next(
        (folder / name for name in names if _is_free(folder / name, source)), folder / names[-1]
    )


def _is_free(folder: Path, source: str) -> bool:
    """Whether a folder may have the reports on these data; if it is new, it gets them."""
    record = folder / SOURCE
    if folder.exists():
        return record.is_file() and record.read_text() == source
    folder.mkdir(parents=True)
    record.write_text(source)
    return True
