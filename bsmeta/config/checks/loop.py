"""Checks of the training loop's settings: evaluations, exports, epochs, names and profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bsmeta.config.checks.values import describe_refusal
from bsmeta.config.launch import Launch
from bsmeta.config.metric_table import list_best_metrics
from bsmeta.config.run_location import RUN_ADDRESS, is_run_address, lacks_bucket_library
from bsmeta.config.schema import ADAMW, DEEPSPEED_OPTIMIZERS, OPTIMIZERS, RunConfig
from bsmeta.config.steps import EPOCH_KEYS
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import (
    HYDRA,
    Problem,
    find_closest,
    format_value,
    look_up,
    suggest_nearest,
)
from bsmeta.core.secrets import format_url

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def find_loop_problems(
    config: RunConfig, launch: Launch, document: Mapping[str, Any] | None, entry: TaskEntry
) -> Iterator[Problem]:
    """Yields problems with the settings of the training loop."""
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.on_nonfinite == "skip" and stage == 0:
        expected = '"stop": without ZeRO, DeepSpeed has put a bad gradient into the weights already'
        fix = 'on_nonfinite=stop, or write "stage": 1 or more in the JSON'
        yield Problem("on_nonfinite", HYDRA, format_value("skip"), expected, fix)

    optimizer = OPTIMIZERS.get(config.optimizer_type)
    if launch.deepspeed and optimizer is not None and not optimizer.by_element:
        expected = (
            f"{DEEPSPEED_OPTIMIZERS} under DeepSpeed, which cuts the parameters into parts without "
            "a shape"
        )
        fix = f"optimizer_type={ADAMW}, or a launch file without DeepSpeed"
        yield describe_refusal(config, "optimizer_type", expected, fix)

    yield from _find_evaluation_problems(config)
    yield from _find_export_problems(config, entry)
    yield from _find_epoch_problems(config, entry)
    yield from _find_name_problems(config)
    yield from _find_profile_problems(config)


def _find_evaluation_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with `keep_best_by`: no evaluations, or an unknown metric."""
    metric = config.keep_best_by
    if metric is None:
        for key in ("early_stopping_patience", "export_best"):
            if getattr(config, key):
                expected = "a metric by which checkpoints are better or worse"
                fix = f"keep_best_by=loss, for example, or leave {key} out"
                yield Problem("keep_best_by", HYDRA, f"null, but {key} is set", expected, fix)
        return

    evaluates = config.eval_steps or config.evals_per_epoch or config.extra_steps_to_eval_save_at
    if not evaluates:
        expected = "null, because eval_steps=0 evaluates nothing"
        fix = "keep_best_by=null, or eval_steps=1000, for example"
        yield describe_refusal(config, "keep_best_by", expected, fix)
        return

    metrics = list_best_metrics(config)
    if metrics is not None and metric not in metrics:
        expected = f"one of {', '.join(metrics)}{suggest_nearest(metric, metrics)}"
        yield describe_refusal(
            config, "keep_best_by", expected, f"keep_best_by={find_closest(metric, metrics)}"
        )


def _find_export_problems(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields problems with `export_steps`: without effect, or without a `model/` that is needed."""
    export_steps = config.export_steps
    save_steps = config.save_steps
    if export_steps is None or export_steps < 0:  # out of bounds, and refused for that
        return

    if entry.finishes:
        expected = f"null: task={config.task} evaluates model/ of its last checkpoint"
        yield describe_refusal(config, "export_steps", expected, "export_steps=null")
    elif config.export_best:
        expected = "null: with export_best=true, model/ of any checkpoint may be that of the run"
        fix = "export_steps=null, or export_best=false"
        yield describe_refusal(config, "export_steps", expected, fix)
    elif config.saves_per_epoch is None and save_steps > 0 and export_steps % save_steps:
        expected = f"0 (never), or a multiple of {save_steps} (save_steps)"
        fix = f"export_steps={(export_steps // save_steps + 1) * save_steps}"
        yield describe_refusal(config, "export_steps", expected, fix)


def _find_epoch_problems(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields a problem for each epoch key that is set although the task has no epochs."""
    for key, key_in_steps in EPOCH_KEYS.items():
        if getattr(config, key) is not None and not entry.has_epochs:
            expected = f"null: task={config.task} has no epochs"
            yield describe_refusal(config, key, expected, f"{key}=null, and {key_in_steps}")


def _find_profile_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with `profile_steps`: not a range, or outside of the run."""
    steps = config.profile_steps
    last_step = config.max_train_steps
    if len(steps) != 2 or steps[0] > steps[1]:
        expected = "two numbers: the first and the last step of the trace"
        yield describe_refusal(config, "profile_steps", expected, "profile_steps=[10,12]")
    elif config.profile and config.num_train_epochs is None and steps[1] > last_step:
        expected = f"steps of the run, which makes {last_step} (max_train_steps)"
        fix = f"profile_steps=[{max(1, last_step - 2)},{last_step}]"
        yield describe_refusal(config, "profile_steps", expected, fix)


def _find_name_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with a run name that is not a file name, and with the run folder."""
    if not _RUN_NAME.fullmatch(config.run_name):
        expected = "letters, digits, '.', '_' and '-', beginning with a letter or digit: no path"
        yield describe_refusal(config, "run_name", expected, "run_name=first, say")

    out_dir = config.out_dir
    expected = ""
    example = "out_dir=runs/first, for example"
    if "://" in out_dir and not is_run_address(out_dir):
        expected = (
            f"a folder, or {RUN_ADDRESS} without credentials, '=', '?' and '#'; runs in other "
            "stores are written through a mounted folder"
        )
        example = "out_dir=s3://bucket/runs/first, for example"
    elif not out_dir.strip() or "=" in out_dir or not out_dir.isprintable():
        expected = "a path without '=' (an override that names a checkpoint would not parse)"
    elif Path(out_dir).resolve() in (Path("/"), Path.home(), Path.cwd().resolve()):
        expected = "a folder of its own for the run, which overwrite_out_dir=true may empty"
    if expected:
        yield Problem("out_dir", HYDRA, format_value(format_url(out_dir)), expected, example)
    if lacks_bucket_library(out_dir):
        expected = "a folder, because the library for buckets is not installed"
        yield describe_refusal(config, "out_dir", expected, "pip install 'bsmeta[object-stores]'")
