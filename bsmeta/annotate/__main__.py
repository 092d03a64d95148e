"""Entry point of `python -m bsmeta.annotate`, `bsmeta annotate` and `bsmeta/annotate.py`."""

from __future__ import annotations

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.config.entry_point import run_entry_point


def main(config: AnnotateConfig) -> int:
    """Runs the command and returns its exit code."""
    # Imported here so that `--help` works without the libraries of the extra `annotate`.
    from bsmeta.annotate.command import main

    return main(config)


if __name__ == "__main__":
    run_entry_point(main, AnnotateConfig, "annotate")
