"""Frozen weights: hashed by name, compared with a checkpoint, and left out of loading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.training.checkpoints.checkpoint import Checkpoint
from bsmeta.training.engines.frozen_weights import (
    FrozenBase,
    check_same_base,
    hash_frozen_weights,
    list_frozen_weights,
)
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.task import BaseModel

SAVED = Checkpoint(Path("run/checkpoint-3step"), 3)


class TiedModel(nn.Module):
    """A frozen layer, a second name of its weight, and a trained bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.first.weight = nn.Parameter(torch.arange(4.0).reshape(2, 2), requires_grad=False)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight


def test_a_shared_frozen_weight_has_all_its_names_and_one_hash() -> None:
    model = TiedModel()
    assert list_frozen_weights(model) == {"first.weight", "second.weight"}
    hashes = hash_frozen_weights(model)
    assert hashes == {"first.weight": "8852304960645e65c790ab1c20deb2f0"}


def test_a_changed_base_is_refused_by_name() -> None:
    model = TiedModel()
    base = FrozenBase.of(BaseModel("model_name=gpt2", "abc123"), model, ALONE)
    check_same_base(SAVED, base.state_dict(), base)

    with torch.no_grad():
        model.first.weight[0, 0] = 7.0
    changed = FrozenBase.of(BaseModel("model_name=copy", None), model, ALONE)
    message = (
        "model_name=copy: 1 of 1 frozen weights differ from the base of run/checkpoint-3step "
        "(first.weight). Expected the weights that its adapters were trained on: "
        "model_name=gpt2, revision abc123"
    )
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        check_same_base(SAVED, base.state_dict(), changed)


def test_a_checkpoint_with_all_weights_is_refused_with_the_way() -> None:
    """Earlier versions saved the frozen weights of a run with adapters, too."""
    base = FrozenBase("model_name=gpt2", None, {"first.weight": "00"})
    message = (
        "run/checkpoint-3step holds all weights, this run expects adapters and a reference to "
        "their base"
    )
    with pytest.raises(ConfigurationError, match=message) as error:
        check_same_base(SAVED, None, base)
    assert "(model_name=run/checkpoint-3step/model)" in str(error.value)
    check_same_base(SAVED, None, None)
