"""The entry of a task in `bsmeta.tasks.TASKS`: its class, checks, rows and programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, ConfigurationError, Problem, closest, nearest, show

Row = tuple[str, str]


def imported(place: str) -> Callable[..., Any]:
    """A function that imports `module:attribute` when it is called, and calls it."""

    def call(*arguments: Any) -> Any:
        return resolve_name(place)(*arguments)

    return call


def _nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task, as the entry points and the checks use it.

    Attributes:
        schema: Its schema, derived from `RunConfig`, as `module:attribute`.
        make: Builds the task (`bsmeta.training.task.Task`) from a configuration.
        value_problems: Takes the configuration and the keys of the command line; returns the
            problems that do not depend on the launch.
        start_problems: Takes the configuration, the launch and the DeepSpeed JSON; returns the
            problems that depend on them.
        summary: Takes the configuration and the launch; returns rows of the start-up table. A row
            replaces a row of the same name that all tasks have.
        sample_rows: Takes the configuration, reads some of the data, and returns further rows of
            the start-up table; raises an error for data that the run cannot be trained on.
        notes: Takes the configuration; returns a line for each setting that has no effect.
        start_notes: Takes the configuration and the launch; returns a line for each choice that is
            allowed but unusual.
        prepare: Takes a configuration with `prep_only`, and builds the data.
        evaluate: Does the work of `evaluate.py`: takes its configuration, the checkpoints
            (`bsmeta.tasks.checkpoints.Location`), and the `Processes`.
        programs: The entry points beside `train.py` that work with its checkpoints.
        has_epochs: Whether its runs may be measured in epochs (`Task.steps_per_epoch`).
        finishes: Whether it reads `model/` of a checkpoint when a run ends
            (`Task.finish`).
        fully_shards: Whether its runs under FSDP2 have been tried, which calls the model in one
            piece; others are refused.
    """

    schema: str
    make: Callable[[Any], Any]
    value_problems: Callable[[Any, Collection[str]], Iterable[Problem]] = _nothing
    start_problems: Callable[[Any, Launch, Mapping[str, Any] | None], Iterable[Problem]] = _nothing
    summary: Callable[[Any, Launch], Iterable[Row]] = _nothing
    sample_rows: Callable[[Any], Iterable[Row]] = _nothing
    notes: Callable[[Any], Iterable[str]] = _nothing
    start_notes: Callable[[Any, Launch], Iterable[str]] = _nothing
    prepare: Callable[[Any], object] = _nothing
    evaluate: Callable[[Any, Sequence[Any], Any], None] | None = None
    programs: tuple[str, ...] = ()
    has_epochs: bool = False
    finishes: bool = False
    fully_shards: bool = False

    @property
    def config(self) -> type[RunConfig]:
        """The schema, which is imported only if it is asked for."""
        loaded: type[RunConfig] = resolve_name(self.schema)
        return loaded


def check_program(program: str, task: str, tasks: Mapping[str, TaskEntry]) -> None:
    """Refuses an entry point that does not work with a task."""
    able = [name for name, entry in tasks.items() if program in entry.programs]
    if task in able:
        return
    others = tasks[task].programs if task in tasks else ()
    instead = f"; for task={task} there is {' and '.join(others)}" if others else ""
    raise ConfigurationError(
        f"task={task}: {program} works with task={' or '.join(able)} only{instead}"
    )


def entry_of(config: RunConfig, tasks: Mapping[str, TaskEntry]) -> tuple[TaskEntry, list[Problem]]:
    """The entry whose schema a configuration has, and the problems with its `task`."""
    places = {f"{schema.__module__}:{schema.__qualname__}" for schema in type(config).__mro__}
    name, entry = next((name, entry) for name, entry in tasks.items() if entry.schema in places)
    if config.task == name:
        return entry, []
    if config.task in tasks:
        expected = f"{name}, because the configuration begins with the schema of {name}"
        fix = f"--config-name of a configuration for {config.task}, or task={name}"
    else:
        expected = f"one of {', '.join(tasks)}{nearest(config.task, [*tasks])}"
        fix = f"task={closest(config.task, [*tasks])}"
    return entry, [Problem("task", HYDRA, show(config.task), expected, fix)]
