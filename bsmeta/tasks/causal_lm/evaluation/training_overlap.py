"""Refuses to evaluate a model on a file that it was trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig, build_source_configs, iterate_train_entries
from bsmeta.core.errors import DataError, UserError
from bsmeta.core.parsing import parse_json
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import measure_file
from bsmeta.data.io.shards import (
    Shard,
    add_sample_hashes,
    find_validation_path,
    fingerprint_shards,
    list_shards,
)
from bsmeta.tasks.checkpoints import Location


def check_not_trained_on(data: DataConfig, location: Location, run_config: CausalLMConfig) -> None:
    """Refuses a held-out file that is one of the run's training shards.

    The training shards are listed by a checkpoint of the run, or match its configuration on this
    machine. Local shards are identified by their content, shards on the Hub by name and size,
    objects in buckets by their ETag.

    Args:
        data: The data configuration of the evaluation.
        run_config: The configuration of the model's run, without changes by the evaluation.

    Raises:
        DataError: If the held-out file was trained on.
    """
    path = find_validation_path(data)
    if not path or not (isinstance(path, FileRef) or os.path.isfile(path)):
        return  # reported when it is read

    held_out = Shard(os.path.basename(str(path)), path, measure_file(path))
    content = _identify_content(held_out)
    matching_names: list[str] = []
    for name, listed_content in _list_checkpoint_shards(location).items():
        has_same_name = os.path.basename(name) == held_out.name
        # A shard of the Hub is identified by its size alone: then the names must agree, too.
        if listed_content == content and (has_same_name or isinstance(listed_content, dict)):
            matching_names.append(name)
    for shard in _list_local_shards(run_config.data_config):
        if shard.size == held_out.size and _identify_content(shard) == content:
            matching_names.append(str(shard.path))

    if matching_names:
        run_file = run_config.data_config.validation_file
        suggestion = f", such as validation_file={run_file}" if run_file else ""
        raise DataError(
            f"validation_file={path}: the run of checkpoint={location.name} was trained on it (as "
            f"{matching_names[0]}); expected a file that it was not trained on{suggestion}"
        )


def _identify_content(shard: Shard) -> Any:
    """Returns a shard's entry in the fingerprint of a run: its size, and a hash if it is local."""
    return fingerprint_shards(add_sample_hashes([shard]))[shard.name]


def _list_checkpoint_shards(location: Location) -> dict[str, Any]:
    """Returns the fingerprints of the training shards in a checkpoint, by name; {} if unknown."""
    folders = [Path(location.model).parent, Path(location.name)]
    if location.run_folder is not None:
        folders += sorted(location.run_folder.glob("checkpoint-*step"))
    for folder in folders:
        try:
            state = parse_json((folder / "data_state.json").read_text(encoding="utf-8"))
            return dict(state["fingerprint"]["shards"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _list_local_shards(data: DataConfig) -> list[Shard]:
    """Returns the training shards of the configuration, if all of them are local files."""
    if any("://" in entry for _, entry in iterate_train_entries(data)):
        return []
    shards: list[Shard] = []
    try:
        for source in build_source_configs(data).values():
            if source.train_file:
                shards += list_shards(source)
    except UserError:  # they were moved or deleted
        return []
    return shards
