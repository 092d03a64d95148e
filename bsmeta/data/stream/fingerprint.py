"""The fingerprint of a run's data: everything that determines its sequences.

It is saved with checkpoints and prepared data. A run with a different fingerprint refuses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.plan import Phases
from bsmeta.data.text.tokenizer import fingerprint_tokenizer


def collect_fingerprint(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    phases: Phases,
    shards: Mapping[str, Any],
    held_out: str,
) -> dict[str, Any]:
    """Returns everything that determines the sequences of a run, as a dict of JSON types.

    Settings that are off by default are included only if they are used, so that older checkpoints
    and prepared data stay valid.

    Args:
        shards: The fingerprint of the shards (`shards.fingerprint_shards`).
        held_out: The identifier of the held-out data (`held_out.identify_held_out`).
    """
    fingerprint: dict[str, Any] = {
        "seed": seed,
        "num_streams": config.num_streams,
        "window_documents": config.window_documents,
        "packing": config.packing,
        "bad_documents": config.bad_documents,
        "max_document_chars": config.max_document_chars,
        "on_test_overlap": config.on_test_overlap,
        "held_out": held_out,
        "phase_starts": list(phases.starts),
    }

    if config.row_budget == BY_TEXT:
        fingerprint["row_budget"] = {
            "of": config.row_budget,
            "metadata": config.row_metadata_budget,
        }
    if config.columns:
        fingerprint["columns"] = config.columns
    if config.content != "all":
        fingerprint["content"] = config.content
    if config.sources:
        fingerprint["sources"] = [
            {"name": source.name, "weight": source.weight, "columns": source.columns}
            for source in config.sources
        ]

    return fingerprint | {
        "metadata_config": dataclasses.asdict(config.metadata_config),
        "tokenizer": fingerprint_tokenizer(tokenizer),
        "shards": dict(shards),
    }


def complete_saved_fingerprint(saved: dict[str, Any]) -> dict[str, Any]:
    """Adds the metadata settings that are newer than a saved fingerprint, with their defaults.

    Otherwise, they would count as differences from the current fingerprint.
    """
    settings = dataclasses.asdict(MetadataConfig()) | saved["metadata_config"]
    return saved | {"metadata_config": settings}
