"""Checks of values that need no launch, of the loop's settings, and of names that become paths."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bsmeta.config.checks.problems import (
    HYDRA,
    Problem,
    bound_problems,
    closest,
    look_up,
    nearest,
    show,
)
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry

# Model names that the Hub accepts (huggingface_hub.utils.validate_repo_id), with their owner.
REPOSITORY = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

# Accelerate's names, which are also those of the modules that must be installed.
TRACKERS = ("tensorboard", "wandb", "trackio")


def value_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values."""
    yield from bound_problems(config)
    for step in config.extra_steps_to_eval_save_at:
        if not 1 <= step <= config.max_train_steps and config.num_train_epochs is None:
            expected = f"steps of the run, from 1 to {config.max_train_steps} (max_train_steps)"
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


STAGE = "zero_optimization.stage"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def loop_problems(
    config: RunConfig, launch: Launch, document: Mapping[str, Any] | None, entry: TaskEntry
) -> Iterator[Problem]:
    """Yields problems with the settings of the training loop."""
    stage = None if document is None else look_up(document, STAGE)
    if config.on_nonfinite == "skip" and stage == 0:
        expected = '"stop": without ZeRO, DeepSpeed has put a bad gradient into the weights already'
        fix = f'on_nonfinite=stop, or write "{STAGE.rpartition(".")[2]}": 1 or more in the JSON'
        yield Problem("on_nonfinite", HYDRA, show("skip"), expected, fix)
    if config.async_save and launch.deepspeed:
        expected = "false: DeepSpeed's ranks write their own parts of a checkpoint together"
        yield Problem("async_save", HYDRA, show(True), expected, "async_save=false")
    yield from _evaluation(config, entry.metrics)
    yield from _epochs(config, entry)
    yield from _names(config)
    yield from _profile(config)


def _evaluation(config: RunConfig, metrics: tuple[str, ...] | None) -> Iterator[Problem]:
    """Yields a `keep_best_by` without evaluations, or with a metric that they do not have."""
    best = config.keep_best_by
    if best is None:
        for key in ("early_stopping_patience", "export_best"):
            if getattr(config, key):
                expected = "a metric by which checkpoints are better or worse"
                fix = f"keep_best_by=loss, for example, or leave {key} out"
                yield Problem("keep_best_by", HYDRA, f"null, but {key} is set", expected, fix)
        return
    if config.eval_steps == 0 and config.evals_per_epoch is None:
        expected = "null, because eval_steps=0 evaluates nothing"
        fix = "keep_best_by=null, or eval_steps=1000, for example"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)
    elif metrics is not None and best not in metrics:
        expected = f"one of {', '.join(metrics)}{nearest(best, metrics)}"
        fix = f"keep_best_by={closest(best, metrics)}"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)


def _epochs(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields the epoch keys that are set for a task without epochs."""
    instead = {
        "num_train_epochs": "max_train_steps",
        "evals_per_epoch": "eval_steps",
        "logs_per_epoch": "logging_steps",
        "saves_per_epoch": "save_steps",
    }
    for key, in_steps in instead.items():
        value = getattr(config, key)
        if value is not None and not entry.has_epochs:
            expected = f"null: task={config.task} has no epochs"
            fix = f"{key}=null, and {in_steps}"
            yield Problem(key, HYDRA, show(value), expected, fix)


def _profile(config: RunConfig) -> Iterator[Problem]:
    steps = config.profile_steps
    if len(steps) != 2 or not 1 <= steps[0] <= steps[1]:
        expected = "two numbers: the first and the last step of the trace, from 1"
        yield Problem("profile_steps", HYDRA, show(list(steps)), expected, "profile_steps=[10,12]")
    elif config.profile and config.num_train_epochs is None and steps[1] > config.max_train_steps:
        expected = f"steps of the run, which makes {config.max_train_steps} (max_train_steps)"
        last = config.max_train_steps
        fix = f"profile_steps=[{max(1, last - 2)},{last}]"
        yield Problem("profile_steps", HYDRA, show(list(steps)), expected, fix)


def _names(config: RunConfig) -> Iterator[Problem]:
    if not _NAME.fullmatch(config.run_name):
        expected = "letters, digits, '.', '_' and '-', beginning with a letter or digit: no path"
        yield Problem("run_name", HYDRA, show(config.run_name), expected, "run_name=first, say")
    out_dir = config.out_dir
    if not out_dir.strip() or "=" in out_dir or not out_dir.isprintable():
        expected = "a path without '=' (an override that names a checkpoint would not parse)"
        yield Problem("out_dir", HYDRA, show(out_dir), expected, "out_dir=runs/first, for example")
        return
    folder = Path(out_dir).expanduser().resolve()
    if folder in (Path("/"), Path.home(), Path.cwd().resolve()):
        expected = "a folder of its own for the run, which overwrite_out_dir=true may empty"
        yield Problem("out_dir", HYDRA, show(out_dir), expected, "out_dir=runs/first, for example")
