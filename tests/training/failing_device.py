"""A toy task whose loss fails on one rank as a GPU would, from the second step on.

FAILURE is the name of one of `FAILURES`, RANK_OF_FAILURE the rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.task import Loss
from tests.training import toy_task

FAILURES = {
    "memory": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
        "of which 1.50 GiB is free."
    ),
    "nccl": dist.DistBackendError(
        "NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for "
        "details), NCCL version 2.29.3\nncclInvalidUsage: This usually reflects invalid usage of "
        "NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA "
        "device 1b000\n"
    ),
}


class FailingTask(toy_task.ToyTask):
    calls = 0

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        self.calls += 1
        if self.calls > 1 and os.environ.get("RANK", "0") == os.environ["RANK_OF_FAILURE"]:
            raise FAILURES[os.environ["FAILURE"]]
        return super().loss(model, batch)


def main(config: CausalLMConfig) -> int:
    toy_task.ToyTask = FailingTask  # type: ignore[misc]
    return toy_task.main(config)


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "causal_lm_config")
