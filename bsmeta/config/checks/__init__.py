"""Checks Hydra, the DeepSpeed JSON and the launch against each other before anything is loaded.

Hydra owns every value. The DeepSpeed JSON may say `"auto"` or the same value; a key that DeepSpeed
would fill in silently must be present. The launch (`accelerate launch`'s file or environment) must
agree as well. `check_run` reports all problems at once; if there are none, it returns the launch
and the DeepSpeed configuration with every value filled in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bsmeta.config.checks.deepspeed import deepspeed_problems, fill, model_problems, read_json
from bsmeta.config.checks.fsdp import FullyShard, fsdp_problems, fully_shard_of
from bsmeta.config.checks.run import folder_problems, launch_problems, loop_problems, value_problems
from bsmeta.config.launch import Launch, read_launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry, entry_of
from bsmeta.core.errors import ConfigurationError, Problem, refuse

__all__ = ["CheckedRun", "Problem", "check", "check_run"]


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """The launch and the DeepSpeed configuration of a run that has passed all checks."""

    launch: Launch
    # Without "auto" and without optimizer and scheduler, which the trainer builds itself; None
    # without DeepSpeed.
    deepspeed_config: dict[str, Any] | None
    fully_shard: FullyShard | None  # None without FSDP2


def check_run(
    config: RunConfig,
    environ: Mapping[str, str],
    tasks: Mapping[str, TaskEntry],
    mistakes: Sequence[Problem] = (),
    overridden: Collection[str] = (),
) -> CheckedRun:
    """Checks that the configuration is consistent with itself, this launch and the DeepSpeed JSON.

    Args:
        mistakes: Problems found earlier; reported along with the rest.
    """
    entry, wrong_task = entry_of(config, tasks)
    found: list[Problem | str] = [*mistakes, *wrong_task]
    try:
        launch = read_launch(environ, config.accelerate_config_file)
    except ConfigurationError as error:  # the rest can be reported without it
        refuse([*found, str(error), *_own_problems(config, entry, overridden)])
        raise
    return check(config, launch, entry, found, overridden)


def check(
    config: RunConfig,
    launch: Launch,
    entry: TaskEntry,
    mistakes: Sequence[Problem | str] = (),
    overridden: Collection[str] = (),
) -> CheckedRun:
    """Runs the checks of `check_run` for a given launch.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    problems = [*mistakes, *_own_problems(config, entry, overridden)]
    problems += launch_problems(config, launch)
    problems += fsdp_problems(config, launch, entry)
    document = None
    if launch.deepspeed and launch.deepspeed_config_file is not None:
        document, unreadable = read_json(launch.deepspeed_config_file)
        problems += unreadable
        if document is not None:
            problems += deepspeed_problems(document, config, launch)
            reported = {problem.key for problem in problems if isinstance(problem, Problem)}
            problems += model_problems(document, reported, str(launch.deepspeed_config_file))
    problems += loop_problems(config, launch, document, entry)
    problems += entry.start_problems(config, launch, document)
    refuse(problems)
    filled = None if document is None else fill(document, config, launch)
    return CheckedRun(launch=launch, deepspeed_config=filled, fully_shard=fully_shard_of(launch))


def _own_problems(
    config: RunConfig, entry: TaskEntry, overridden: Collection[str]
) -> list[Problem]:
    """The problems that do not depend on the launch."""
    own = entry.value_problems(config, overridden)
    return [*value_problems(config, overridden), *own, *folder_problems(config)]
