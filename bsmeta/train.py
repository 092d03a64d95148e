"""Trains: `accelerate launch --config_file … bsmeta/train.py --config-name v2 key=value …`."""

from __future__ import annotations

import os

PARENT = os.getppid()
if __name__ == "__main__":
    from bsmeta.training.signals import hold_signals

    hold_signals()  # until the folder of the run is known

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bsmeta.config.checks import Problem, check_run
from bsmeta.config.checks.files import model_name_problems
from bsmeta.config.compose import run_entry_point
from bsmeta.config.errors import ConfigurationError, UserError
from bsmeta.config.hydra_ext import composed_files, overridden_keys
from bsmeta.config.notes import notes
from bsmeta.config.reporting import rank
from bsmeta.config.schema import TrainConfig
from bsmeta.config.summary import print_summary
from bsmeta.data.preview import missing_types
from bsmeta.metadata.checks import metadata_notes, metadata_problems
from bsmeta.tasks import TASKS
from bsmeta.training.signals import StopRequest, release_signals


def main(config: TrainConfig, mistakes: Sequence[Problem] = ()) -> int:
    """Checks the configuration against the launch, then trains; returns the exit code.

    Args:
        config: The run.
        mistakes: What was wrong with the command line; told with all the rest, and refused.
    """
    is_main = rank() == 0
    metadata = config.data_config.metadata_config
    with _refusal_in_status(config):
        ignored = model_name_problems(config, overridden_keys())
        wrong = [*mistakes, *ignored, *metadata_problems(metadata)]
        checked = check_run(config, os.environ, list(TASKS), wrong)
    if is_main:
        remarks = [*notes(config, checked.launch), *metadata_notes(metadata)]
        remarks += missing_types(config.data_config)
        print_summary(config, checked.launch, composed_files(), remarks)
    if config.check_only:
        return 0
    stop = StopRequest()
    if config.estimate:
        release_signals()
    else:
        stop.install(Path(config.out_dir), PARENT)

    # Accelerate takes seconds to import: not for a configuration that is wrong.
    with _refusal_in_status(config):
        task = TASKS[config.task](config)
    if config.estimate:
        from bsmeta.training.estimate import estimate

        estimate(config, task, checked, is_main=is_main)
        return 0

    from bsmeta.training.run import run

    return run(config, task, checked.deepspeed_config, stop)


@contextmanager
def _refusal_in_status(config: TrainConfig) -> Iterator[None]:
    """Writes an error of the user's into the status of the run, where there is to be one."""
    try:
        yield
    except UserError as error:
        keys = error.keys if isinstance(error, ConfigurationError) else ()
        is_run = not config.check_only and not config.estimate
        if rank() == 0 and is_run and "out_dir" not in keys:
            from bsmeta.training.run_folder import write_refusal

            write_refusal(Path(config.out_dir), str(error))
        raise


if __name__ == "__main__":
    run_entry_point(main, TrainConfig, "v2", takes_mistakes=True)
