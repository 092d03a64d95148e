"""Fingerprint of everything that determines a run's sequences, and the comparison of two of them.

It is saved with checkpoints and prepared data, which are rejected for other data.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import xxhash
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.core.errors import ConfigurationError, differing
from bsmeta.core.files import file_hash
from bsmeta.data.io.files import FileRef
from bsmeta.data.io.shards import validation_path
from bsmeta.data.stream.plan import Phases

log = logging.getLogger(__name__)

NOT_THERE = "not there"


def fingerprint(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    phases: Phases,
    shards: Mapping[str, Any],
    held_out: str,
) -> dict[str, Any]:
    """Everything that determines the sequences of a run; JSON-serializable.

    Args:
        shards: See `shards.shards_fingerprint`.
        held_out: See `held_out_fingerprint`.
    """
    return {
        "seed": seed,
        "num_streams": config.num_streams,
        "window_documents": config.window_documents,
        "packing": config.packing,
        "bad_documents": config.bad_documents,
        "max_document_chars": config.max_document_chars,
        "on_test_overlap": config.on_test_overlap,
        "held_out": held_out,
        "phase_starts": list(phases.starts),
        **({"row_budget": row_budget_fingerprint(config)} if config.row_budget == BY_TEXT else {}),
        **({"columns": config.columns} if config.columns else {}),
        **({"content": config.content} if config.content != "all" else {}),
        **({"sources": sources_fingerprint(config)} if config.sources else {}),
        "metadata_config": dataclasses.asdict(config.metadata_config),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "shards": dict(shards),
    }


def row_budget_fingerprint(config: DataConfig) -> dict[str, Any]:
    """What decides the length of rows whose metadata has room of its own."""
    return {"of": config.row_budget, "metadata": config.row_metadata_budget}


def sources_fingerprint(config: DataConfig) -> list[dict[str, Any]]:
    """What identifies the sources of a mixture, besides their shards."""
    return [
        {"name": source.name, "weight": source.weight, "columns": source.columns}
        for source in config.sources
    ]


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash (xxh3, hexadecimal) of a tokenizer: of a slow one, of its class and vocabulary."""
    if tokenizer.is_fast:
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    return xxhash.xxh3_64_hexdigest(content.encode())


def held_out_fingerprint(config: DataConfig) -> str:
    """Identifies the data held out: a hash of the validation file, or why there is none.

    Raises:
        DataError: If the file is on the Hub, which cannot be reached.
    """
    path = validation_path(config)
    if path is None:
        return "nothing"
    if isinstance(path, FileRef):
        return path.etag
    if not os.path.exists(path):
        return NOT_THERE
    return file_hash(path)


def begun(fingerprint: Mapping[str, Any], done: int) -> dict[str, Any]:
    """The fingerprint without the phases that begin after the first `done` sequences."""
    starts = [start for start in fingerprint["phase_starts"] if start < done]
    return {**fingerprint, "phase_starts": starts}


def check_fingerprint(saved: dict[str, Any], current: dict[str, Any], on_changed: str) -> None:
    """Compares the saved fingerprint with the current one.

    Args:
        on_changed: `error` raises on differences, `warn` logs them.
    """
    differences = "\n".join(differing(saved, current, "in the checkpoint"))
    if not differences:
        return
    if on_changed == "warn":
        log.warning("the run continues with other data than the checkpoint's:\n%s", differences)
        return
    raise ConfigurationError(
        "the checkpoint is of a run on other data, which cannot be continued exactly "
        f"(data_config.on_changed_data=warn continues nevertheless):\n{differences}"
    )
