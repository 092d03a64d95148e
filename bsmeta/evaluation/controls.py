"""Controls: a document with the metadata of other documents, with form only, or as a prompt.

If a model gains from `url: …` whatever the address is, it gains from the form and not from the
content. A shuffled value is another document's (and may happen to be the same); a wrong value is
another document's and differs from this document's; a matched value is a wrong value of similar
length, so that it takes up a similar share of the context. A prefix of junk words, or only the end
of a prefix, has form without content: its gain is the effect of form, such as the sign that a
document begins here. The prompt style, `Title: …; URL: …; Entities: A, B.` before the unchanged
text, is how a user would write metadata for a model that was never trained on it: markup is left
out, local metadata whose values are words is listed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.evaluation.arms import MATCHED, OWN, SHUFFLED
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer


class Documents(Protocol):
    """Documents by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


class Donors:
    """Chooses the document (the donor) that each metadata type of a document is taken from.

    The documents form a random cycle; each document takes each type from the next document in the
    cycle that has it (so if all documents have all types, all values come from one document).

    Args:
        documents: The held-out documents; read once.
        types: The metadata types.
        seed: Seed of the cycle.
    """

    def __init__(self, documents: Documents, types: Sequence[str], seed: int) -> None:
        self._documents = documents
        self._types = tuple(types)
        self._order = np.random.default_rng(seed).permutation(len(documents))
        self._place = np.argsort(self._order)
        self._digests = np.zeros((len(self._types), len(documents)), dtype=np.uint64)
        self._lengths = np.zeros((len(self._types), len(documents)), dtype=np.int64)
        for index in range(len(documents)):
            document = documents[index]
            for row, key in enumerate(self._types):
                records = document.records(key)
                self._digests[row, index] = _digest(records)
                self._lengths[row, index] = sum(len(str(record.value)) for record in records)

    def dress(self, index: int, document: Document, values: str) -> Document:
        """The document with its own, shuffled, wrong or matched values.

        A type for which no other document can be the donor is left out.
        """
        if values == OWN:
            return document
        records = {}
        for row, key in enumerate(self._types):
            if not document.has(key):
                continue
            donor = self._donor(row, index, values)
            if donor is not None:
                lent = self._documents[donor].records(key)
                records[key] = _lend(document.records(key), lent)
        return Document(document.text, document.url, {k: v for k, v in records.items() if v})

    def _donor(self, row: int, index: int, values: str) -> int | None:
        place = int(self._place[index])
        circle = np.roll(self._order, -place)[1:]  # starts at the next document
        digests = self._digests[row]
        usable = digests[circle] != 0
        if values != SHUFFLED:
            usable &= digests[circle] != digests[index]
        donors = circle[usable]
        if not len(donors):
            return None
        if values == MATCHED:
            distances = np.abs(self._lengths[row, donors] - self._lengths[row, index])
            return int(donors[np.argmin(distances)])
        return int(donors[0])


def _digest(records: Sequence[Record]) -> int:
    """A hash of the values of a type; 0 if there are none."""
    if not records:
        return 0
    values: list[Any] = [(record.value, record.html_attrs) for record in records]
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(values)) or 1


def _lend(own: Sequence[Record], lent: Sequence[Record]) -> list[Record]:
    """The donor's global records, and its local values, in turn, at the document's own spans."""
    local = [record for record in lent if record.is_local()]
    records = [record for record in lent if not record.is_local()]
    for number, record in enumerate(other for other in own if other.is_local() and local):
        source = local[number % len(local)]
        records.append(
            msgspec.structs.replace(record, value=source.value, html_attrs=source.html_attrs)
        )
    return records


WORDS = [
    "about",
    "after",
    "all",
    "also",
    "and",
    "any",
    "are",
    "because",
    "been",
    "before",
    "but",
    "can",
    "could",
    "each",
    "even",
    "first",
    "for",
    "from",
    "good",
    "has",
    "have",
    "how",
    "into",
    "its",
    "just",
    "like",
    "made",
    "make",
    "many",
    "may",
    "more",
    "most",
    "much",
    "must",
    "never",
    "new",
    "not",
    "now",
    "off",
    "one",
    "only",
    "other",
    "our",
    "out",
    "over",
    "own",
    "same",
    "see",
    "she",
    "should",
    "some",
    "such",
    "take",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "this",
    "those",
    "time",
    "two",
    "under",
    "until",
    "upon",
    "very",
    "was",
    "way",
    "well",
    "were",
    "what",
    "when",
    "where",
    "which",
    "while",
    "who",
    "will",
    "with",
    "would",
    "year",
    "you",
]
"""Frequent English words, which are in the vocabulary of any English tokenizer."""


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
