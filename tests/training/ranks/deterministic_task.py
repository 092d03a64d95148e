"""A toy task that writes the settings of its process to the file SETTINGS.

With PUT, its loss calls an operation without a deterministic kernel.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.task import Loss
from tests.training import toy_task

VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC")


class WatchedTask(toy_task.ToyTask):
    def build_model(self) -> nn.Module:
        from torch._inductor import config as compiler

        settings = {
            "algorithms": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
            "compiler": compiler.deterministic,
            **{name: os.environ.get(name) for name in VARIABLES},
        }
        Path(os.environ["SETTINGS"]).write_text(json.dumps(settings))
        return super().build_model()

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        if "PUT" in os.environ:
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        return super().loss(model, batch)


def main(config: CausalLMConfig) -> int:
    toy_task.ToyTask = WatchedTask  # type: ignore[misc]
    return toy_task.main(config)


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "causal_lm_config")
