"""Checks a launch file before it is used: `python launch_file.py FILE [PROCESSES]`.

`accelerate launch` ends with an error of its own on a file that it cannot read; the launch scripts
call this first. What only the configuration can be compared with is left to the training.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from bsmeta.config.checks.problems import refuse
from bsmeta.config.checks.start import launcher_problems
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.launch import read_launch


def main() -> None:
    """Prints what is wrong with the file, and ends with code 2 where something is."""
    try:
        launch = read_launch({}, sys.argv[1])
        if (
            len(sys.argv) > 2 and sys.argv[2]
        ):  # the scripts' own number takes the place of the file's
            launch = replace(launch, num_processes=int(sys.argv[2]))
        refuse([*launcher_problems(launch)])
    except ConfigurationError as error:
        print(f"BSMETA_LAUNCH_FILE: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
