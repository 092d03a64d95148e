"""Entry point of `python -m bsmeta.quick`, `bsmeta quick` and `bsmeta/quick.py`."""

from __future__ import annotations

import sys

from bsmeta.config.composing.positional import name_positional
from bsmeta.config.entry_point import run_entry_point
from bsmeta.core.process import run_stoppable
from bsmeta.quick.config import QuickConfig


def main(config: QuickConfig) -> int:
    """Runs the command, whose libraries are imported only now."""
    from bsmeta.quick import command

    return run_stoppable(lambda: command.main(config), continuation="where it was")


if __name__ == "__main__":
    sys.argv[1:] = name_positional(sys.argv[1:], "pages")
    run_entry_point(main, QuickConfig, "quick")
