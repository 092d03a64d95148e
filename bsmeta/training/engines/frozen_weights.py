"""Frozen weights of a pretrained model: referenced in a checkpoint by hash, not saved with it.

A run that trains adapters (`lora.rank`) never changes the weights of its base model, which are
nearly all of its bytes. Its checkpoints hold the trained weights, the optimizer's state for them,
and the hash of each frozen weight. A resumed run loads the base again from its own `model_name`,
and refuses one whose hashes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import xxhash
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import report_progress
from bsmeta.training.checkpoints.checkpoint import Checkpoint
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import BaseModel

_MAX_NAMES_SHOWN = 3


@dataclass(frozen=True)
class FrozenBase:
    """The base model of a run, as a checkpoint references it.

    Attributes:
        setting: Key and value that name the base: `model_name=gpt2`.
        revision: Its commit on the Hub; None for a folder.
        hashes: XXH3 (128 bits) of the values of each frozen weight, by name.
    """

    setting: str
    revision: str | None
    hashes: dict[str, str]

    @classmethod
    def of(cls, base: BaseModel, model: nn.Module, processes: Processes) -> FrozenBase:
        """Hashes the frozen weights of a model, before an engine takes it. All ranks call it.

        Raises:
            ConfigurationError: If the ranks have loaded different weights.
        """
        hashes = hash_frozen_weights(model)
        for rank, hashes_of_rank in enumerate(processes.gather(hashes)):
            differing_names = _list_differing_names(hashes, hashes_of_rank)
            if differing_names:
                raise ConfigurationError(
                    f"{base.setting}: rank {processes.rank} and rank {rank} have loaded different "
                    f"weights ({_list_some(differing_names)}); see that all machines have the same "
                    "files"
                )
        return cls(base.setting, base.revision, hashes)

    def state_dict(self) -> dict[str, Any]:
        """Returns the value of `base` in `trainer_state.json`."""
        return asdict(self)


def list_frozen_weights(model: nn.Module) -> frozenset[str]:
    """Returns the names of frozen weights in the state dict; a shared weight has several."""
    return frozenset(
        name
        for name, weight in model.named_parameters(remove_duplicate=False)
        if not weight.requires_grad
    )


def hash_frozen_weights(model: nn.Module) -> dict[str, str]:
    """Hashes the values of each frozen weight of a model, shared ones once.

    All ranks call it, because they gather weights that ZeRO-3 has partitioned.
    """
    hashes = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            continue
        hashes[name] = _hash_whole_weight(weight)
        report_progress()
    return hashes


def _hash_whole_weight(weight: nn.Parameter) -> str:
    """Hashes the values of a weight, which ZeRO-3 may have partitioned."""
    if not hasattr(weight, "ds_id"):
        return _hash_values(weight)

    import deepspeed  # slow, and only needed for ZeRO-3

    with deepspeed.zero.GatheredParameters([weight]):
        return _hash_values(weight)


def _hash_values(weight: torch.Tensor) -> str:
    """Hashes the bytes of a tensor in the order of its elements."""
    values = weight.detach().cpu().contiguous().reshape(-1)
    return xxhash.xxh3_128_hexdigest(values.view(torch.uint8).numpy().data)


def check_same_base(
    saved: Checkpoint, saved_base: dict[str, Any] | None, base: FrozenBase | None
) -> None:
    """Refuses a checkpoint whose frozen weights are not the ones that this run has loaded.

    Args:
        saved_base: `base` of the checkpoint's `trainer_state.json`.
        base: The base model of this run; None if its checkpoints hold all weights.

    Raises:
        ConfigurationError: If the weights differ, or only one of the two references a base.
    """
    if base is None and saved_base is None:
        return
    if base is None or saved_base is None:
        contents = "all weights" if saved_base is None else "no weights of its base model"
        expected = "adapters and a reference to their base" if base else "all weights"
        raise ConfigurationError(
            f"{saved.folder} holds {contents}, this run expects {expected}; resume with the "
            "version of bsmeta and the lora.rank that saved it, or begin a new run in another "
            f"out_dir with its weights (model_name={saved.folder}/model)"
        )

    reference = FrozenBase(**saved_base)
    differing_names = _list_differing_names(reference.hashes, base.hashes)
    if differing_names:
        revision = "" if reference.revision is None else f", revision {reference.revision}"
        raise ConfigurationError(
            f"{base.setting}: {len(differing_names)} of {len(reference.hashes)} frozen weights "
            f"differ from the base of {saved.folder} ({_list_some(differing_names)}). Expected the "
            f"weights that its adapters were trained on: {reference.setting}{revision}, or a copy "
            "of them; or begin a new run in another out_dir"
        )


def _list_differing_names(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Lists the names whose hashes differ, or that only one of the two has."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _list_some(names: list[str]) -> str:
    """Lists the first names."""
    more = ", …" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + more
