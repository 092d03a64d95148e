"""Number of threads with which a process computes on the CPU.

`accelerate launch` and torchrun give each process one thread (`OMP_NUM_THREADS=1`), which suits
processes that compute on GPUs. An optimizer that DeepSpeed keeps in main memory steps on the CPU:
for a model of 1.5 billion parameters, one thread takes about two seconds for each step
(arithmetic, not measured).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from bsmeta.core.errors import look_up

_OFFLOAD_DEVICE_KEY = "zero_optimization.offload_optimizer.device"

logger = logging.getLogger(__name__)


def use_cores_for_offload(deepspeed_config: Mapping[str, Any]) -> None:
    """Divides the cores among the processes of this machine if the optimizer steps on the CPU.

    A number of threads other than a launcher's default of one is the user's choice, and is kept.
    """
    if look_up(deepspeed_config, _OFFLOAD_DEVICE_KEY) != "cpu" or torch.get_num_threads() > 1:
        return

    num_cores = len(os.sched_getaffinity(0))
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_threads = max(1, num_cores // num_processes)
    torch.set_num_threads(num_threads)
    logger.info(
        "offload_optimizer: the optimizer steps on the CPU, with %d threads in each process "
        "(cores: %d, processes on this machine: %d; OMP_NUM_THREADS above 1 sets another number)",
        num_threads,
        num_cores,
        num_processes,
    )
