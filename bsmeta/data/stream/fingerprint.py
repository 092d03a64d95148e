"""The fingerprint of a run's sequences: everything that determines them.

It is saved with checkpoints and prepared data, which are refused for other data.
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
    """Collects everything that determines the sequences of a run; JSON-serializable.

    Settings that are off by default are only included when used, so that older checkpoints and
    prepared data stay valid.

    Args:
        shards: See `shards.fingerprint_shards`.
        held_out: See `identify_held_out`.
    """
    facts: dict[str, Any] = {
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

    if config.row_budget == BY_TEXT:  # settings that determine the length of rows
        facts["row_budget"] = {"of": config.row_budget, "metadata": config.row_metadata_budget}
    if config.columns:
        facts["columns"] = config.columns
    if config.content != "all":
        facts["content"] = config.content
    if config.sources:
        facts["sources"] = [
            {"name": source.name, "weight": source.weight, "columns": source.columns}
            for source in config.sources
        ]

    return facts | {
        "metadata_config": dataclasses.asdict(config.metadata_config),
        "tokenizer": fingerprint_tokenizer(tokenizer),
        "shards": dict(shards),
    }


def complete_saved_fingerprint(saved: dict[str, Any]) -> dict[str, Any]:
    """Completes a saved fingerprint: newer metadata settings get their defaults, so no effect."""
    settings = dataclasses.asdict(MetadataConfig()) | saved["metadata_config"]
    return saved | {"metadata_config": settings}
