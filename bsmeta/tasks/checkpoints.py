"""Locates a trained model (in a checkpoint, a run, or on the Hub), and opens its task.

It also has the steps of `evaluate.py` that all tasks on tables share: checking keys, reading the
configuration of the run, and choosing the folder of the report.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import xxhash
from huggingface_hub import hf_hub_download

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.run_location import is_in_bucket
from bsmeta.config.saved import read_saved
from bsmeta.config.saved_runs import read_saved_config, read_saved_task
from bsmeta.config.schema import DEFAULT_TASK, RunConfig
from bsmeta.config.steps import CHECKPOINT_NAME, explain_export, lacks_model
from bsmeta.config.task_entry import ModelUse
from bsmeta.config.unused_keys import refuse_unused_keys
from bsmeta.core.errors import ConfigurationError, DataError, format_value
from bsmeta.core.files import is_inside, refuse_unwritable_folder
from bsmeta.core.log_once import log_once
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact
from bsmeta.tasks import TASKS
from bsmeta.training.checkpoints.checkpoint import DATA_STATE_FILE, list_checkpoints
from bsmeta.training.run_folder.local_copy import RunCopy
from bsmeta.training.task import Task

HUB_PREFIX = "hf://"
RECIPE = "metadata.yaml"
"""File of an exported model with the keys of the run's configuration that its use requires."""
RECIPE_KEYS = ("metadata_config", "row_budget", "row_metadata_budget")
"""The keys of `data_config` in `RECIPE` on which rendering depends; all others are ignored."""

_REPORT_FOLDER = "evaluation"  # the first part of its name

SOURCE_FILE = ".source"
"""File in a report folder with the path of the evaluated data, if it is not the run's own data."""

Config = TypeVar("Config", bound=RunConfig)

logger = logging.getLogger(__name__)

REPLACED_KEYS = {
    "bootstrap_resamples": "bootstrap_resamples",
    "seed": "seed",
    "benchmarks": "validation_file",
    "benchmark_lines": "max_documents",
}
"""Training keys without effect in `evaluate.py`, each with the key of `evaluate.py` to use."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a trained model.

    Attributes:
        name: The checkpoint as given by the user.
        model: The argument of `from_pretrained`: a folder, or a Hub name.
        config: `config.yaml` of the run, or else the model's `metadata.yaml`, or None.
        run_folder: The run's folder (with its `metrics.jsonl`), if there is one.
        untrained: Whether this is the initial model of the run, not the trained one.
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

    The model of a run in a bucket is copied to this machine; see
    `bsmeta.training.run_folder.local_copy`.

    Raises:
        DataError: If there is no such folder, or no model in it.
    """
    if checkpoint.startswith(HUB_PREFIX):
        name = checkpoint.removeprefix(HUB_PREFIX)
        return Location(checkpoint, name, _find_recipe_on_hub(name), None)

    folder = RunCopy(checkpoint).copy_model() if is_in_bucket(checkpoint) else Path(checkpoint)
    if folder.name == "model" and lacks_model(folder.parent):
        raise DataError(f"checkpoint={checkpoint}: {explain_export(folder.parent)}")
    if not folder.is_dir():
        raise DataError(
            f"checkpoint={checkpoint}: there is no such folder (from {Path.cwd()}). Expected a run "
            "folder, a checkpoint-{step}step folder, or a folder that from_pretrained loads; "
            f"a model of the Hub is named {HUB_PREFIX}owner/name"
        )

    model = _find_model(folder, checkpoint)
    ancestors = [folder.resolve(), *folder.resolve().parents[:2]]
    run_folder = next((path for path in ancestors if (path / "metrics.jsonl").is_file()), None)
    return Location(checkpoint, str(model), _find_config(model), run_folder)


