"""What decides the sequences of a run, and the words for how two runs differ in it.

Saved with checkpoints and with prepared data, neither of which is used for other data.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import xxhash
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.data.plan import Phases

log = logging.getLogger(__name__)


def fingerprint(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    phases: Phases,
    shards: Mapping[str, Any],
) -> dict[str, Any]:
    """What decides the sequences of a run; JSON-able.

    Args:
        config: Where documents come from, and how they become sequences.
        tokenizer: The tokenizer.
        seed: Seed of the run.
        phases: When the metadata's schedule goes on to its next phase.
        shards: See `shards_fingerprint`.
    """
    return {
        "seed": seed,
        "num_streams": config.num_streams,
        "window_documents": config.window_documents,
        "packing": config.packing,
        "bad_documents": config.bad_documents,
        "phase_starts": list(phases.starts),
        "metadata_config": dataclasses.asdict(config.metadata_config),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "shards": dict(shards),
    }


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash (xxh3, hexadecimal) of a fast tokenizer."""
    return xxhash.xxh3_64_hexdigest(tokenizer.backend_tokenizer.to_str().encode())


def check_fingerprint(saved: dict[str, Any], current: dict[str, Any], on_changed: str) -> None:
    """Compares what decides the sequences in the checkpoint and now.

    Args:
        saved: The fingerprint in the checkpoint.
        current: That of this run.
        on_changed: `error` refuses differences, `warn` logs them.

    Raises:
        ConfigurationError: Naming each difference.
    """
    differences = "\n".join(differing("", saved, current, "in the checkpoint"))
    if not differences:
        return
    if on_changed == "warn":
        log.warning("the run goes on with other data than the checkpoint's:\n%s", differences)
        return
    raise ConfigurationError(
        "the checkpoint is of a run on other data, which cannot be continued exactly "
        f"(data_config.on_changed_data=warn goes on nevertheless):\n{differences}"
    )


def differing(name: str, saved: Any, current: Any, where: str) -> Iterator[str]:
    """Lines that name the leaves in which two nested dicts differ.

    Args:
        name: Dotted name of the dicts; empty at the root.
        saved: One of them.
        current: The other, of this run.
        where: Where `saved` stands, in words.
    """
    if isinstance(saved, dict) and isinstance(current, dict):
        for part in sorted({*saved, *current}):
            below = f"{name}.{part}" if name else str(part)
            pair = saved.get(part, "absent"), current.get(part, "absent")
            yield from differing(below, *pair, where)
    elif saved != current:
        yield f"  {name}: {saved} {where}, {current} now"
