"""The rank of this process in its launch, and whether it checks and reports for others."""

from __future__ import annotations

import os


def rank() -> int:
    """The global rank of this process in the launch."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0  # other text is refused with the launch


def is_reporter() -> bool:
    """Whether this process reports errors that all processes of its machine find.

    Only torchrun and `accelerate launch` terminate the other processes of a machine; elsewhere
    every process reports.
    """
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    return not launched or os.environ.get("LOCAL_RANK", "0") == "0"


def checks_for_all() -> bool:
    """Whether this process checks what is the same for all processes of its launch.

    Only rank 0 where a launcher ends the others if it refuses; elsewhere every process.
    """
    return rank() == 0 or "TORCHELASTIC_RUN_ID" not in os.environ
