"""Form without content: a prefix of junk words, or of nothing but what closes a prefix.

A model may gain from there being a prefix at all: it then knows that a document begins here, or
that it is of the kind that has metadata. What it gains from a prefix that says nothing is form.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.records import Document
from bsmeta.metadata.rendering import Rendered, Renderer

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
"""Frequent English words, which any tokenizer of English knows."""


class FormRenderer:
    """Renders documents with a prefix that says nothing of them.

    Args:
        config: How prefixes read.
        with_words: Junk words, as many as fill the characters of the document's own prefix; or
            only what begins and closes a prefix.
    """

    def __init__(self, config: MetadataConfig, *, with_words: bool) -> None:
        self._renderer = Renderer(config)
        self._start, self._end = config.metadata_prefix_start_seq, config.metadata_prefix_sep
        self._with_words = with_words

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """The text behind such a prefix; the text alone where the types make no prefix.

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
            prefix_kinds=own.prefix_kinds[:1],
            lead=own.lead,
            body=document.text,
            types=own.types,
        )


def _junk(prefix: str, room: int) -> str:
    """Words that take at least `room` characters, always the same ones for one prefix."""
    draw = random.Random(xxhash.xxh3_64_intdigest(prefix.encode("utf-8", "surrogatepass")))
    words = ""
    while len(words) < room:
        words += (" " if words else "") + draw.choice(WORDS)
    return words
