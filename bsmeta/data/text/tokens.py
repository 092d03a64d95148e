"""Encodes texts into token ids: plain texts with the characters of tokens, and bodies with tags.

In byte-level BPE (GPT-2, Llama 3, Qwen, ...) the tokens of a text are its bytes cut into parts, so
the characters of tokens follow from cumulative sums of their byte lengths. Other tokenizers report
their own offsets, which `word_cache` caches with the words.

The body of a document is encoded in one of two ways. If it is encoded as one string, the lead (the
space after a prefix) and the inserted tags merge with the adjacent characters of the text, as in
the published models. If it is encoded separately (`row_budget=text`), the text has the same tokens
regardless of the metadata around and in it: lead and tags are encoded by themselves, and inserted
between the tokens of the text. A tag whose position is inside a token (usually between a space and
the word after it, which share a token) moves to the beginning of that token; the order of tags is
kept.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import (
    PROBE,
    choose_backend,
    compute_byte_lengths,
    make_character_backend,
)
from bsmeta.data.text.word_cache import Characters
from bsmeta.metadata.rendering import Rendered

FindParts = Callable[[int], np.ndarray]
"""Returns the spans of selected parts of a text, by the index of the text: int[m, 2], sorted."""

MAX_CACHED_STRINGS = 50_000
"""Maximum number of inserted strings whose tokens are cached; most tags recur in many documents."""

NO_IDS = np.zeros(0, np.int32)
NO_PARTS = np.zeros((0, 2), np.int32)

NO_TOKENS = (NO_IDS, np.zeros(0, np.uint8))
"""The ids and token types of no tokens."""


class Tokens:
    """The tokens of a text.

    Args:
        ids: int32[n], the token ids.
        text: The text.
        lengths: The byte length of each vocabulary entry, from which the characters of each token
            are computed; None if `characters` are given.
        characters: The characters of each token, if the tokenizer has reported them.

    Attributes:
        ids: int32[n], the token ids.
    """

    __slots__ = ("_characters", "_lengths", "_text", "ids")

    def __init__(
        self,
        ids: np.ndarray,
        text: str,
        lengths: np.ndarray | None = None,
        characters: Characters | None = None,
    ) -> None:
        self.ids = ids
        self._text = text
        self._lengths = lengths
        self._characters = characters

    def locate(self) -> Characters:
        """Returns the start and the end of each token in the text, in characters (both int32[n]).

        A character that is encoded by several tokens is in the span of each of them.
        """
        if self._characters is None:
            self._characters = self._compute_characters()
        return self._characters

    def _compute_characters(self) -> Characters:
        """Computes the characters of the tokens from their byte lengths."""
        assert self._lengths is not None
        lengths = self._lengths.take(self.ids)
        ends = lengths.cumsum(dtype=np.int32)
        starts = ends - lengths
        if self._text.isascii() or not len(ends):
            return starts, ends

        # All bytes except continuation bytes (10xxxxxx) begin a character.
        text_bytes = np.frombuffer(self._text.encode(), np.uint8)
        begins_character = text_bytes.view(np.int8) >= -0x40
        num_characters = begins_character.cumsum(dtype=np.int32)  # up to each byte, inclusive
        return num_characters.take(starts) - 1, num_characters.take(ends - 1)

    def count_within(self, beginning: str) -> int:
        """Counts the tokens that lie entirely within a beginning of the text."""
        if self._lengths is None:
            _, ends = self.locate()
            return int(ends.searchsorted(len(beginning), side="right"))

        size = len(beginning.encode())
        ends = self._lengths[self.ids[:size]].cumsum()  # every token has at least one byte
        return int(ends.searchsorted(size, side="right"))


class SpecialTokens:
    """Finds special tokens in encoded texts, and encodes texts with special tokens in some parts.

    Args:
        tokenizer: The tokenizer, which is copied.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._text_tokenizer.encode_special_tokens = True  # encodes them as text

        added = tokenizer.get_added_tokens_decoder().items()
        self._ids = {token.content: token_id for token_id, token in added if token.special}
        max_id = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        self._is_special = np.zeros(max_id + 1, np.bool_)
        self._is_special[list(self._ids.values())] = True
        self._min_special_id = min(self._ids.values(), default=max_id + 1)

        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, texts: Sequence[Tokens]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the index of each text with special tokens, and their token indices (int64).

        All texts are searched at once, because most have none.
        """
        ids = np.concatenate([NO_IDS, *(text.ids for text in texts)])
        candidates = np.flatnonzero(ids >= self._min_special_id)  # usually the largest ids
        special = candidates[self._is_special[ids[candidates]]]

        ends = np.cumsum([len(text.ids) for text in texts])
        owners = np.searchsorted(ends, special, "right")
        text_indices, firsts = np.unique(owners, return_index=True)
        special_by_text = np.split(special, firsts)[1:]
        for text_index, indices in zip(text_indices.tolist(), special_by_text, strict=True):
            text_start = ends[text_index] - len(texts[text_index].ids)
            yield text_index, indices - text_start

    def encode(self, text: str, parts: np.ndarray, lengths: np.ndarray | None) -> Tokens:
        """Encodes a text; recognizes special tokens only in some parts.

        Args:
            parts: int[m, 2], the spans of these parts, sorted.
            lengths: The byte length of each vocabulary entry if the characters of tokens follow
                from it; otherwise None.
        """
        matches: list[re.Match[str]] = []
        for start, end in parts.tolist():
            matches += self._pattern.finditer(text, start, end)

        # The segments between special tokens are encoded as text.
        starts = [0, *(match.end() for match in matches)]
        ends = [*(match.start() for match in matches), len(text)]
        segments = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        encodings = self._text_tokenizer.encode_batch(segments, add_special_tokens=False)

        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for segment_start, encoding, match in zip(starts, encodings, [*matches, None], strict=True):
            ids += encoding.ids
            spans += [
                (segment_start + start, segment_start + end) for start, end in encoding.offsets
            ]
            if match is not None:  # the special token after the segment
                ids.append(self._ids[match.group()])
                spans.append(match.span())

        id_array = np.array(ids, np.int32)
        if lengths is not None:
            return Tokens(id_array, text, lengths=lengths)
        span_array = np.array(spans, np.int32).reshape(-1, 2)
        return Tokens(id_array, text, characters=(span_array[:, 0], span_array[:, 1]))


def are_all_inside(tokens: Tokens, indices: np.ndarray, parts: np.ndarray) -> bool:
    """Returns whether the tokens at some indices lie in parts of the text.

    Args:
        parts: int[m, 2], the spans of the parts, sorted.
    """
    starts, ends = tokens.locate()
    part_indices = np.searchsorted(parts[:, 0], starts[indices], side="right") - 1
    part_ends = np.append(parts[:, 1], -1)  # the last is for index -1: before the first part
    return bool((ends[indices] <= part_ends[part_indices]).all())


class TextTokenizer:
    """Encodes batches of texts like a fast Hugging Face tokenizer; adds no special tokens.

    Args:
        backend: A name for `choose_backend`; all except `auto` and `hf` require byte-level BPE.
        sample: Texts on which the backend must return the same ids as the tokenizer itself.
        takes_written_tokens: Whether special tokens that are written in a text are recognized
            anywhere in it.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one, or the backend does not support it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        backend: str = "hf",
        sample: Sequence[str] = (),
        *,
        takes_written_tokens: bool = False,
    ) -> None:
        self._takes_written_tokens = takes_written_tokens
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is not a fast tokenizer (it has no "
                "tokenizer.json); expected one that the tokenizers library can run"
            )

        self._oracle = Tokenizer.from_str(fast.to_str())  # a copy, whose settings are changed
        self._oracle.no_truncation()
        self._oracle.no_padding()
        self._lengths = compute_byte_lengths(self._oracle)
        if self._lengths is not None:
            self._oracle.post_processor = None  # it would exclude spaces from the offsets
        self._special_tokens = SpecialTokens(self._oracle)

        if self._lengths is not None:
            self._backend = choose_backend(backend, self._oracle, [*sample, PROBE])
        elif backend not in ("hf", "auto"):
            raise ConfigurationError(
                f"data_config.tokenizer_backend={backend} needs byte-level BPE, which "
                f"{tokenizer.name_or_path} is not; use auto or hf"
            )

        if self._lengths is None or self._oracle.normalizer is not None:
            self._reported_offsets_backend = make_character_backend(self._oracle, [*sample, PROBE])

    def encode(self, texts: Sequence[str], find_parts: FindParts | None = None) -> list[Tokens]:
        """Encodes texts.

        Args:
            find_parts: Returns the parts of a text in which written special tokens are recognized;
                elsewhere they are text. If None, they are recognized everywhere.
        """
        tokens = self._encode_all(texts)
        if find_parts is None or self._takes_written_tokens:
            return tokens

        # Few texts contain special tokens. So all are recognized at first, at full speed, and only
        # texts with a special token outside the parts are encoded a second time.
        for index, token_indices in self._special_tokens.find(tokens):
            parts = find_parts(index)
            if not are_all_inside(tokens[index], token_indices, parts):
                lengths = self._lengths if self._keeps_bytes(texts[index]) else None
                tokens[index] = self._special_tokens.encode(texts[index], parts, lengths)
        return tokens

    def _encode_all(self, texts: Sequence[str]) -> list[Tokens]:
        """Encodes texts, with special tokens recognized everywhere."""
        if self._lengths is None:
            return self._encode_with_reported_offsets(texts)

        tokens: list[Tokens] = []
        for ids, text in zip(self._backend(texts), texts, strict=True):
            if self._keeps_bytes(text):
                tokens.append(Tokens(ids, text, lengths=self._lengths))
            else:
                tokens += self._encode_with_reported_offsets([text])
        return tokens

    def _encode_with_reported_offsets(self, texts: Sequence[str]) -> list[Tokens]:
        """Encodes texts with the characters of tokens that the tokenizer reports."""
        pairs = zip(self._reported_offsets_backend(texts), texts, strict=True)
        return [Tokens(ids, text, characters=characters) for (ids, characters), text in pairs]

    def _keeps_bytes(self, text: str) -> bool:
        """Returns whether the tokens of a text have exactly its bytes: no normalizer changes it."""
        normalizer = self._oracle.normalizer
        return normalizer is None or normalizer.normalize_str(text) == text


