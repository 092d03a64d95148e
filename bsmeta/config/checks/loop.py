"""What the loop cannot do under a given engine, and names that would break a path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, show
from bsmeta.config.checks.shared import look_up
from bsmeta.config.checks.speed import speed_problems
from bsmeta.config.launch import Launch
from bsmeta.config.schema import TrainConfig

STAGE = "zero_optimization.stage"
# What an evaluation during training measures, by task: the lowest may be kept.
FIGURES = {
    "causal_lm": (
        "bits_per_byte_with", "bits_per_byte_without", "text_bits_per_byte", "difference",
        "difference_low", "difference_high", "perplexity_with", "perplexity_without",
        "mean_document_difference", "mean_document_difference_low",
        "mean_document_difference_high", "sign_test_p",
    ),
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def loop_problems(
    config: TrainConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields what is wrong with how the run is kept safe.

    Args:
        config: The run.
        launch: How it is started.
        document: The DeepSpeed JSON, if one is used and could be read.
    """
    stage = None if document is None else look_up(document, STAGE)
    if config.on_nonfinite == "skip" and stage == 0:
        expected = '"stop": without ZeRO, DeepSpeed has put a bad gradient into the weights already'
        fix = f'on_nonfinite=stop, or write "{STAGE.rpartition(".")[2]}": 1 or more in the JSON'
        yield Problem("on_nonfinite", HYDRA, show("skip"), expected, fix)
    if config.async_save and launch.deepspeed:
        expected = "false: DeepSpeed's ranks write their own parts of a checkpoint together"
        yield Problem("async_save", HYDRA, show(True), expected, "async_save=false")
    yield from _evaluation(config)
    yield from _names(config)
    yield from speed_problems(config, launch, document)


def _evaluation(config: TrainConfig) -> Iterator[Problem]:
    """What is asked of an evaluation that does not take place, or does not have it."""
    best, held_out = config.keep_best_by, config.data_config.validation_file
    if best is not None and config.eval_steps == 0:
        expected = "null, because eval_steps=0 evaluates nothing"
        fix = "keep_best_by=null, or eval_steps=1000, for example"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)
    elif best is not None and config.task in FIGURES and best not in FIGURES[config.task]:
        figures = FIGURES[config.task]
        expected = f"one of {', '.join(figures)}{nearest(best, figures)}"
        fix = f"keep_best_by={closest(best, figures)}"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)
    best = best if config.eval_steps else None
    asked = {"keep_best_by": best, "start_with_eval": config.start_with_eval or None}
    for key in [key for key, value in asked.items() if value is not None and held_out is None]:
        expected = "no evaluation, because there is no held-out file"
        fix = f"data_config.validation_file=FILE, or leave {key} out"
        yield Problem(key, HYDRA, show(asked[key]), expected, fix)


def _names(config: TrainConfig) -> Iterator[Problem]:
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
