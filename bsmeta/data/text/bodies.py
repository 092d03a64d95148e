"""The tokens of a document's body, in two ways: encoded as one string, or text and tags apart.

As one string, the lead (the space after a prefix) and the inserted tags merge with the characters
of the text next to them, as they do in the published models. Apart (`row_budget=text`), the text
has the same tokens whatever metadata is around and in it: lead and tags are encoded by themselves
and inserted between its tokens. A tag whose position is inside a token (usually between a space and
the word after it, which share one) moves to the beginning of that token; the order of tags is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from bsmeta.data.text.tokens import NO_IDS, TextTokenizer, Tokens, mark_spans, text_positions
from bsmeta.metadata.rendering import Rendered

CACHED_STRINGS = 50_000
"""Inserted strings whose tokens are remembered: most tags recur in every document."""

NO_PARTS = np.zeros((0, 2), np.int32)

Places = tuple[np.ndarray, np.ndarray]
"""The characters of the original text that tokens cover: starts and ends, int32 [n] each."""


@dataclass(slots=True)
class Body:
    """Lead and body of a document, n tokens.

    Attributes:
        ids: int32[n].
        token_types: uint8[n], 0 for text and lead, otherwise 1 + index in `metadata_list`.
        run: int32[n], equal for the tokens of one inserted string (or of several that share a
            token), -1 for text.
        lead: Number of leading tokens that only join the prefix to the body.
        locate: Computes the characters of the original text that each token covers.
    """

    ids: np.ndarray
    token_types: np.ndarray
    run: np.ndarray
    lead: int
    locate: Callable[[], Places]


class JointBodies:
    """Encodes lead and body of each document as one string."""

    def __init__(self, tokenizer: TextTokenizer, takes_written_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._takes_written_tokens = takes_written_tokens

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """The bodies of documents, in one call of the tokenizer."""
        texts = [document.lead + document.body for document in rendered]

        def own(number: int) -> np.ndarray:
            return own_parts(rendered[number])

        tokens = self._tokenizer.encode(texts, None if self._takes_written_tokens else own)
        return [self._body(*pair) for pair in zip(rendered, tokens, strict=True)]

    def _body(self, rendered: Rendered, tokens: Tokens) -> Body:
        token_types, run = plain_tokens(len(tokens.ids))
        if len(rendered.spans):
            token_types, run = token_types.copy(), run.copy()
            places = in_body(rendered, tokens)
            mark_spans(token_types, run, *places, rendered.spans, rendered.span_token_types)
        lead = tokens.within(rendered.lead) if rendered.lead else 0
        return Body(tokens.ids, token_types, run, lead, partial(locate, rendered, tokens))


class SeparateBodies:
    """Encodes the text of each document by itself, and inserts lead and tags between its tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, bool], np.ndarray] = {}

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """The bodies of documents; texts, and strings that are not known yet, in a call each."""
        tokens = self._tokenizer.encode([document.text for document in rendered], _nothing_own)
        tags = [inserted_strings(document) for document in rendered]
        self._learn({pair for strings in tags for pair in strings})
        bodies = [self._body(*parts) for parts in zip(rendered, tokens, tags, strict=True)]
        if len(self._known) > CACHED_STRINGS:
            self._known.clear()
        return bodies

    def _learn(self, strings: set[tuple[str, bool]]) -> None:
        """Encodes new strings; only those of the configuration may contain special tokens."""
        new = [pair for pair in strings if pair not in self._known]
        if not new:
            return

        def own(number: int) -> np.ndarray:
            string, is_own = new[number]
            return np.array([[0, len(string)]], np.int32) if is_own else NO_PARTS

        encoded = self._tokenizer.encode([string for string, _ in new], own)
        self._known |= {pair: tokens.ids for pair, tokens in zip(new, encoded, strict=True)}

    def _body(
        self, rendered: Rendered, tokens: Tokens, strings: Sequence[tuple[str, bool]]
    ) -> Body:
        inserted = [self._known[pair] for pair in strings]
        lead = len(inserted[0]) if rendered.lead else 0
        token_types, run = plain_tokens(len(tokens.ids))
        if not inserted:
            return Body(tokens.ids, token_types, run, 0, tokens.characters)
        lengths = np.fromiter(map(len, inserted), np.int64, len(inserted))
        before = np.zeros(len(inserted), np.int64)  # text tokens before each string
        tags = slice(1 if rendered.lead else 0, None)
        starts = text_positions(rendered.spans[:, 0], rendered.spans)
        before[tags] = places_between(tokens, starts)
        at = before.repeat(lengths) + np.arange(lengths.sum())
        size = len(tokens.ids) + len(at)
        is_text = np.ones(size, np.bool_)
        is_text[at] = False
        ids = np.empty(size, np.int32)
        ids[is_text] = tokens.ids
        ids[at] = np.concatenate(inserted)
        token_types, run = np.zeros(size, np.uint8), np.full(size, -1, np.int32)
        token_types[at[lead:]] = rendered.span_token_types.repeat(lengths[tags])
        run[at[lead:]] = np.arange(len(rendered.spans), dtype=np.int32).repeat(lengths[tags])
        return Body(ids, token_types, run, lead, partial(_places_of, tokens, is_text))


