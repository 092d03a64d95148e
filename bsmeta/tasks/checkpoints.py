"""Locates a trained model (in a checkpoint, a run, or on the Hub), and opens its task.

It also holds the steps of `evaluate.py` that all tasks on tables share: checking its keys, reading
the run's configuration, and choosing the folder of the report.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import xxhash
from huggingface_hub import hf_hub_download

from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.generating import GenerateConfig
from bsmeta.config.saved import read_saved
from bsmeta.config.saved_runs import read_saved_config, read_saved_task
from bsmeta.config.schema import DEFAULT_TASK, RunConfig
from bsmeta.config.steps import CHECKPOINT_NAME, explain_export, lacks_model
from bsmeta.config.task_entry import ModelUse
from bsmeta.config.unused_keys import refuse_unused_keys
from bsmeta.core.errors import ConfigurationError, DataError, format_value
from bsmeta.core.log_once import log_once
from bsmeta.core.secrets import redact
from bsmeta.tasks import TASKS
from bsmeta.training.checkpoint import list_checkpoints
from bsmeta.training.task import Task

HUB = "hf://"
RECIPE = "metadata.yaml"
"""File in an exported model with the part of the run's configuration that using it requires."""
RECIPE_KEYS = ("metadata_config", "row_budget", "row_metadata_budget")
"""The keys of `data_config` in that file on which rendering depends. No others are used."""

SOURCE = ".source"
"""File in the folder of a report on other data than the run's: the path of the data."""

Config = TypeVar("Config", bound=RunConfig)

logger = logging.getLogger(__name__)

INSTEAD = {
    "bootstrap_resamples": "bootstrap_resamples",
    "seed": "seed",
    "benchmarks": "validation_file",
    "benchmark_lines": "max_documents",
}
"""Keys of a training run that `evaluate.py` replaces with keys of its own."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a checkpoint.

    Attributes:
        name: The checkpoint as the user gave it.
        model: The argument of `from_pretrained`: a folder, or a Hub name.
        config: `config.yaml` of the run, or the model's own `metadata.yaml`, if there is one.
        run_folder: The run's folder (with its `metrics.jsonl`), if there is one.
        untrained: Whether this refers to the initial model of the run.
    """

    name: str
    model: str
    config: Path | None
    run_folder: Path | None
    untrained: bool = False

    @property
    def is_on_hub(self) -> bool:
        """Whether the model is a Hub repository rather than a folder."""
        return not Path(self.model).is_dir()

    @property
    def has_run_config(self) -> bool:
        """Whether `config` is the complete configuration of the run."""
        return self.config is not None and self.config.name != RECIPE


def locate_model(checkpoint: str) -> Location:
    """Locates the model in a run folder, a checkpoint folder, a model folder, or on the Hub.

    Raises:
        DataError: If there is no such folder, or no model in it.
    """
    if checkpoint.startswith(HUB):
        name = checkpoint.removeprefix(HUB)
        return Location(checkpoint, name, _find_recipe_on_hub(name), None)

    folder = Path(checkpoint)
    if folder.name == "model" and lacks_model(folder.parent):
        raise DataError(f"checkpoint={checkpoint}: {explain_export(folder.parent)}")
    if not folder.is_dir():
        raise DataError(
            f"checkpoint={checkpoint}: there is no such folder (from {Path.cwd()}). Expected a run "
            "folder, a checkpoint-{step}step folder, or a folder that from_pretrained loads; "
            f"a model of the Hub is named {HUB}owner/name"
        )

    model = _find_model(folder, checkpoint)
    ancestors = [folder.resolve(), *folder.resolve().parents[:2]]
    run_folder = next((path for path in ancestors if (path / "metrics.jsonl").is_file()), None)
    return Location(checkpoint, str(model), _find_config(model), run_folder)


def _find_model(folder: Path, checkpoint: str) -> Path:
    """Returns the folder of the model: the folder itself, or its newest exported model.

    Raises:
        DataError: If there is no model; the message says how to export one, if that is possible.
    """
    saved = [saved_checkpoint.folder for saved_checkpoint in list_checkpoints(folder)]
    models = (folder, folder / "model", *(path / "model" for path in reversed(saved)))
    for path in models:
        if (path / "config.json").is_file():
            return path

    not_exported = [path for path in (folder, *saved) if lacks_model(path)]
    if not_exported:
        raise DataError(f"checkpoint={checkpoint}: {explain_export(not_exported[-1])}")
    raise DataError(
        f"checkpoint={checkpoint}: no model in it. Expected config.json, model/config.json or "
        "a checkpoint-{step}step folder (a run has its first at save_steps)"
    )


