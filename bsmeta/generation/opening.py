"""Locates and loads the model of `checkpoint` and its training configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.generation import GenerateConfig
from bsmeta.evaluation.checkpoints import Location, load_model, locate, run_config


@dataclass(frozen=True)
class Opened:
    """A loaded model, its tokenizer, and the configuration of its training data."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    device: torch.device


def find(config: GenerateConfig) -> tuple[Location, CausalLMConfig]:
    """Locate the model and read its training configuration, without loading the model.

    Raises:
        UserError: There is no such checkpoint, or its configuration cannot be read.
    """
    location = locate(config.checkpoint)
    train = run_config(location, config.training_config, config.overrides)
    return location, train


def load(config: GenerateConfig, location: Location, train: CausalLMConfig) -> Opened:
    """Load the model, on the GPU if there is one.

    Raises:
        UserError: It cannot be loaded, or does not match its configuration.
    """
    transformers.utils.logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load_model(location, train, config.precision, device)
    return Opened(model, tokenizer, train.data_config, device)
