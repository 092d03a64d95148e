"""Hydra × DeepSpeed × launch: every disagreement is found before anything is loaded.

Hydra owns every value. The DeepSpeed JSON may say `"auto"` or the same value; a key that DeepSpeed
would fill in silently must be there. The launch (`accelerate launch`'s file or environment) must
agree as well. `check_run` lists all that is wrong at once, and otherwise gives the launch, and the
DeepSpeed configuration with every value filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bsmeta.config.checks.deepspeed import deepspeed_problems, fill
from bsmeta.config.checks.deepspeed_file import read_json
from bsmeta.config.checks.deepspeed_models import model_problems
from bsmeta.config.checks.files import file_problems
from bsmeta.config.checks.loop import loop_problems
from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, refuse, show
from bsmeta.config.checks.start import launch_problems
from bsmeta.config.checks.values import value_problems
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.launch import Launch, read_launch
from bsmeta.config.schema import TrainConfig

__all__ = ["CheckedRun", "Problem", "check", "check_run"]


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """What is known once nothing is wrong."""

    launch: Launch
    # Without "auto" and without optimizer and scheduler, which the trainer makes itself; None
    # without DeepSpeed.
    deepspeed_config: dict[str, Any] | None


def check_run(
    config: TrainConfig,
    environ: Mapping[str, str],
    tasks: Sequence[str],
    mistakes: Sequence[Problem] = (),
) -> CheckedRun:
    """Compares the configuration with itself, with this launch and with the DeepSpeed JSON.

    Args:
        config: The run.
        environ: The environment variables of this process.
        tasks: What `task` may name.
        mistakes: What was found wrong before (command line, metadata); listed with the rest.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    found: list[Problem | str] = [*mistakes]
    if config.task not in tasks:
        expected = f"one of {', '.join(tasks)}{nearest(config.task, tasks)}"
        fix = f"task={closest(config.task, tasks)}"
        found.append(Problem("task", HYDRA, show(config.task), expected, fix))
    try:
        launch = read_launch(environ, config.accelerate_config_file)
    except ConfigurationError as error:  # the rest can be told without it
        refuse([*found, str(error), *_own_problems(config)])
        raise
    return check(config, launch, found)


def check(
    config: TrainConfig, launch: Launch, mistakes: Sequence[Problem | str] = ()
) -> CheckedRun:
    """The same for a launch that was read, or made up.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    problems = [*mistakes, *_own_problems(config), *launch_problems(config, launch)]
    document = None
    if launch.deepspeed and launch.deepspeed_config_file is not None:
        document, unreadable = read_json(launch.deepspeed_config_file)
        problems += unreadable
        if document is not None:
            problems += deepspeed_problems(document, config, launch)
            reported = {one.key for one in problems if isinstance(one, Problem)}
            problems += model_problems(document, reported, str(launch.deepspeed_config_file))
    problems += loop_problems(config, launch, document)
    refuse(problems)
    filled = None if document is None else fill(document, config, launch)
    return CheckedRun(launch=launch, deepspeed_config=filled)


def _own_problems(config: TrainConfig) -> list[Problem]:
    """What is wrong whatever the launch says."""
    return [*value_problems(config), *file_problems(config)]