def _find_config(model: Path) -> Path | None:
    """Returns the configuration of the model's run, or the model's own recipe."""
    folders = [model]
    resolved = model.resolve()
    if resolved.name == "model":  # of a run; a configuration near any other model is not its own
        folders.append(resolved.parent)
        if CHECKPOINT_NAME.fullmatch(resolved.parent.name):
            folders.append(resolved.parent.parent)
    files = (*(folder / "config.yaml" for folder in folders), model / RECIPE)
    return next((path for path in files if path.is_file()), None)


def locate_initial_model(location: Location) -> Location:
    """Returns the location of the initial model of the run that wrote a checkpoint."""
    return replace(location, name=f"untrained ({location.name})", untrained=True)


def _find_recipe_on_hub(name: str) -> Path | None:
    """Returns the `metadata.yaml` of a repository; None if it has none or cannot be accessed.

    Problems with the repository itself are reported when its model is loaded.
    """
    try:
        return Path(hf_hub_download(name, RECIPE))
    except (OSError, ValueError):
        return None


def read_recipe(file: Path) -> dict[str, Any]:
    """Reads the `metadata.yaml` of a model: the keys on which rendering depends, and no others.

    Raises:
        ConfigurationError: If it cannot be read, or has something to resolve.
    """
    values = read_saved(file)
    data = values.get("data_config", {})
    if not isinstance(data, dict):
        return {"data_config": data}  # which is refused with its type

    ignored = [f"data_config.{name}" for name in data if name not in RECIPE_KEYS]
    ignored += [str(name) for name in values if name != "data_config"]
    if ignored:
        logger.warning(
            "%s: %s ignored, because a model says only how its metadata is rendered",
            file,
            format_value(", ".join(ignored)),
        )
    return {"data_config": {name: data[name] for name in RECIPE_KEYS if name in data}}


def read_task(location: Location, training_config: str | None = None) -> str:
    """Returns the task that a checkpoint was trained on.

    It is causal_lm if no run's configuration is beside it: any model of the Hub may be evaluated.

    Args:
        training_config: The `config.yaml` of its run; None: the one beside it, if there is one.
    """
    if training_config is not None:
        return read_saved_task(Path(training_config))
    if location.config is None or not location.has_run_config:
        return DEFAULT_TASK
    return read_saved_task(location.config)


def list_tasks(use: ModelUse) -> list[str]:
    """Lists the tasks whose models have a use."""
    return [name for name, entry in TASKS.items() if use in entry.uses]


def open_task(checkpoint: str, overrides: Mapping[str, Any]) -> tuple[Task, Path]:
    """Returns the task of a checkpoint, and the folder of its exported model.

    Args:
        checkpoint: A run folder, a checkpoint folder, or the model's folder in one of them.
        overrides: Keys of its configuration to change.

    Raises:
        DataError: If there is no model.
        ConfigurationError: If there is no configuration, or it does not fit.
    """
    location = locate_model(checkpoint)
    if location.config is None or not location.has_run_config:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: there is no config.yaml beside the model, which says what "
            "it was trained for; expected a run folder, or a checkpoint folder in one"
        )
    config = _drop_permissions(read_saved_config(location.config, TASKS, overrides), overrides)
    config = begin_with(config, location)
    return TASKS[config.task].make(config), Path(location.model)


