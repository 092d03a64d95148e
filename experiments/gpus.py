"""The least busy GPUs: `python gpus.py 2` prints two of those that may be used, for
CUDA_VISIBLE_DEVICES; the launch scripts call it where a run takes fewer than there are.

Sorted by free memory, then by utilisation, as nvidia-smi reports them. Prints nothing where there
is no nvidia-smi, or where it does not know one of the GPUs (MIG).
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
NEAR_MB = 1024  # free memory that differs by less counts as equal


def least_busy(report: str, usable: Sequence[str], count: int) -> list[str]:
    """The GPUs to take, the least busy first.

    Args:
        report: Lines of `UUID, free MB, utilisation in percent`.
        usable: UUIDs of the GPUs that may be used.
        count: How many to take.

    Returns:
        UUIDs; empty where the report lacks one of the usable GPUs.
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
    """UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves to this machine's processes."""
    import torch

    devices = range(torch.cuda.device_count())
    return [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices]


def main() -> None:
    """Prints the chosen GPUs, separated by commas."""
    try:
        report = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    chosen = least_busy(report, visible(), int(sys.argv[1]))
    if chosen:
        print(",".join(chosen))


if __name__ == "__main__":
    main()
