"""Check the first documents before a run for the metadata that it should train on.

A type that no document has is not an error (`metadata_list` may name more types than a data set
has), but with a misspelled type the run would silently train on text alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import UserError
from bsmeta.config.metadata import phase_configs
from bsmeta.data.io.lines import first_lines
from bsmeta.data.io.shards import entries_of, list_shards
from bsmeta.metadata.columns import UNREADABLE
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument

DOCUMENTS = 64
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RECORDS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None)
_NAME = msgspec.json.Decoder(str)


def missing_types(config: DataConfig) -> list[str]:
    """A message about the types of `metadata_list` that none of the first documents has.

    Empty if there are none, or if the shards are not on a local disk. Shards that cannot be read
    are ignored here: the run itself reports them.
    """
    metadata = config.metadata_config
    phases = phase_configs(metadata)
    wanted = {
        name for phase in phases if phase.metadata_probability > 0 for name in phase.metadata_list
    }
    if not wanted or config.prepared:
        return []
    try:
        if any("://" in entry for entry in entries_of(config)):
            return []  # only the run itself requests files from the Hub
        shards = list_shards(config)
        lines = first_lines(shards[0].path, DOCUMENTS)
    except (UserError, OSError, EOFError):
        return []
    decoder = DocumentDecoder(metadata)
    missing = [
        name
        for name in metadata.metadata_list
        if name in wanted and not type_of(name).always_present
    ]
    for line in lines:
        try:
            document = decoder.decode(line)
        except BadDocument:
            continue
        missing = [name for name in missing if not document.has(name)]
    if not missing:
        return []
    whole = "; it would train on text alone" if len(missing) == len(metadata.metadata_list) else ""
    return [
        f"none of the first {len(lines)} documents of {shards[0].name} has {', '.join(missing)} "
        f"(metadata_list){whole}. Their columns: {', '.join(_columns(lines)) or 'none'}"
    ]


def _columns(lines: Sequence[bytes]) -> list[str]:
    """Names of the metadata types in some lines, as columns and in lists of records."""
    found: set[str] = set()
    for line in lines:
        try:
            row = _KEYS.decode(line)
            found |= {name.removeprefix("metadata_") for name in row if name[:9] == "metadata_"}
            for record in _RECORDS.decode(row.get("metadata", msgspec.Raw(b"null"))) or ():
                found.add(_NAME.decode(record["key"]))
        except (*UNREADABLE, KeyError):
            continue
    return sorted(found)
