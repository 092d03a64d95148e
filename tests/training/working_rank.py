"""Two ranks under a watchdog of ten seconds: one works for longer, then both stand still.

working_rank.py FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.progress import report_progress
from bsmeta.core.signals import StopRequest
from bsmeta.training.ranks.distributed import create_accelerator
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.watchdog import Watchdog

LIMIT_S = 10


def main(folder: Path) -> None:
    config = CausalLMConfig(trackers=[], out_dir=str(folder))
    processes = Processes.of_group(create_accelerator(config, None, None).device)
    with Watchdog(processes, LIMIT_S, StopRequest()) as watchdog:
        watchdog.enter("before the barrier")
        for _ in range(15 * LIMIT_S * processes.rank):
            time.sleep(0.1)
            report_progress()
        processes.barrier()
        (folder / f"met-{processes.rank}").touch()
        watchdog.enter("after the barrier")
        time.sleep(10_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
