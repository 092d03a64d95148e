"""The parts of a request: a document by name, and types that replace the drawing of metadata.

Used by `selection`, before any document is read.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Sequence
from typing import Any

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.io.shards import Shard
from bsmeta.metadata.processors import column_keys, type_of

NAMES_SHOWN = 5


def with_types(metadata: MetadataConfig, types: Sequence[str]) -> MetadataConfig:
    """The configuration under which every document gets exactly those of `types` that it has.

    Raises:
        ConfigurationError: Types are not in `metadata_list`; the message names them.
    """
    known = metadata.metadata_list
    unknown = [name for name in types if name not in known]
    if unknown:
        keys = column_keys()
        hints = [f"{name} is the column of {keys[name]}" for name in unknown if name in keys]
        raise ConfigurationError(
            f"types={list(types)}: {', '.join(unknown)} not in data_config.metadata_config."
            f"metadata_list; expected some of {', '.join(known)}, or add to that list"
            + "".join(f" ({hint})" for hint in hints)
        )
    rates: dict[str, Any] = {
        rate: 1.0 for name in known if (rate := type_of(name).sample_rate_key) is not None
    }
    return dataclasses.replace(
        metadata,
        schedule=[],
        metadata_probability=1.0 if types else 0.0,
        random_sample_metadata=False,
        metadata_dropout={name: 1.0 for name in known if name not in types},
        **rates,
    )


def find(document: str, shards: Sequence[Shard], data: DataConfig) -> tuple[int, int]:
    """The index of a document's shard in the list, and the document's number in the shard.

    Raises:
        ConfigurationError: The name is not `<shard>:<number>`, or training has no such shard.
    """
    names = [shard.name for shard in shards]
    parts = re.fullmatch(r"(.+):([0-9]{1,15})", document)
    if parts is None:
        raise ConfigurationError(
            f"document={document}: expected <shard>:<number>, such as {names[0]}:0"
        )
    name = parts[1]
    if name in names:
        return names.index(name), int(parts[2])
    problem = f"document={document}: training reads no shard of the name {name}"
    if data.validation_file and name == os.path.basename(data.validation_file):
        raise ConfigurationError(
            f"{problem}: it is the held-out file; data_config.validation_file=null would not "
            "leave it out"
        )
    near = difflib.get_close_matches(name, names, n=NAMES_SHOWN, cutoff=0.0)
    more = f" or {len(names) - len(near)} others" if len(names) > len(near) else ""
    raise ConfigurationError(
        f"{problem}; expected {', '.join(near)}{more} (data_config.train_file={data.train_file})"
    )


def no_such_document(shard: Shard, number: int, count: int) -> str:
    """The error message for a number beyond the end of a shard of `count` documents."""
    if not count:
        return f"document={shard.name}:{number}: the shard has no documents"
    return (
        f"document={shard.name}:{number}: the shard has {count} documents; expected a number "
        f"from 0 to {count - 1}"
    )
