"""The rank of this process in its launch, and whether it checks and reports for other processes."""

from __future__ import annotations

import os


def read_rank() -> int:
    """Returns the global rank of this process in the launch."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0  # the checks of the launch refuse other text


def is_reporter() -> bool:
    """Whether this process reports the errors that all processes of its machine find.

    Under torchrun and `accelerate launch`, it is the first process, because they terminate the
    others. Elsewhere every process reports.
    """
    has_launcher = "TORCHELASTIC_RUN_ID" in os.environ
    return not has_launcher or os.environ.get("LOCAL_RANK", "0") == "0"


def runs_shared_checks() -> bool:
    """Whether this process runs the checks whose result is the same in the whole launch.

    Under a launcher, which ends the others if one process refuses, it is rank 0. Elsewhere every
    process checks.
    """
    return read_rank() == 0 or "TORCHELASTIC_RUN_ID" not in os.environ
