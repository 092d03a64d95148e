"""Trains: `accelerate launch --config_file … bsmeta/train.py --config-name v2 key=value …`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bsmeta.config.checks import Problem, check_run
from bsmeta.config.compose import rank, run_entry_point
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.schema import TrainConfig
from bsmeta.config.summary import print_summary
from bsmeta.tasks import TASKS


def main(config: TrainConfig, mistakes: Sequence[Problem] = ()) -> int:
    """Checks the configuration against the launch, then trains; returns the exit code.

    Args:
        config: The run.
        mistakes: What was wrong with the command line; told with all the rest, and refused.
    """
    is_main = rank() == 0
    try:
        checked = check_run(config, os.environ, list(TASKS), mistakes)
    except ConfigurationError as error:
        is_folder_known = "out_dir" not in {one.key for one in mistakes}
        is_run = not config.check_only and not config.estimate
        if is_main and is_folder_known and is_run:
            from bsmeta.training.run_folder import write_refusal

            write_refusal(Path(config.out_dir), str(error))
        raise
    if is_main:
        print_summary(config, checked.launch)
    if config.check_only:
        return 0

    # Accelerate takes seconds to import: not for a configuration that is wrong.
    task = TASKS[config.task](config)
    if config.estimate:
        from bsmeta.training.estimate import estimate

        estimate(config, task, checked, is_main=is_main)
        return 0

    from bsmeta.training.run import run

    return run(config, task, checked.deepspeed_config)


if __name__ == "__main__":
    run_entry_point(main, TrainConfig, "v2", takes_mistakes=True)
