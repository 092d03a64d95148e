"""Checks a launch file before it is used: `python launch_file.py FILE [PROCESSES]`.

Prints whether its processes run on the CPU: `true` or `false`.

The launch scripts call this first, since `accelerate launch` exits with an error of its own if it
cannot read the file. Checks that need the training configuration are left to the training.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from bsmeta.config.checks.launch import find_launcher_problems
from bsmeta.config.launch import read_launch
from bsmeta.core.errors import ConfigurationError, raise_problems
from bsmeta.core.process import run_and_report


def main() -> None:
    """Prints the answer, or the problems of the file, and exits with code 2 if there are any."""
    try:
        launch = read_launch({}, sys.argv[1])
        if len(sys.argv) > 2 and sys.argv[2]:  # the scripts' number overrides that of the file
            launch = replace(launch, num_processes=int(sys.argv[2]))
        raise_problems([*find_launcher_problems(launch)])
        print(str(launch.gpus == 0).lower())
    except ConfigurationError as error:
        print(f"BSMETA_LAUNCH_FILE: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