def _find_model(folder: Path, checkpoint: str) -> Path:
    """Returns the folder of the model: the folder itself, its `model/`, or the newest exported one.

    Args:
        checkpoint: The checkpoint as given by the user, for messages.

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
    """Returns the path of the run's `config.yaml`, or else of the model's recipe, if any."""
    folders = [model]
    resolved = model.resolve()
    if resolved.name == "model":  # otherwise a config.yaml above it belongs to something else
        folders.append(resolved.parent)
        if CHECKPOINT_NAME.fullmatch(resolved.parent.name):
            folders.append(resolved.parent.parent)
    files = (*(folder / "config.yaml" for folder in folders), model / RECIPE)
    return next((path for path in files if path.is_file()), None)


def locate_initial_model(location: Location) -> Location:
    """Returns the location of the initial model of the run that wrote a checkpoint."""
    return replace(location, name=f"untrained ({location.name})", untrained=True)


def _find_recipe_on_hub(name: str) -> Path | None:
    """Downloads the recipe of a repository; returns None if it has none or cannot be accessed.

    Problems with the repository itself are reported when its model is loaded.
    """
    try:
        return Path(hf_hub_download(name, RECIPE))
    except (OSError, ValueError):
        return None


def iterate_saved_fingerprints(location: Location) -> Iterator[dict[str, Any]]:
    """Yields the fingerprints of the data in checkpoints; those that cannot be read are left out.

    The checkpoint of the model comes first, then those of its run, from the newest.
    """
    folders = [Path(location.model).parent, Path(location.name)]
    if location.run_folder is not None:
        newest_first = reversed(list_checkpoints(location.run_folder))
        folders += [checkpoint.folder for checkpoint in newest_first]
    for folder in folders:
        try:
            state = parse_json((folder / DATA_STATE_FILE).read_text(encoding="utf-8"))
            fingerprint = state["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(fingerprint, dict):
            yield fingerprint


def read_recipe(file: Path) -> dict[str, Any]:
    """Reads the recipe of a model, and ignores keys other than `RECIPE_KEYS`, with a warning.

    Raises:
        ConfigurationError: If it cannot be read, or has interpolations (`${…}`).
    """
    values = read_saved(file)
    data = values.get("data_config", {})
    if not isinstance(data, dict):
        return {"data_config": data}  # the caller refuses it by its type

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

    Without the configuration of a run it is causal_lm, because any model of the Hub may be
    evaluated.

    Args:
        training_config: The `config.yaml` of its run; None: the one in `location`.
    """
    if training_config is not None:
        return read_saved_task(Path(training_config))
    if location.config is None or not location.has_run_config:
        return DEFAULT_TASK
    return read_saved_task(location.config)


def list_tasks(use: ModelUse) -> list[str]:
    """Lists the tasks whose models can be used for a purpose."""
    return [name for name, entry in TASKS.items() if use in entry.uses]


def open_task(checkpoint: str, overrides: Mapping[str, Any]) -> tuple[Task, Path]:
    """Makes the task of a checkpoint; returns it with the folder of the exported model.

    Args:
        checkpoint: A run folder, a checkpoint folder, or the model's folder in one of them.
        overrides: Keys of the run's configuration to change.

    Raises:
        DataError: If there is no model.
        ConfigurationError: If the run's configuration is missing or invalid.
    """
    location = locate_model(checkpoint)
    if location.config is None or not location.has_run_config:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: there is no config.yaml beside the model, which says what "
            "it was trained for; expected a run folder, or a checkpoint folder in one"
        )
    config = _drop_permissions(read_saved_config(location.config, TASKS, overrides), overrides)
    config = replace_initial_model(config, location)
    return TASKS[config.task].make(config), Path(location.model)


