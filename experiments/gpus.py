"""Selects the least busy GPUs: `python gpus.py 2` prints two of the usable GPUs.

The launch scripts call it to set CUDA_VISIBLE_DEVICES if a run uses fewer GPUs than there are. GPUs
are sorted by free memory, then by utilization, as nvidia-smi reports them. Prints nothing if there
is no nvidia-smi, or if its report lacks one of the GPUs (MIG).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

QUERY = [
    "nvidia-smi",
    "--query-gpu=uuid,memory.free,utilization.gpu",
    "--format=csv,noheader,nounits",
]
NEAR_MB = 1024  # smaller differences in free memory are ignored


def least_busy(report: str, usable: Sequence[str], count: int) -> list[str]:
    """The GPUs to use, the least busy first.

    Args:
        report: Lines of `UUID, free MB, utilization in percent`.
        usable: UUIDs of the GPUs that may be used.
        count: Number of GPUs to select.

    Returns:
        UUIDs; empty if the report lacks one of the usable GPUs.
    """
    load: dict[str, tuple[int, int]] = {}
    for line in report.splitlines():
        uuid, free, utilisation = (part.strip() for part in line.split(","))
        if free.isdecimal():
            busy = int(utilisation) if utilisation.isdecimal() else 0
            load[uuid] = (-(int(free) // NEAR_MB), busy)
    if not set(usable) <= load.keys():
        return []
    return sorted(usable, key=lambda uuid: load[uuid])[:count]


def visible() -> list[str]:
    """UUIDs of the GPUs of this machine that CUDA_VISIBLE_DEVICES exposes."""
    import torch

    devices = range(torch.cuda.device_count())
    return [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices]


def main() -> None:
    """Print the selected GPUs, separated by commas."""
    try:
        report = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    chosen = least_busy(report, visible(), int(sys.argv[1]))
    if chosen:
        print(",".join(chosen))


if __name__ == "__main__":
    main()
