"""Checks that a held-out file was not part of the training data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import SCHEME, DataConfig
from bsmeta.config.errors import DataError, UserError
from bsmeta.data.io.files import size_of
from bsmeta.data.io.hub import FileRef
from bsmeta.data.io.shards import (
    Shard,
    entries_of,
    list_shards,
    shards_fingerprint,
    validation_path,
)
from bsmeta.evaluation.checkpoints import Location


def check_not_trained_on(data: DataConfig, location: Location, train: CausalLMConfig) -> None:
    """Reject a held-out file that is one of the run's training shards.

    The shards are those that a checkpoint of the run lists, and those in its configuration that
    still exist on this machine. Local shards are identified by their content, shards on the Hub by
    name and size.

    Args:
        data: The data configuration of the evaluation.
        location: The model.
        train: The configuration of its run, without the changes that the evaluation makes.

    Raises:
        DataError: The file is a training shard; the message names it.
    """
    path = validation_path(data)
    if not path or not (isinstance(path, FileRef) or os.path.isfile(path)):
        return  # reported when it is read
    own = Shard(os.path.basename(str(path)), path, size_of(path))
    content = _content(own)
    same = [
        name
        for name, listed in _listed_by_checkpoint(location).items()
        if listed == content and (os.path.basename(name) == own.name or isinstance(listed, dict))
    ]
    same += [
        str(shard.path)
        for shard in _on_this_machine(train)
        if shard.size == own.size and _content(shard) == content
    ]
    if same:
        raise DataError(
            f"validation_file={path}: the run of checkpoint={location.name} was trained on it (as "
            f"{same[0]}); expected a file that it was not trained on, such as "
            f"validation_file={train.data_config.validation_file}"
        )


def _content(shard: Shard) -> Any:
    """A shard's entry in the fingerprint of a run: its size, and a hash if it is local."""
    return shards_fingerprint([shard])[shard.name]


def _listed_by_checkpoint(location: Location) -> dict[str, Any]:
    """Training shards and their fingerprints as listed by a checkpoint of the run; {} if none."""
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


def _on_this_machine(train: CausalLMConfig) -> list[Shard]:
    """The training shards of the configuration, if all of them are local files."""
    data = train.data_config
    if not data.train_file or any(entry.startswith(SCHEME) for entry in entries_of(data)):
        return []
    try:
        return list_shards(data)
    except UserError:  # they were moved or deleted
        return []