def _drop_permissions(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """Returns a run's configuration without its permissions to write on this machine.

    The configuration may be someone else's. Data that is encoded with other settings is not
    replaced, and the database of a table is built beside the table, not under any name.
    `overrides` may permit both.
    """
    data = getattr(config, "data_config", None)
    overridden = overrides.get("data_config") or {}
    changes: dict[str, Any] = {}
    if getattr(data, "overwrite_prep", False) and "overwrite_prep" not in overridden:
        changes["overwrite_prep"] = False

    database = getattr(data, "database", None)
    if database is not None and "database" not in overridden and not os.path.exists(database):
        message = (
            f"data_config.database={database!r} does not exist: the database is built beside the "
            "table; +overrides.data_config.database=FILE names another place"
        )
        log_once(logger, logging.WARNING, message)
        changes["database"] = None

    if not changes:
        return config
    return replace(config, **{"data_config": replace(cast(Any, data), **changes)})


def begin_with(config: Config, location: Location) -> Config:
    """Returns a run's configuration with the checkpoint's model as its initial model.

    The initial model of the run may not be on this machine.
    """
    values = {
        "model_name": location.model,
        "model_config_file": None,
        "tokenizer_name": location.model,
    }
    accepted: dict[str, Any] = {
        name: value for name, value in values.items() if hasattr(config, name)
    }
    return replace(config, **accepted)


def check_keys(config: EvaluateConfig, task: str, own_key: str) -> None:
    """Checks the keys of `evaluate.py` for a task on a table.

    Args:
        task: The task, as messages name it.
        own_key: The key that applies to this task only, beside the keys of all tasks.

    Raises:
        ConfigurationError: If a key has no meaning for the task, or an override no effect.
    """
    for key in config.overrides.keys() & INSTEAD.keys():
        raise ConfigurationError(
            f"overrides.{key} would have no effect; expected {INSTEAD[key]}={config.overrides[key]}"
        )

    used_keys = (
        "checkpoint",
        "training_config",
        "overrides",
        "out_dir",
        "validation_file",
        own_key,
        "bootstrap_resamples",
        "seed",
    )
    refuse_unused_keys(config, used_keys, f"a checkpoint of {task}")


def read_training_config(
    config: EvaluateConfig, location: Location, *schemas: type[Config]
) -> Config:
    """Returns a checkpoint's training configuration, with the resampling of the evaluation.

    Raises:
        ConfigurationError: If it does not fit any of the schemas.
    """
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task is known from it
    entries = {}
    for schema in schemas:
        task = schema().task
        entries[task] = TASKS[task]

    train = _drop_permissions(read_saved_config(file, entries, config.overrides), config.overrides)
    assert isinstance(train, schemas)
    changes: dict[str, Any] = {
        "bootstrap_resamples": config.bootstrap_resamples,
        "seed": config.seed,
    }
    return replace(train, **changes)


def announce_data(
    config: EvaluateConfig | GenerateConfig, location: Location, key: str, path: str | None
) -> None:
    """Logs the data that an evaluation reads, and the configuration that names it.

    By default that is the configuration of the model's run, which may be someone else's, and may
    name any file of this machine or of a server.

    Args:
        key: The key of that configuration.
        path: A file, a folder, or an address; None: there is none.
    """
    if path is None:
        return
    source = f"as {config.training_config or location.config} says"
    if config.validation_file is not None:
        key = "validation_file"
        source = "as this call says"
    logger.info("reading %s=%r, %s", key, redact(path), source)


def report_folder(config: EvaluateConfig, location: Location, *, has_other_data: bool) -> Path:
    """Returns `out_dir`; by default a folder in the run folder, or next to the model.

    The report of the training run itself is in `evaluation/`. The folder of another checkpoint of
    the run, or of `validation_file`, has its name appended. Where a report on another file of the
    same name is, the name of the file's folder is appended, too, or else a hash of its path. Such a
    folder is created, to reserve it for the file; only rank 0 calls this.

    Args:
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
    source = redact(str(data.absolute()) if data.exists() else config.validation_file)
    parts.append(data.name if data.is_dir() else data.name.partition(".")[0])
    digest = xxhash.xxh3_64_hexdigest(source.encode())[:8]
    endings: list[list[str]] = [[], [data.absolute().parent.name], [digest]]
    names = ["-".join([*parts, *ending]) for ending in endings]

    for name in names:
        if _reserve_folder(folder / name, source):
            return folder / name
    return folder / names[-1]


def _reserve_folder(folder: Path, source: str) -> bool:
    """Creates a folder for the reports on some data; returns False if it belongs to other data."""
    record = folder / SOURCE
    if folder.exists():
        return record.is_file() and record.read_text() == source
    folder.mkdir(parents=True)
    record.write_text(source)
    return True
