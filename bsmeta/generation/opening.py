"""The model of `checkpoint`, and how its training data read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.generation import GenerateConfig
from bsmeta.config.schema import TrainConfig
from bsmeta.evaluation.checkpoints import Location, load_model, locate, run_config


@dataclass(frozen=True)
class Opened:
    """A model that is ready to be used."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    device: torch.device


def find(config: GenerateConfig) -> tuple[Location, TrainConfig]:
    """Where the model is, and what it was trained with; nothing is loaded yet.

    Raises:
        UserError: There is no such checkpoint, or its configuration cannot be read.
    """
    location = locate(config.checkpoint)
    train = run_config(location, config.training_config, config.overrides)
    if train.task != "causal_lm":
        raise ConfigurationError(
            f"checkpoint={config.checkpoint}: trained with task={train.task}; expected causal_lm"
        )
    return location, train


def load(config: GenerateConfig, location: Location, train: TrainConfig) -> Opened:
    """The model, on the GPU if there is one.

    Raises:
        UserError: It cannot be loaded, or does not fit its configuration.
    """
    transformers.utils.logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load_model(location, train, config.precision, device)
    return Opened(model, tokenizer, train.data_config, device)
