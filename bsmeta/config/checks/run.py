"""Checks of a run before anything is loaded, shared by all tasks.

Hydra owns every value. The DeepSpeed JSON may say `"auto"` or repeat the value, and a key that
DeepSpeed would otherwise fill in silently must be present. The launch (the file or the environment
of `accelerate launch`) must agree as well.

`check_run` reports all problems at once. Without problems, it returns a `CheckedRun`, whose
DeepSpeed configuration has every value filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.checks.elastic import find_elastic_problems, scale_accumulation
from bsmeta.config.checks.launch import find_fsdp_problems, find_launch_problems
from bsmeta.config.checks.loop import find_loop_problems
from bsmeta.config.checks.machine import find_machine_problems
from bsmeta.config.checks.paths import find_folder_problems
from bsmeta.config.checks.sharding import find_sharding_problems
from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.launch import Launch, read_launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry, find_entry
from bsmeta.core.errors import ConfigurationError, Problem, raise_problems


def check_run(
    config: RunConfig,
    environ: Mapping[str, str],
    tasks: Mapping[str, TaskEntry],
    composition: Composition = EMPTY_COMPOSITION,
) -> CheckedRun:
    """Checks that the configuration is consistent with itself, this launch and the DeepSpeed JSON.

    Args:
        composition: The configuration as it was written; its problems are reported, too.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    entry, task_problems = find_entry(config, tasks)
    composition = replace(composition, problems=(*composition.problems, *task_problems))
    try:
        launch = read_launch(environ, config.accelerate_config_file)
    except ConfigurationError as error:  # the rest can be reported without a launch
        others = _find_launch_free_problems(config, entry, composition)
        raise_problems([*composition.problems, str(error), *others])
        raise
    return check_launch(config, launch, entry, composition)


def check_launch(
    config: RunConfig,
    launch: Launch,
    entry: TaskEntry,
    composition: Composition = EMPTY_COMPOSITION,
) -> CheckedRun:
    """Runs the checks of `check_run` for a given launch.

    The result has the accumulation scaled to the processes of the launch.
    """
    problems = [*composition.problems, *_find_launch_free_problems(config, entry, composition)]
    problems += find_elastic_problems(config, launch)
    config = scale_accumulation(config, launch.num_processes)
    problems += find_launch_problems(config, launch)
    problems += find_fsdp_problems(config, launch, entry)
    problems += find_sharding_problems(config, launch)
    if not config.check_only:  # a checked run may start on another machine
        problems += find_machine_problems(_read_num_workers(config))

    document = deepspeed = None
    if launch.deepspeed and launch.deepspeed_config_file is not None:
        from bsmeta.config.checks.deepspeed import DeepSpeedJson, read_json  # imports pydantic

        document, unreadable = read_json(launch.deepspeed_config_file)
        problems += unreadable
        if document is not None:
            deepspeed = DeepSpeedJson(document, config, launch)
            problems += deepspeed.find_problems({problem.key for problem in unreadable})

    problems += find_loop_problems(config, launch, document, entry)
    problems += entry.start_problems(config, launch, document)
    raise_problems(problems)

    filled = None if deepspeed is None else deepspeed.fill_values()
    return CheckedRun(config=config, entry=entry, launch=launch, deepspeed_config=filled)


def _read_num_workers(config: RunConfig) -> int:
    """Returns the loader processes of each rank; 0 for a task without the key."""
    data: Any = getattr(config, "data_config", None)
    workers: int = getattr(data, "num_workers", 0)
    return workers


def _find_launch_free_problems(
    config: RunConfig, entry: TaskEntry, composition: Composition
) -> Iterator[Problem]:
    """Yields the problems that do not depend on the launch."""
    yield from find_value_problems(config, composition)
    yield from entry.value_problems(config, composition)
    yield from find_folder_problems(config)
