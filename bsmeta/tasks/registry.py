"""The registry of the tasks of this package and of other installed distributions.

A distribution adds a task with an entry point in the group `bsmeta.tasks`: the name of the entry
point is the name of the task, and its value is a `TaskEntry` as `module:attribute`. An entry is
imported when its task is used. The tasks of this package are a table in Python instead, because a
checkout that is not installed has no entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import ConfigurationError

GROUP = "bsmeta.tasks"
"""The entry point group of tasks."""


class TaskRegistry(Mapping[str, TaskEntry]):
    """The entries of all tasks: the tasks of the package in their order, then others by name.

    Args:
        built_in: The tasks of this package.

    Raises:
        ConfigurationError: On any access, if two tasks share a name; on access to an entry, if it
            cannot be imported or is not a `TaskEntry`. The message names the distribution.
    """

    def __init__(self, built_in: Mapping[str, TaskEntry]) -> None:
        self._built_in = built_in
        self._loaded: dict[str, TaskEntry] = {}

    def __getitem__(self, name: str) -> TaskEntry:
        installed = self._installed  # read first, because it refuses repeated names
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._loaded:
            self._loaded[name] = load_entry(installed[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._installed or name in self._built_in  # without loading an entry

    def __iter__(self) -> Iterator[str]:
        return iter([*self._built_in, *self._installed])

    def __len__(self) -> int:
        return len(self._built_in) + len(self._installed)

    def list_installed_schemas(self) -> list[str]:
        """Imports the entries of other distributions, and lists their schemas."""
        return [self[name].schema for name in self._installed]

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """The entry points of other distributions by name, sorted."""
        points: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
            if point.name in self._built_in or point.name in points:
                first_point = points.get(point.name)
                first_owner = "bsmeta itself"
                if first_point is not None:
                    first_owner = describe_distribution(first_point)
                raise ConfigurationError(
                    f"task={point.name} is defined twice: by {first_owner} and by "
                    f"{describe_distribution(point)} (entry point {point.value}); expected one "
                    f"task of a name. Fix: uninstall {find_package_name(point)}, or rename its task"
                )
            points[point.name] = point
        return points


def load_entry(point: EntryPoint) -> TaskEntry:
    """Imports the entry of a task of another distribution.

    Raises:
        ConfigurationError: If it cannot be imported, or is not a `TaskEntry`.
    """
    source = f"task={point.name}: the entry point {point.value} of {describe_distribution(point)}"
    fix = f"Fix: install another version of {find_package_name(point)}, or uninstall it"
    try:
        entry = point.load()
    except Exception as error:  # the code of another distribution may raise anything
        raise ConfigurationError(
            f"{source} cannot be loaded: {type(error).__name__}: {error}. {fix}"
        ) from error

    if not isinstance(entry, TaskEntry):
        raise ConfigurationError(
            f"{source} is of type {type(entry).__name__}; expected a "
            f"bsmeta.config.task_entry.TaskEntry. {fix}"
        )
    return entry


def describe_distribution(point: EntryPoint) -> str:
    """Returns the name and version of the distribution of an entry point, for messages."""
    if point.dist is None:
        return "an unknown distribution"
    return f"the distribution {point.dist.name} {point.dist.version}"


def find_package_name(point: EntryPoint) -> str:
    """Returns the name of an entry point's distribution for `pip`; "it" if it is unknown."""
    return "it" if point.dist is None else point.dist.name
