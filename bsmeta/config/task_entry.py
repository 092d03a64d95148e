"""The entries of tasks in `bsmeta.tasks.TASKS`: their classes, checks, rows and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from bsmeta.config.composing.composition import Composition
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import (
    HYDRA,
    ConfigurationError,
    Problem,
    find_closest,
    format_value,
    suggest_nearest,
)

Row = tuple[str, str]
ModelUse = Literal["flag_words", "predict_label", "detect_entities", "encode_entities"]
"""A use of a task's models by an annotator, or by `entities.py`."""


def defer_import(name: str) -> Callable[..., Any]:
    """Returns a function that imports another function only when it is called.

    Args:
        name: The other function, as `module:attribute`.
    """

    def import_and_call(*arguments: Any) -> Any:
        return resolve_name(name)(*arguments)

    return import_and_call


def _return_nothing(*_: object) -> tuple[()]:
    """Returns an empty tuple, as the default of optional functions of an entry."""
    return ()


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task, as the entry points and the checks use it.

    Attributes:
        schema: The task's schema, derived from `RunConfig`, as `module:attribute`.
        make: Creates the task (`bsmeta.training.task.Task`) from a configuration.
        value_problems: Takes the configuration, and its values as they were written; returns the
            problems that do not depend on the launch.
        start_problems: Takes the configuration, the launch and the DeepSpeed JSON; returns the
            problems that depend on the launch.
        summary: Takes the configuration and the launch; returns rows of the start-up table. A row
            replaces a row of the same name that all tasks have.
        sample_rows: Takes the configuration, reads some of the data, and returns further rows of
            the start-up table; raises an error for data that cannot be used for training.
        notes: Takes the configuration, and its values as they were written; returns a line for each
            setting that has no effect.
        start_notes: Takes the configuration and the launch; returns a line for each setting that is
            allowed but unusual.
        prepare: Takes a configuration with `prep_only`, and builds the data.
        evaluate: Does the work of `evaluate.py`: takes its configuration, the checkpoints
            (`bsmeta.tasks.checkpoints.Location`) and the `Processes`; returns the folders of the
            reports that this process has written.
        programs: The entry points beside `train.py` that work with checkpoints of the task.
        uses: The uses of the task's models by annotators and by `entities.py`.
        is_language_model: Whether models of the task score and continue documents with metadata, by
            the code of this package's language model.
        has_epochs: Whether the task has epochs (`Task.steps_per_epoch`).
        finishes: Whether the task reads `model/` of a checkpoint when a run ends (`Task.finish`).
        fully_shards: Whether the task has been tested under FSDP2, which calls the model as a
            whole; other tasks are refused there.
    """

    schema: str
    make: Callable[[Any], Any]
    value_problems: Callable[[Any, Composition], Iterable[Problem]] = _return_nothing
    start_problems: Callable[[Any, Launch, Mapping[str, Any] | None], Iterable[Problem]] = (
        _return_nothing
    )
    summary: Callable[[Any, Launch], Iterable[Row]] = _return_nothing
    sample_rows: Callable[[Any], Iterable[Row]] = _return_nothing
    notes: Callable[[Any, Composition], Iterable[str]] = _return_nothing
    start_notes: Callable[[Any, Launch], Iterable[str]] = _return_nothing
    prepare: Callable[[Any], object] = _return_nothing
    evaluate: Callable[[Any, Sequence[Any], Any], list[Path]] | None = None
    programs: tuple[str, ...] = ()
    uses: tuple[ModelUse, ...] = ()
    is_language_model: bool = False
    has_epochs: bool = False
    finishes: bool = False
    fully_shards: bool = False

    @property
    def config(self) -> type[RunConfig]:
        """The schema class, imported on first use."""
        loaded: type[RunConfig] = resolve_name(self.schema)
        return loaded


def check_program(program: str, task: str, tasks: Mapping[str, TaskEntry]) -> None:
    """Refuses an entry point that does not work with a task.

    Args:
        program: The file of the entry point, such as `evaluate.py`.
        task: The name of the task.
        tasks: The entries of all tasks by name.

    Raises:
        ConfigurationError: Naming the tasks with which the program works.
    """
    programs = tasks[task].programs if task in tasks else ()
    if program in programs:
        return

    supported_tasks = [name for name, entry in tasks.items() if program in entry.programs]
    instead = f"; for task={task} there is {' and '.join(programs)}" if programs else ""
    raise ConfigurationError(
        f"task={task}: {program} works with task={' or '.join(supported_tasks)} only{instead}"
    )


def find_entry(
    config: RunConfig, tasks: Mapping[str, TaskEntry]
) -> tuple[TaskEntry, list[Problem]]:
    """Returns the entry whose schema a configuration has, and the problems of its key `task`.

    Args:
        tasks: The entries of all tasks by name.
    """
    schemas = {f"{schema.__module__}:{schema.__qualname__}" for schema in type(config).__mro__}
    if config.task in tasks and tasks[config.task].schema in schemas:
        return tasks[config.task], []

    # The schema belongs to another task than `task`; the entry of that other task does the checks.
    name = next(name for name, entry in tasks.items() if entry.schema in schemas)
    if config.task in tasks:
        expected = f"{name}, because the configuration begins with the schema of {name}"
        fix = f"--config-name of a configuration for {config.task}, or task={name}"
    else:
        expected = f"one of {', '.join(tasks)}{suggest_nearest(config.task, tasks)}"
        fix = f"task={find_closest(config.task, list(tasks))}"
    return tasks[name], [Problem("task", HYDRA, format_value(config.task), expected, fix)]
