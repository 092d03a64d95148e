"""Controls: a document with form only, or with its metadata as a prompt.

If a model gains from `url: …` whatever the address is, it gains from the form and not from the
content. Values of other documents (`bsmeta.metadata.substitutes`) show what the content is worth. A
prefix of junk words, or only the end of a prefix, has form without content: its gain is the effect
of form, such as the sign that a document begins here. The prompt style, `Title: …; URL: …;
Entities: A, B.` before the unchanged text, is how a user would write metadata for a model that was
never trained on it: markup is left out, local metadata whose values are words is listed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.metadata.substitutes import WORDS


class FormRenderer:
    """Renders documents with a prefix that has no information about them.

    Args:
        config: The format of prefixes.
        with_words: Whether to fill the prefix with junk words, to the length of the document's own
            prefix; otherwise it has only the start and end of a prefix.
    """

    def __init__(self, config: MetadataConfig, *, with_words: bool) -> None:
        self._renderer = Renderer(config)
        self._start, self._end = config.metadata_prefix_start_seq, config.metadata_prefix_sep
        self._with_words = with_words

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """The text after such a prefix; the text alone if the types produce no prefix.

        Local metadata is left out: it is content.
        """
        own = self._renderer.render(document, types)
        room = len(own.prefix) - len(self._start) - len(self._end)
        words = _junk(own.prefix, room) if self._with_words else ""
        prefix = (self._start + words + self._end).lstrip()
        if not own.prefix or not prefix:
            return Rendered(document.text, body=document.text)
        return Rendered(
            text=document.text,
            prefix=prefix,
            prefix_spans=np.array([[0, len(prefix)]], np.int32),
            prefix_token_types=own.prefix_token_types[:1],
            lead=own.lead,
            body=document.text,
            types=own.types,
        )


def _junk(prefix: str, room: int) -> str:
    """Random words of at least `room` characters in total, always the same for the same prefix."""
    draw = random.Random(xxhash.xxh3_64_intdigest(prefix.encode("utf-8", "surrogatepass")))
    words = ""
    while len(words) < room:
        words += (" " if words else "") + draw.choice(WORDS)
    return words


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
        token_types = [1 + config.metadata_list.index(key) for key in fields]
        return Rendered(
            text=document.text,
            prefix="".join(strings),
            prefix_spans=np.stack((bounds[:-1], bounds[1:]), axis=1),
            prefix_token_types=np.array(token_types, np.uint8),
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
