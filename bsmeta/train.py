"""Trains a model: `accelerate launch … bsmeta/train.py --config-name v2 key=value …`."""

from __future__ import annotations

import os

PARENT = os.getppid()
if __name__ == "__main__":
    from bsmeta.core.signals import hold_signals

    hold_signals()  # until the folder of the run is known

from functools import partial
from pathlib import Path

from bsmeta.config.checks import check_run
from bsmeta.config.composition import NOTHING, Composition
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.hydra_files import short_path
from bsmeta.config.schema import RunConfig
from bsmeta.config.startup_table import launch_notes, print_summary, summary
from bsmeta.config.steps import set_branch_length
from bsmeta.core.rank import checks_for_all, rank
from bsmeta.core.signals import StopRequest, release_signals
from bsmeta.tasks import TASKS
from bsmeta.training.run_folder import note_early_stop, refusal_in_status


def main(config: RunConfig, composition: Composition = NOTHING) -> int:
    """Checks the configuration against the launch, then trains; returns the exit code.

    Args:
        composition: The configuration as it was written; its problems are reported together with
            all others, and refused.
    """
    is_main = rank() == 0
    config = set_branch_length(config)
    with refusal_in_status(config):
        checked = check_run(config, os.environ, TASKS, composition)
        entry = TASKS[config.task]
        sampled = [*entry.sample_rows(config)] if checks_for_all() else []
    if is_main:
        launch = checked.launch
        remarks = [*launch_notes(launch), *entry.notes(config, composition)]
        remarks += entry.start_notes(config, launch)
        files = [*map(short_path, composition.files)]
        print_summary(summary(config, launch, entry, files, sampled), remarks)
    if config.check_only:
        return 0
    if getattr(config, "prep_only", False):  # of tasks on tables
        entry.prepare(config)
        return 0
    stop = StopRequest()
    if config.estimate:
        release_signals()
    else:
        stop.install(partial(note_early_stop, Path(config.out_dir)), PARENT)

    # Accelerate takes seconds to import, so an invalid configuration is refused first.
    with refusal_in_status(config):
        task = entry.make(config)
    if config.estimate:
        from bsmeta.training.estimate import estimate

        estimate(config, task, checked, is_main=is_main)
        return 0

    if is_main:
        from bsmeta.training.estimate import print_memory

        with refusal_in_status(config):
            print_memory(config, task, checked)

    from bsmeta.training.run import run

    return run(config, task, checked.deepspeed_config, stop, checked.launch.reshards)


if __name__ == "__main__":
    schemas = [entry.schema for entry in TASKS.values()]
    run_entry_point(main, schemas, "v2", takes_composition=True)
