"""The rank of this process in its launch, and whether it checks and reports for other ranks."""

from __future__ import annotations

import os


def read_rank() -> int:
    """Returns the global rank of this process; 0 without a launcher."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0  # the checks of the launch refuse other text


def is_reporter() -> bool:
    """Whether this process reports the errors that all processes of its machine find.

    Under torchrun and `accelerate launch`, only the first process does; these terminate the others
    when it exits. Without them, every process does.
    """
    has_launcher = "TORCHELASTIC_RUN_ID" in os.environ
    return not has_launcher or os.environ.get("LOCAL_RANK", "0") == "0"


def runs_shared_checks() -> bool:
    """Whether this process runs the checks that have the same result on all ranks.

    Under torchrun and `accelerate launch`, only rank 0 does; these end the others if it refuses.
    Without them, every process does.
    """
    return read_rank() == 0 or "TORCHELASTIC_RUN_ID" not in os.environ
