"""What is known of a task before it is loaded: its schema, its checks, its rows of the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, show
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig

Row = tuple[str, str]


def _nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task, as the entry points and the checks use it.

    Attributes:
        config: Its schema, derived from `RunConfig`.
        make: The task of a configuration (`bsmeta.tasks.base.Task`); imports what takes time.
        value_problems: From the configuration and the keys of the command line, what is wrong
            whatever the launch says.
        start_problems: From the configuration, the launch and the DeepSpeed JSON, what does not
            fit this start.
        summary: From the configuration and the launch, rows of the start-up table; one with the
            name of a row of every task takes its place.
        notes: From the configuration, what has no effect.
        metrics: What its evaluations measure; None: known only when they are made.
        has_epochs: Whether its runs may be measured in epochs (`bsmeta.tasks.base.HasEpochs`).
    """

    config: type[RunConfig]
    make: Callable[[Any], Any]
    value_problems: Callable[[Any, Collection[str]], Iterable[Problem]] = _nothing
    start_problems: Callable[[Any, Launch, Mapping[str, Any] | None], Iterable[Problem]] = _nothing
    summary: Callable[[Any, Launch], Iterable[Row]] = _nothing
    notes: Callable[[Any], Iterable[str]] = _nothing
    metrics: tuple[str, ...] | None = None
    has_epochs: bool = False


def entry_of(config: RunConfig, tasks: Mapping[str, TaskEntry]) -> tuple[TaskEntry, list[Problem]]:
    """The entry that a configuration belongs to by its schema, and what is wrong with `task`."""
    name, entry = next(
        (name, entry) for name, entry in tasks.items() if isinstance(config, entry.config)
    )
    if config.task == name:
        return entry, []
    if config.task in tasks:
        expected = f"{name}, because the configuration begins with the schema of {name}"
        fix = f"--config-name of a configuration for {config.task}, or task={name}"
    else:
        expected = f"one of {', '.join(tasks)}{nearest(config.task, [*tasks])}"
        fix = f"task={closest(config.task, [*tasks])}"
    return entry, [Problem("task", HYDRA, show(config.task), expected, fix)]
