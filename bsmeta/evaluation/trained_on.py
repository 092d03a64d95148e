"""Held-out or not: a file that the run was trained on says nothing about other text."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError, UserError
from bsmeta.config.schema import TrainConfig
from bsmeta.data.fingerprint import file_hash
from bsmeta.data.hub_paths import SCHEME, HubPath
from bsmeta.data.remote import size_of
from bsmeta.data.shards import Shard, entries_of, list_shards, validation_path
from bsmeta.evaluation.checkpoints import Location


def check_not_trained_on(data: DataConfig, location: Location, train: TrainConfig) -> None:
    """Refuses a held-out file that was among the training shards of this very run.

    The shards are those that a checkpoint of the run lists, by name and size, and those that its
    configuration names and that are still on this machine, by content, too.

    Args:
        data: What is evaluated.
        location: The model.
        train: The configuration of its run, without what the evaluation changes.

    Raises:
        DataError: Naming the shard.
    """
    path = validation_path(data)
    if not path or not (isinstance(path, HubPath) or os.path.isfile(path)):
        return  # named when it is read
    size, name = size_of(path), os.path.basename(path)
    listed = _listed_by_checkpoint(location)
    same = [one for one in listed if os.path.basename(one) == name and listed[one] == size]
    same += [shard.path for shard in _on_this_machine(train) if _is_same(shard, path, size)]
    if same:
        raise DataError(
            f"validation_file={path}: the run of checkpoint={location.name} was trained on it (as "
            f"{same[0]}); expected a file that it was not trained on, such as "
            f"validation_file={train.data_config.validation_file}"
        )


def _listed_by_checkpoint(location: Location) -> dict[str, int]:
    """Training shards and their sizes, as a checkpoint of the run lists them; {} without one."""
    folders = [Path(location.model).parent, Path(location.name)]
    if location.run_folder is not None:
        folders += sorted(location.run_folder.glob("checkpoint-*step"))
    for folder in folders:
        try:
            state = json.loads((folder / "data_state.json").read_text(encoding="utf-8"))
            return dict(state["fingerprint"]["shards"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _on_this_machine(train: TrainConfig) -> list[Shard]:
    """The training shards that the configuration names, where all of them are local files."""
    data = train.data_config
    if not data.train_file or any(entry.startswith(SCHEME) for entry in entries_of(data)):
        return []
    try:
        return list_shards(data)
    except UserError:  # they lie elsewhere, or are gone
        return []


def _is_same(shard: Shard, path: str, size: int) -> bool:
    if shard.size != size or isinstance(path, HubPath):
        return False
    return os.path.samefile(shard.path, path) or file_hash(shard.path) == file_hash(path)
