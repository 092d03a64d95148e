"""Trains a model: `accelerate launch … bsmeta/train.py --config-name v2 key=value …`."""

from __future__ import annotations

import os
import sys

PARENT_PID = os.getppid()
if __name__ == "__main__":
    from bsmeta.core.signals import hold_signals

    hold_signals()  # until the folder of the run is known

from collections.abc import Sequence
from functools import partial

from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.checks.run import check_run
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.composing.hydra_files import shorten_path
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.run_location import locate_run_folder
from bsmeta.config.schema import RunConfig
from bsmeta.config.startup_table import list_launch_notes, list_table_rows, print_summary
from bsmeta.config.steps import set_branch_length
from bsmeta.config.task_entry import Row
from bsmeta.core.process import run_and_report
from bsmeta.core.rank import read_rank, runs_shared_checks
from bsmeta.core.signals import StopRequest, release_signals
from bsmeta.tasks import BUILT_IN, TASKS
from bsmeta.training.run_folder.early_ends import record_refusal, record_stopped_start
from bsmeta.training.run_folder.failed_starts import check_failed_starts


def main(config: RunConfig, composition: Composition = EMPTY_COMPOSITION) -> int:
    """Checks the configuration against the launch, then trains; returns the exit code.

    Args:
        composition: The configuration as it was written; its problems are reported together with
            all others, and refused.
    """
    config = set_branch_length(config)
    status_folder = None if config.check_only or config.estimate else locate_run_folder(config)

    with record_refusal(status_folder):
        run = check_run(config, os.environ, TASKS, composition)
        sampled = [*run.entry.sample_rows(run.config)] if runs_shared_checks() else []
    if read_rank() == 0:
        print_table(run, composition, sampled)

    if config.check_only:
        return 0
    if getattr(config, "prep_only", False):  # a key of tasks that read tables
        run.entry.prepare(config)
        return 0
    if config.estimate:
        estimate(run)
        return 0
    return train(run)


def print_table(run: CheckedRun, composition: Composition, sampled: Sequence[Row]) -> None:
    """Prints the start-up table, and notes on settings that are valid but probably unintended.

    Args:
        sampled: Rows about the data.
    """
    notes = [
        *list_launch_notes(run.launch),
        *run.entry.notes(run.config, composition),
        *run.entry.start_notes(run.config, run.launch),
    ]
    files = [shorten_path(file) for file in composition.files]
    print_summary(list_table_rows(run, files, sampled), notes)


def estimate(run: CheckedRun) -> None:
    """Prints the resources that the run would need."""
    release_signals()
    task = run.entry.make(run.config)

    from bsmeta.training.estimate import estimate_run

    estimate_run(run, task, is_main=read_rank() == 0)


def train(run: CheckedRun) -> int:
    """Prints the memory that the run needs, then trains; returns the exit code."""
    out_dir = locate_run_folder(run.config)
    stop = StopRequest()
    stop.install(partial(record_stopped_start, out_dir), PARENT_PID)

    # Accelerate takes seconds to import, so an invalid configuration is refused first.
    with record_refusal(out_dir):
        check_failed_starts(out_dir, run.launch, run.config.max_failed_starts)
        task = run.entry.make(run.config)
        if read_rank() == 0 and task.shape_needs_no_data:
            from bsmeta.training.estimate import print_memory

            print_memory(run, task)

    from bsmeta.training.run import run_training

    return run_training(run.config, task, run.deepspeed_config, stop, run.launch.reshards)


if __name__ == "__main__":
    if any(argument.split("=")[0] == "--config_script" for argument in sys.argv[1:]):
        from bsmeta.tasks.disambiguation.config_script import apply_config_script

        script_code = run_and_report(apply_config_script)
        if script_code:
            sys.exit(script_code)

    run_entry_point(
        main,
        [entry.schema for entry in BUILT_IN.values()],
        "v2",
        takes_composition=True,
        list_more=TASKS.list_installed_schemas,
    )
