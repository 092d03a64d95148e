"""Trains ready-made models on the shipped texts, for `predict.py` without a checkpoint.

python bsmeta/build.py spelling
python bsmeta/build.py classification
"""

from __future__ import annotations

import sys

from bsmeta.config.composing.positional import name_positional
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.building import READY_TASKS, BuildConfig
from bsmeta.core.process import run_stoppable


def main(config: BuildConfig) -> int:
    """Builds the models of the target, and prints their results on held-out texts."""
    # Imported here because it imports torch, and the command line is checked first.
    from bsmeta.ready.building import build_models, list_results

    def build() -> None:
        folder = build_models(config)
        for line in list_results(folder):
            print(line)
        for task, target in READY_TASKS.items():
            if target == config.target:
                print(f"bsmeta predict task={task} text=TEXT")

    return run_stoppable(build, continuation="from the beginning")


if __name__ == "__main__":
    sys.argv[1:] = name_positional(sys.argv[1:], "target")
    run_entry_point(main, BuildConfig, "build")
