"""Trains: `accelerate launch --config_file … bsmeta/train.py --config-name v2 key=value …`."""

from __future__ import annotations

import os
from pathlib import Path

from bsmeta.config.checks import check
from bsmeta.config.compose import run_entry_point
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.launch import read_launch
from bsmeta.config.schema import TrainConfig
from bsmeta.config.summary import print_summary
from bsmeta.tasks import TASKS


def main(config: TrainConfig) -> int:
    """Checks the configuration against the launch, then trains; returns the exit code."""
    is_main = int(os.environ.get("RANK", "0")) == 0
    try:
        launch = read_launch(os.environ, config.accelerate_config_file)
        checked = check(config, launch)
        if config.task not in TASKS:
            raise ConfigurationError(f"task={config.task}: expected one of {', '.join(TASKS)}")
    except ConfigurationError as error:
        if is_main and not config.check_only:
            from bsmeta.training.run_folder import write_refusal

            write_refusal(Path(config.out_dir), str(error))
        raise
    if is_main:
        print_summary(config, launch)
    if config.check_only:
        return 0

    # Accelerate takes seconds to import: not for a configuration that is wrong.
    from bsmeta.training.run import run

    return run(config, TASKS[config.task](config), checked.deepspeed_config)


if __name__ == "__main__":
    run_entry_point(main, TrainConfig, "v2")
