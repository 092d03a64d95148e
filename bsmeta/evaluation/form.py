"""Form without content: a prefix of junk words, or only the end of a prefix.

A model may gain from the mere presence of a prefix, which shows that a document begins here, or
that it is a document with metadata. The gain from a prefix without content is the effect of form.
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
            prefix_kinds=own.prefix_kinds[:1],
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