def inserted_strings(rendered: Rendered) -> list[tuple[str, bool]]:
    """Lead and tags of a document in order, each with whether it is from the configuration."""
    strings = [(rendered.lead, True)] if rendered.lead else []
    if len(rendered.spans):
        body, own = rendered.body, set(rendered.own[:, 0].tolist())
        strings += [(body[start:end], start in own) for start, end in rendered.spans.tolist()]
    return strings


def places_between(tokens: Tokens, positions: np.ndarray) -> np.ndarray:
    """The number of tokens before each position of their text (int64).

    A position inside a token, or inside a character that several tokens share, moves back to the
    nearest boundary between two tokens and two characters.
    """
    starts, ends = tokens.characters()
    whole = np.ones(len(ends) + 1, np.bool_)
    whole[1:-1] = starts[1:] >= ends[:-1]
    boundaries = np.flatnonzero(whole)
    places = ends.searchsorted(positions, side="right")
    return boundaries[boundaries.searchsorted(places, side="right") - 1]


def own_parts(rendered: Rendered) -> np.ndarray:
    """The parts of lead and body that come from the configuration (int[m, 2])."""
    lead = len(rendered.lead)
    return np.concatenate(([[0, lead]], rendered.own + lead)) if lead else rendered.own


def in_body(rendered: Rendered, tokens: Tokens) -> Places:
    """Characters of the body that its tokens cover; tokens of the lead cover none."""
    lead = len(rendered.lead)
    starts, ends = tokens.characters()
    return (np.maximum(starts - lead, 0), np.maximum(ends - lead, 0)) if lead else (starts, ends)


def locate(rendered: Rendered, tokens: Tokens) -> Places:
    """Characters of the original text that the tokens of lead and body cover."""
    starts, ends = (text_positions(side, rendered.spans) for side in in_body(rendered, tokens))
    return starts, ends


def _places_of(tokens: Tokens, is_text: np.ndarray) -> Places:
    """Characters that text tokens cover, among tokens that cover none, at the text after them."""
    starts, ends = tokens.characters()
    after = np.append(starts, ends[-1:] if len(ends) else 0).astype(np.int32)
    first = after[is_text.cumsum() - is_text]
    last = first.copy()
    last[is_text] = ends
    return first, last


def _nothing_own(_: int) -> np.ndarray:
    return NO_PARTS


def plain_tokens(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Types and runs of tokens without metadata; slices of shared read-only arrays."""
    token_types, run = _plain_tokens(max(1 << (length - 1).bit_length(), 1 << 12))
    return token_types[:length], run[:length]


@lru_cache
def _plain_tokens(size: int) -> tuple[np.ndarray, np.ndarray]:
    arrays = np.zeros(size, np.uint8), np.full(size, -1, np.int32)
    for array in arrays:
        array.flags.writeable = False
    return arrays


NOTHING = (NO_IDS, np.zeros(0, np.uint8))
"""Ids and token types of nothing."""