def _drop_permissions(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """Returns a run's configuration without its permissions to overwrite the user's files.

    The configuration may come from someone else. So unless `overrides` sets these keys, existing
    encoded data is not overwritten, and the database of a table is built beside the table.
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


def replace_initial_model(config: Config, location: Location) -> Config:
    """Returns a run's configuration with the checkpoint's model as its initial model.

    The run's own initial model may be missing on this machine.
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


def check_evaluation_keys(config: EvaluateConfig, task: str, task_key: str) -> None:
    """Refuses keys of `evaluate.py` that have no effect for a task on a table.

    Args:
        task: The task, for messages.
        task_key: The key that only this task uses.

    Raises:
        ConfigurationError: If a key or an override would have no effect.
    """
    for key in config.overrides.keys() & REPLACED_KEYS.keys():
        expected = f"{REPLACED_KEYS[key]}={config.overrides[key]}"
        raise ConfigurationError(f"overrides.{key} would have no effect; expected {expected}")

    used_keys = (
        "checkpoint",
        "training_config",
        "overrides",
        "out_dir",
        "validation_file",
        task_key,
        "bootstrap_resamples",
        "seed",
    )
    refuse_unused_keys(config, used_keys, f"a checkpoint of {task}")


def read_training_config(
    config: EvaluateConfig, location: Location, *schemas: type[Config]
) -> Config:
    """Reads a checkpoint's training configuration, with the evaluation's resampling keys.

    Args:
        schemas: The schemas that the configuration may have.

    Raises:
        ConfigurationError: If it has none of the schemas.
    """
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task was read from it
    entries = {}
    for schema in schemas:
        task = schema().task
        entries[task] = TASKS[task]

    saved_config = read_saved_config(file, entries, config.overrides)
    training_config = _drop_permissions(saved_config, config.overrides)
    assert isinstance(training_config, schemas)
    changes: dict[str, Any] = {
        "bootstrap_resamples": config.bootstrap_resamples,
        "seed": config.seed,
    }
    return replace(training_config, **changes)


def announce_data(
    config: EvaluateConfig | GenerateConfig, location: Location, key: str, path: str | None
) -> None:
    """Logs the path of the data that an evaluation reads, and its source.

    By default, the path comes from the configuration of the model's run, which may have been
    written by someone else and name any file of this machine or of a server.

    Args:
        key: The key of the data in the configuration of the run.
        path: A file, a folder, or a URL; None: nothing is logged.
    """
    if path is None:
        return
    source = f"as {config.training_config or location.config} says"
    if config.validation_file is not None:
        key = "validation_file"
        source = "as this call says"
    logger.info("reading %s=%r, %s", key, redact(path), source)


def refuse_unwritable_reports(config: EvaluateConfig | GenerateConfig, location: Location) -> None:
    """Refuses a folder for reports that cannot be written, before anything is scored.

    Raises:
        ConfigurationError: Naming the folder.
    """
    if config.out_dir is not None:
        folder = Path(config.out_dir)
    elif location.is_on_hub or is_in_bucket(location.name):
        folder = Path()
    else:
        folder = (location.run_folder or Path(location.name)) / _REPORT_FOLDER
    refuse_unwritable_folder(folder, "out_dir")


def choose_report_folder(
    config: EvaluateConfig | GenerateConfig, location: Location, *, has_other_data: bool
) -> Path:
    """Returns `out_dir`, or by default a folder in the run folder or next to the model.

    For a model in a bucket, it is a folder in the working folder.

    The default is `evaluation`, with the name of the checkpoint appended if it is not the run
    folder itself, and the name of `validation_file` if that is not the data of the run. If a folder
    of this name belongs to another file, the name of the file's folder is appended, too, or else a
    hash of its path. Folders for `validation_file` are created to reserve their name, so only
    rank 0 calls this.

    Args:
        has_other_data: Whether `validation_file` is not the data of the run.

    Raises:
        ConfigurationError: If the default, or a file in it, is a link that leads out of the run
            folder, which may come from someone else.
    """
    if config.out_dir is not None:
        return Path(config.out_dir)

    parts = [_REPORT_FOLDER]
    is_remote = location.is_on_hub or is_in_bucket(location.name)
    folder = Path() if is_remote else Path(location.name)
    if is_in_bucket(location.name):
        parts.append(Path(location.name).name)
    elif location.run_folder is not None and folder.resolve() != location.run_folder:
        parts.append(folder.resolve().name)
        folder = location.run_folder
    report_folder = folder / "-".join(parts)
    if has_other_data:
        assert config.validation_file is not None
        report_folder = _reserve_data_folder(folder, "-".join(parts), config.validation_file)

    if not is_remote:  # the working folder is the user's
        _refuse_outward_links(report_folder, folder)
    return report_folder


def _refuse_outward_links(report_folder: Path, parent: Path) -> None:
    """Refuses a folder if writing reports there would change files outside `parent`."""
    for path in (report_folder, *report_folder.glob("*")):
        if not is_inside(path, parent):
            raise ConfigurationError(
                f"out_dir: by default, the reports would be written to {report_folder}, but {path} "
                f"is a symbolic link that leads out of {parent}; delete the link, or name a folder "
                "(out_dir=FOLDER)"
            )


def _reserve_data_folder(parent: Path, prefix: str, validation_file: str) -> Path:
    """Reserves a folder in `parent` that is named after the evaluated data; returns its path."""
    data = Path(validation_file)
    source = redact(str(data.absolute()) if data.exists() else validation_file)
    data_name = data.name if data.is_dir() else data.name.partition(".")[0]
    shortest_name = f"{prefix}-{data_name}"
    digest = xxhash.xxh3_64_hexdigest(source.encode())[:8]
    names = [
        shortest_name,
        f"{shortest_name}-{data.absolute().parent.name}",
        f"{shortest_name}-{digest}",
    ]

    for name in names:
        if _reserve_folder(parent / name, source):
            return parent / name
    return parent / names[-1]


def _reserve_folder(folder: Path, source: str) -> bool:
    """Creates a folder for reports on the data at `source`; False if other data has it already."""
    source_file = folder / SOURCE_FILE
    if folder.exists() or folder.is_symlink():
        return source_file.is_file() and source_file.read_text() == source
    folder.mkdir(parents=True)
    source_file.write_text(source)
    return True
