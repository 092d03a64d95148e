"""Prompt style: metadata as a user would write it for a model that was never trained on it.

`Title: …; URL: …; Entities: A, B.` before the unchanged text. Local metadata whose values are words
(entities) is listed; markup (html) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import Document, Record
from bsmeta.metadata.rendering import Rendered


def prompt_config(config: MetadataConfig) -> MetadataConfig:
    """The configuration with the separators of prompt style."""
    return replace(config, metadata_sep="; ", metadata_prefix_sep=".", metadata_prefix_start_seq="")


class PromptRenderer:
    """Renders documents in prompt style.

    Args:
        config: The result of `prompt_config`.
    """

    def __init__(self, config: MetadataConfig) -> None:
        self._config = config

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """The document after a sentence with its metadata of these types."""
        config = self._config
        fields = {
            key: text
            for key in config.metadata_list
            if key in types and (text := _field(key, document.records(key)))
        }
        if not fields:
            return Rendered(document.text, body=document.text)
        strings = [text + config.metadata_sep for text in fields.values()]
        strings[-1] = strings[-1].removesuffix(config.metadata_sep) + config.metadata_prefix_sep
        bounds = np.cumsum([0, *map(len, strings)], dtype=np.int32)
        kinds = [1 + config.metadata_list.index(key) for key in fields]
        return Rendered(
            text=document.text,
            prefix="".join(strings),
            prefix_spans=np.stack((bounds[:-1], bounds[1:]), axis=1),
            prefix_kinds=np.array(kinds, np.uint8),
            lead=" ",
            body=document.text,
            types=tuple(fields),
        )


def _field(key: str, records: Sequence[Record]) -> str:
    kind = type_of(key)
    shown = [record for record in records if kind.is_listed or not record.is_local()]
    values = [kind.prompt_value(str(record.value)) for record in shown]
    name = kind.prompt_label or key.replace("_", " ").capitalize()
    return f"{name}: {', '.join(dict.fromkeys(values))}" if values else ""
