"""Finds the ready-made models in the user's cache folder.

Each build has a folder of its own, named after its target and the version of its format. It appears
by a single rename once all of its models are trained, so it is always complete.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from bsmeta.config.programs.building import READY_TASKS
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import locate_user_cache

FORMAT = 2
"""Version of all builds; increment it when this package trains them otherwise, or cannot read the
earlier ones."""

NEEDED = ("config.yaml", "evaluation/evaluation.json", "model/config.json")
"""Files of each model without which a build is damaged."""


def locate_build(target: str) -> Path:
    """Returns the path of the folder with the models of a target, which need not exist."""
    return locate_user_cache() / "ready" / f"{target}-v{FORMAT}"


def list_builds(target: str) -> dict[int, Path]:
    """Lists the finished builds of a target by format, of this and of other versions."""
    builds = {}
    for path in locate_build(target).parent.glob(f"{target}-v*"):
        version = path.name.removeprefix(f"{target}-v")
        if version.isascii() and version.isdecimal() and path.is_dir():
            builds[int(version)] = path
    return builds


def check_build(target: str) -> None:
    """Checks that the build of a target, which exists, has its files.

    Raises:
        DataError: Naming the first file or folder that is missing.
    """
    folder = locate_build(target)
    tasks = [task for task, task_target in READY_TASKS.items() if task_target == target]
    for task, name in itertools.product(tasks, NEEDED):
        path = folder / task / name
        if not path.exists():
            raise DataError(
                f"{path} is missing; expected all files of the build: delete {folder}, and "
                f"`bsmeta build {target}` builds it again"
            )


def find_ready_model(task: str) -> Path:
    """Returns the run folder of the ready-made model of a task.

    Args:
        task: One of `READY_TASKS`.

    Raises:
        ConfigurationError: If the model is not built, or was built in another format.
        DataError: If files of the build are missing.
    """
    target = READY_TASKS[task]
    folder = locate_build(target)
    if folder.exists():
        check_build(target)
        return folder / task

    state = f"its model is not built yet (there is no {folder})"
    builds = list_builds(target)
    if builds:
        newest = builds[max(builds)]
        state = (
            f"{newest} was built by another version of bsmeta, in another format (this version "
            f"reads v{FORMAT})"
        )
    raise ConfigurationError(
        f"task={task}: {state}; `bsmeta build {target}` builds it from the shipped texts, in a few "
        "minutes; or name a trained model: checkpoint=RUN",
        ["task"],
    )
