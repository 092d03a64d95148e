"""Hydra × DeepSpeed × launch: every disagreement is found before anything is loaded.

Hydra owns every value. The DeepSpeed JSON may say `"auto"` or the same value; a key that DeepSpeed
would fill in silently must be there. The launch (`accelerate launch`'s file or environment) must
agree as well. `check` lists all that is wrong at once, and otherwise gives the DeepSpeed
configuration with every value filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.checks.deepspeed import deepspeed_problems, fill
from bsmeta.config.checks.deepspeed_file import read_json
from bsmeta.config.checks.loop import loop_problems
from bsmeta.config.checks.problems import Problem, refuse
from bsmeta.config.checks.start import launch_problems
from bsmeta.config.checks.values import value_problems
from bsmeta.config.launch import Launch
from bsmeta.config.metadata import metadata_problems
from bsmeta.config.schema import TrainConfig

__all__ = ["CheckResult", "Problem", "check", "find_problems"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What is known once nothing is wrong."""

    # Without "auto" and without optimizer and scheduler, which the trainer makes itself; None
    # without DeepSpeed.
    deepspeed_config: dict[str, Any] | None


def check(config: TrainConfig, launch: Launch) -> CheckResult:
    """Compares the configuration with itself, the launch and the DeepSpeed JSON.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    problems, document = find_problems(config, launch)
    refuse([*problems, *metadata_problems(config.data_config.metadata_config)])
    filled = None if document is None else fill(document, config, launch)
    return CheckResult(deepspeed_config=filled)


def find_problems(
    config: TrainConfig, launch: Launch
) -> tuple[list[Problem], dict[str, Any] | None]:
    """All problems, and the DeepSpeed JSON as it was read (None: not used, or not readable)."""
    problems = [*value_problems(config), *launch_problems(config, launch)]
    document = None
    if launch.deepspeed and launch.deepspeed_config_file is not None:
        document, unreadable = read_json(launch.deepspeed_config_file)
        problems += unreadable
        if document is not None:
            problems += deepspeed_problems(document, config, launch)
    problems += loop_problems(config, launch, document)
    return problems, document
