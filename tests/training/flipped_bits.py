"""Trains the toy task, and flips one bit on one rank, as failing hardware would.

FLIP is `activation`, `gradient` (both are wrong once) or `weight` (which stays wrong); FLIP_PASS is
the number of the forward pass in which it happens, from 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss
from tests.training import toy_task


def flip_bit(values: torch.Tensor) -> torch.Tensor:
    """Returns a copy in which one bit of the first number differs."""
    copy = values.detach().clone()
    copy.view(torch.int32).flatten()[0] ^= 1 << 22  # the fraction's highest bit
    return copy


class FlippingTask(toy_task.ToyTask):
    """The toy task on hardware that fails once."""

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.num_passes = 0

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        self.num_passes += 1
        rank = Processes.of_group(batch["x"].device).rank
        if (self.num_passes, rank) != (int(os.environ["FLIP_PASS"]), int(os.environ["FLIP_RANK"])):
            return super().loss(model, batch)

        layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
        if os.environ["FLIP"] == "weight":
            with torch.no_grad():
                layer.weight.copy_(flip_bit(layer.weight))
            return super().loss(model, batch)

        corrupt = corrupt_output if os.environ["FLIP"] == "activation" else corrupt_gradient
        hook = layer.register_forward_hook(corrupt)
        loss = super().loss(model, batch)
        hook.remove()
        return loss


def corrupt_output(layer: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    """Flips a bit of an activation."""
    return output + (flip_bit(output) - output).detach()


def corrupt_gradient(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
    """Flips a bit of the activation's gradient."""
    output.register_hook(flip_bit)


def main(config: CausalLMConfig) -> int:
    toy_task.ToyTask = FlippingTask  # type: ignore[misc]
    return toy_task.main(config)


if __name__ == "__main__":
    sys.path.pop(0)
    run_entry_point(main, CausalLMConfig, "causal_lm_config")
