"""Checks of configuration values that do not depend on the launch or DeepSpeed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from bsmeta.config.checks.bounds import bound_problems
from bsmeta.config.checks.problems import HYDRA, Problem, nearest, show
from bsmeta.config.schema import RunConfig

# Model names that the Hub accepts (huggingface_hub.utils.validate_repo_id), with their owner.
REPOSITORY = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

# Accelerate's names, which are also those of the modules that must be installed.
TRACKERS = ("tensorboard", "wandb", "trackio")


def value_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values."""
    yield from bound_problems(config)
    for step in config.extra_steps_to_eval_save_at:
        if not 1 <= step <= config.max_train_steps and config.num_train_epochs is None:
            expected = f"updates of the run, from 1 to {config.max_train_steps} (max_train_steps)"
            fix = f"drop {step} from extra_steps_to_eval_save_at"
            yield Problem("extra_steps_to_eval_save_at", HYDRA, show(step), expected, fix)
    if config.push_to_hub is not None and not REPOSITORY.fullmatch(config.push_to_hub):
        expected = "OWNER/NAME, of letters, digits, '-', '_' and '.'"
        yield _refused(config, "push_to_hub", expected, "push_to_hub=me/my-model, for example")
    yield from _trackers(config)


def _trackers(config: RunConfig) -> Iterator[Problem]:
    for name in config.trackers:
        if name not in TRACKERS:
            expected = f"some of {', '.join(TRACKERS)}{nearest(name, TRACKERS)}"
            yield Problem("trackers", HYDRA, show(name), expected, "trackers=[tensorboard]")
        elif importlib.util.find_spec(name) is None:
            fix = f"pip install {name}, or leave it out of trackers"
            yield Problem("trackers", HYDRA, show(name), "an installed library", fix)


def _refused(config: RunConfig, key: str, expected: str, fix: str) -> Problem:
    return Problem(key, HYDRA, show(getattr(config, key)), expected, fix)
