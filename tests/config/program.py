"""Starts `train.py` in a process, for tests of composition and of the help page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import run_warm

TRAIN = Path(__file__).resolve().parents[2] / "bsmeta" / "train.py"


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_warm([sys.executable, str(TRAIN), *arguments], folder)
