"""Entry point of `python -m bsmeta.annotate`, `bsmeta annotate` and `bsmeta/annotate.py`."""

from __future__ import annotations

from bsmeta.annotate.command import main
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.compose import run_entry_point

if __name__ == "__main__":
    run_entry_point(main, AnnotateConfig, "annotate")