def map_text_positions(positions: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Maps positions in the rendered body to positions in the original text.

    Args:
        positions: int32 [n], positions in the body in characters, possibly its end.
        spans: int32 [m, 2], the inserted strings, sorted and disjoint.

    Returns:
        int32 [n]: the number of text characters before each position.
    """
    if not len(spans):
        return positions

    lengths = spans[:, 1] - spans[:, 0]
    inserted_before = np.concatenate(([0], np.cumsum(lengths)))
    num_spans_before = np.searchsorted(spans[:, 0], positions, side="right")

    # A position inside an inserted string is mapped to the text after the string.
    last_span_ends = np.append(spans[:, 1], 0)[num_spans_before - 1]
    overhang = np.maximum(last_span_ends - positions, 0)
    overhang[num_spans_before == 0] = 0
    return (positions - inserted_before[num_spans_before] + overhang).astype(np.int32)


def mark_spans(
    token_types: np.ndarray,
    runs: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    spans: np.ndarray,
    span_token_types: np.ndarray,
) -> None:
    """Sets the token types and runs of tokens with characters of inserted strings, in place.

    A token with characters of several strings gets the type of the first. These strings form a
    single run, because no cut may divide any of them.

    Args:
        token_types: uint8, 0 for text.
        runs: int32, -1 for text.
        starts: int32[n], first character of each of the first n tokens; non-decreasing.
        ends: int32[n], the end of each token's characters, exclusive.
        spans: int32[m, 2], the inserted strings, sorted and disjoint.
        span_token_types: uint8[m], the token type of each string.
    """
    # Span i has characters in the tokens from first[i] to last[i], exclusive.
    first = ends.searchsorted(spans[:, 0], side="right")
    last = starts.searchsorted(spans[:, 1], side="left")

    # A token that two spans share belongs to the first, and both spans to the same run.
    previous_last = np.concatenate((np.zeros(1, np.int64), last[:-1]))
    span_runs = np.cumsum(first >= previous_last, dtype=np.int32)
    first = np.maximum(first, previous_last)

    # The token indices of all spans, concatenated: each span counts up from its first token.
    sizes = last - first
    offsets = sizes.cumsum() - sizes
    token_indices = (first - offsets).repeat(sizes) + np.arange(sizes.sum())
    token_types[token_indices] = span_token_types.repeat(sizes)
    runs[token_indices] = span_runs.repeat(sizes)


@dataclass(slots=True)
class Body:
    """The n tokens of the lead and body of a document.

    Attributes:
        ids: int32[n].
        token_types: uint8[n], 0 for text and lead, otherwise 1 + the index in `metadata_list`.
        runs: int32[n], -1 for text; otherwise a number for each inserted string (or for several
            strings that share a token).
        lead_length: Number of tokens of the lead, which only joins the body to the prefix.
        locate: Computes the characters of the original text that each token covers.
    """

    ids: np.ndarray
    token_types: np.ndarray
    runs: np.ndarray
    lead_length: int
    locate: Callable[[], Characters]


class JointBodies:
    """Encodes the lead and body of each document as one string."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """Encodes the bodies of documents in one call of the tokenizer."""
        texts = [document.lead + document.body for document in rendered]
        tokens = self._tokenizer.encode(
            texts, lambda index: _find_configured_parts(rendered[index])
        )
        return [
            self._mark_body(document, body) for document, body in zip(rendered, tokens, strict=True)
        ]

    def _mark_body(self, rendered: Rendered, tokens: Tokens) -> Body:
        """Returns a body with the types and runs of its tokens."""
        token_types, runs, _ = slice_plain_tokens(len(tokens.ids))
        if len(rendered.spans):
            token_types = token_types.copy()
            runs = runs.copy()
            starts, ends = _find_characters_in_body(rendered, tokens)
            mark_spans(token_types, runs, starts, ends, rendered.spans, rendered.span_token_types)

        lead_length = tokens.count_within(rendered.lead) if rendered.lead else 0
        locate = partial(_locate_joint, rendered, tokens)
        return Body(tokens.ids, token_types, runs, lead_length, locate)


class InsertedString(NamedTuple):
    """A lead or a tag.

    Attributes:
        is_configured: Whether the string comes from the configuration instead of a record.
    """

    string: str
    is_configured: bool


class SeparateBodies:
    """Encodes the text of each document by itself; inserts lead and tags between its tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._cached_ids: dict[InsertedString, np.ndarray] = {}

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """Encodes the bodies of documents: all texts in one call, all new strings in another."""
        texts = [document.text for document in rendered]
        tokens = self._tokenizer.encode(texts, lambda _: NO_PARTS)
        strings_by_document = [_list_inserted_strings(document) for document in rendered]
        self._cache_ids(set(itertools.chain.from_iterable(strings_by_document)))

        bodies = [
            self._insert(document, text_tokens, strings)
            for document, text_tokens, strings in zip(
                rendered, tokens, strings_by_document, strict=True
            )
        ]
        if len(self._cached_ids) > MAX_CACHED_STRINGS:
            self._cached_ids.clear()
        return bodies

    def _cache_ids(self, strings: set[InsertedString]) -> None:
        """Encodes and caches new strings; recognizes special tokens only in configured strings."""
        new = [inserted for inserted in strings if inserted not in self._cached_ids]
        if not new:
            return

        def find_configured_parts(index: int) -> np.ndarray:
            string, is_configured = new[index]
            return np.array([[0, len(string)]], np.int32) if is_configured else NO_PARTS

        encoded = self._tokenizer.encode([string for string, _ in new], find_configured_parts)
        for inserted, tokens in zip(new, encoded, strict=True):
            self._cached_ids[inserted] = tokens.ids

    def _insert(
        self, rendered: Rendered, tokens: Tokens, strings: Sequence[InsertedString]
    ) -> Body:
        """Inserts lead and tags between the tokens of a text."""
        if not strings:
            token_types, runs, _ = slice_plain_tokens(len(tokens.ids))
            return Body(tokens.ids, token_types, runs, 0, tokens.locate)

        inserted = [self._cached_ids[string] for string in strings]
        lengths = np.fromiter(map(len, inserted), np.int64, len(inserted))
        lead_length = int(lengths[0]) if rendered.lead else 0
        tags = slice(1 if rendered.lead else 0, None)  # of the strings

        # The number of text tokens before each string: 0 before the lead.
        num_text_before = np.zeros(len(inserted), np.int64)
        tag_positions = map_text_positions(rendered.spans[:, 0], rendered.spans)
        num_text_before[tags] = count_tokens_before(tokens, tag_positions)

        # The indices of the inserted tokens in the body.
        indices = num_text_before.repeat(lengths) + np.arange(lengths.sum())
        tag_indices = indices[lead_length:]
        size = len(tokens.ids) + len(indices)
        is_text = np.ones(size, np.bool_)
        is_text[indices] = False

        ids = np.empty(size, np.int32)
        ids[is_text] = tokens.ids
        ids[indices] = np.concatenate(inserted)
        token_types = np.zeros(size, np.uint8)
        token_types[tag_indices] = rendered.span_token_types.repeat(lengths[tags])
        runs = np.full(size, -1, np.int32)
        tag_runs = np.arange(len(rendered.spans), dtype=np.int32)
        runs[tag_indices] = tag_runs.repeat(lengths[tags])
        locate = partial(_locate_separate, tokens, is_text)
        return Body(ids, token_types, runs, lead_length, locate)


def _list_inserted_strings(rendered: Rendered) -> list[InsertedString]:
    """Returns the lead of a document, if any, and its tags in order."""
    strings: list[InsertedString] = []
    if rendered.lead:
        strings.append(InsertedString(rendered.lead, is_configured=True))
    if len(rendered.spans):
        body = rendered.body
        configured_starts = set(rendered.configured[:, 0].tolist())
        strings += [
            InsertedString(body[start:end], start in configured_starts)
            for start, end in rendered.spans.tolist()
        ]
    return strings


def count_tokens_before(tokens: Tokens, positions: np.ndarray) -> np.ndarray:
    """Counts the tokens before each position in a text (int64 [positions]).

    A position inside a token, or inside a character that several tokens share, is first moved back
    to the nearest boundary between two tokens that is also between two characters.

    Args:
        positions: int [positions], in characters.
    """
    starts, ends = tokens.locate()
    is_boundary = np.ones(len(ends) + 1, np.bool_)
    is_boundary[1:-1] = starts[1:] >= ends[:-1]
    boundaries = np.flatnonzero(is_boundary)
    counts = ends.searchsorted(positions, side="right")
    return boundaries[boundaries.searchsorted(counts, side="right") - 1]


def _find_configured_parts(rendered: Rendered) -> np.ndarray:
    """Returns the parts of lead and body that come from the configuration (int[m, 2])."""
    lead_chars = len(rendered.lead)
    if not lead_chars:
        return rendered.configured
    return np.concatenate(([[0, lead_chars]], rendered.configured + lead_chars))


def _find_characters_in_body(rendered: Rendered, tokens: Tokens) -> Characters:
    """Returns the characters of the body that each token covers; tokens of the lead cover none.

    Args:
        tokens: The tokens of lead and body.
    """
    starts, ends = tokens.locate()
    lead_chars = len(rendered.lead)
    if not lead_chars:
        return starts, ends
    return np.maximum(starts - lead_chars, 0), np.maximum(ends - lead_chars, 0)


def _locate_joint(rendered: Rendered, tokens: Tokens) -> Characters:
    """Returns the characters of the original text that each token of lead and body covers."""
    starts, ends = _find_characters_in_body(rendered, tokens)
    return map_text_positions(starts, rendered.spans), map_text_positions(ends, rendered.spans)


def _locate_separate(tokens: Tokens, is_text: np.ndarray) -> Characters:
    """Returns the characters of the original text that each token of lead and body covers.

    Inserted tokens cover none: their start and end is the start of the text after them.

    Args:
        tokens: The tokens of the text.
        is_text: bool[n], whether each token of lead and body is a token of the text.
    """
    text_starts, text_ends = tokens.locate()
    next_starts = np.append(text_starts, text_ends[-1:] if len(text_ends) else 0).astype(np.int32)
    starts = next_starts[is_text.cumsum() - is_text]
    ends = starts.copy()
    ends[is_text] = text_ends
    return starts, ends


class TokenMarks(NamedTuple):
    """The types (uint8[n]), runs (int32[n]) and targets (bool[n]) of tokens."""

    token_types: np.ndarray
    runs: np.ndarray
    targets: np.ndarray


def slice_plain_tokens(length: int) -> TokenMarks:
    """Returns the marks of `length` text tokens, as views of cached read-only arrays."""
    size = max(1 << (length - 1).bit_length(), 1 << 12)  # few sizes, because all stay in memory
    token_types, runs, targets = _make_plain_tokens(size)
    return TokenMarks(token_types[:length], runs[:length], targets[:length])


@lru_cache
def _make_plain_tokens(size: int) -> TokenMarks:
    """Returns the marks of `size` text tokens as read-only arrays."""
    arrays = TokenMarks(
        np.zeros(size, np.uint8), np.full(size, -1, np.int32), np.ones(size, np.bool_)
    )
    for array in arrays:
        array.flags.writeable = False
    return arrays
