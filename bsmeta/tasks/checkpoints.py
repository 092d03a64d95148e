"""Opens the task that a checkpoint was trained on, from its saved configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import saved_config, saved_task
from bsmeta.evaluation.checkpoints import Location, locate
from bsmeta.tasks import TASKS
from bsmeta.tasks.base import Task


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
    # The checkpoint's own: the one that the run began with may not be on this machine.
    own: dict[str, Any] = {"tokenizer_name": location.model}
    config = replace(config, **{name: own[name] for name in vars(config).keys() & own})
    return TASKS[config.task].make(config), Path(location.model)
