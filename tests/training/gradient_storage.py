"""A toy task that counts the memory of its gradients, in the file STORAGES of rank 0.

Each line: the bytes of the parameters, the number and bytes of the storages that hold the
gradients, and the number of parameters with a gradient; during each loss, and before each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.task import Loss
from tests.training import toy_task


def record(moment: str, parameters: Iterable[torch.Tensor]) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    storages = {grad.untyped_storage().data_ptr(): grad.untyped_storage() for grad in gradients}
    line = {
        "moment": moment,
        "weights": sum(parameter.nbytes for parameter in parameters),
        "storages": len(storages),
        "bytes": sum(storage.nbytes() for storage in storages.values()),
        "gradients": len(gradients),
    }
    with open(os.environ["STORAGES"], "a") as file:
        file.write(json.dumps(line) + "\n")


def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    record("step", (parameter for group in optimizer.param_groups for parameter in group["params"]))


class CountingTask(toy_task.ToyTask):
    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        record("loss", model.parameters())
        return super().loss(model, batch)


def main(config: CausalLMConfig) -> int:
    register_optimizer_step_pre_hook(before_step)
    toy_task.ToyTask = CountingTask  # type: ignore[misc]
    return toy_task.main(config)


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "causal_lm_config")
