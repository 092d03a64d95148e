"""Entry point of `python -m bsmeta.quick`, `bsmeta quick` and `bsmeta/quick.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.override_values import write_override_value
from bsmeta.core.process import run_stoppable
from bsmeta.quick.config import QuickConfig

_OPTIONS_WITH_VALUE = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")


def main(config: QuickConfig) -> int:
    """Runs the command, and imports its libraries only then."""
    from bsmeta.quick import command

    code = 0

    def run() -> None:
        nonlocal code
        code = command.main(config)

    return run_stoppable(run, continues="where it was") or code


def name_pages(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with those that are paths as a value of `pages`.

    A path is an argument without an equals sign that is neither an option nor its value, such as
    those into which a shell expands `pages/*.jsonl`; or one that exists, such as `a=b.jsonl`.
    """
    named = []
    paths = []
    previous = ""
    for argument in arguments:
        is_option = argument.startswith("-") or previous in _OPTIONS_WITH_VALUE
        if is_option or "=" in argument or argument == "all":
            named.append(argument)
        else:
            paths.append(argument)
        previous = argument
    if paths:
        value = paths[0] if len(paths) == 1 else paths
        named.append(f"pages={write_override_value(value)}")
    return named


if __name__ == "__main__":
    sys.argv[1:] = name_pages(sys.argv[1:])
    run_entry_point(main, QuickConfig, "quick")
