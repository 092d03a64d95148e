"""Encode texts into token ids: plain texts with the characters of each token, and bodies with tags.

For byte-level BPE (GPT-2, Llama 3, Qwen, ...) the tokens of a text are its bytes cut into parts, so
the characters follow from cumulative sums of the tokens' byte lengths. Other tokenizers report
their own offsets, which `word_cache` keeps with the words.

The body of a document is encoded in one of two ways. As one string, the lead (the space after a
prefix) and the inserted tags merge with the characters of the text next to them, as they do in the
published models. Apart (`row_budget=text`), the text has the same tokens whatever metadata is
around and in it: lead and tags are encoded by themselves and inserted between its tokens. A tag
whose position is inside a token (usually between a space and the word after it, which share one)
moves to the beginning of that token; the order of tags is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import PROBE, byte_lengths, character_backend, choose_backend
from bsmeta.data.text.word_cache import Characters
from bsmeta.metadata.rendering import Rendered

OwnParts = Callable[[int], np.ndarray]

CACHED_STRINGS = 50_000
"""Inserted strings whose tokens are remembered: most tags recur in every document."""

NO_IDS = np.zeros(0, np.int32)
NO_PARTS = np.zeros((0, 2), np.int32)

NOTHING = (NO_IDS, np.zeros(0, np.uint8))
"""Ids and token types of nothing."""


class Tokens:
    """The tokens of a text.

    Attributes:
        ids: int32[n].
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

    def characters(self) -> Characters:
        """First character of each token, and the end of its last one (both int32[n]).

        A character encoded by several tokens is in the span of each of them.
        """
        if self._characters is None:
            self._characters = self._find_characters()
        return self._characters

    def _find_characters(self) -> Characters:
        assert self._lengths is not None
        lengths = self._lengths.take(self.ids)
        ends = lengths.cumsum(dtype=np.int32)
        starts = ends - lengths
        if self._text.isascii() or not len(ends):
            return starts, ends
        raw = np.frombuffer(self._text.encode(), np.uint8)
        is_first = raw.view(np.int8) >= -0x40  # of its character: no continuation byte, 10xxxxxx
        characters = is_first.cumsum(dtype=np.int32)  # up to each byte
        return characters.take(starts) - 1, characters.take(ends - 1)

    def within(self, beginning: str) -> int:
        """Number of leading tokens that lie entirely in the beginning of the text."""
        if self._lengths is None:
            _, ends = self.characters()
            return int(ends.searchsorted(len(beginning), side="right"))
        size = len(beginning.encode())
        ends = self._lengths[self.ids[:size]].cumsum()  # every token has at least one byte
        return int(ends.searchsorted(size, side="right"))


class SpecialTokens:
    """Finds a tokenizer's special tokens among tokens, and encodes texts without them.

    Args:
        tokenizer: The tokenizer; it is copied.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True  # as text
        added = tokenizer.get_added_tokens_decoder().items()
        self._numbers = {token.content: number for number, token in added if token.special}
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        self._is_special = np.zeros(largest + 1, np.bool_)
        self._is_special[list(self._numbers.values())] = True
        self._smallest = min(self._numbers.values(), default=largest + 1)
        longest_first = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, texts: Sequence[Tokens]) -> Iterator[tuple[int, np.ndarray]]:
        """The texts that have special tokens: their index, and the indices of the tokens (int64).

        All texts are searched at once, because most have none.
        """
        ids = np.concatenate([NO_IDS, *(text.ids for text in texts)])
        places = np.flatnonzero(ids >= self._smallest)  # usually, special ids are the last
        places = places[self._is_special[ids[places]]]
        ends = np.cumsum([len(text.ids) for text in texts])
        numbers, firsts = np.unique(np.searchsorted(ends, places, "right"), return_index=True)
        for number, found in zip(numbers.tolist(), np.split(places, firsts)[1:], strict=True):
            yield number, found - (ends[number] - len(texts[number].ids))

    def all_inside(self, tokens: Tokens, places: np.ndarray, parts: np.ndarray) -> bool:
        """Whether the tokens at these indices lie in the parts of the text (int[m, 2], sorted)."""
        starts, ends = tokens.characters()
        starts, ends = starts[places], ends[places]
        rows = np.searchsorted(parts[:, 0], starts, side="right") - 1
        limits = np.append(parts[:, 1], -1)  # row -1: before the first part
        return bool((ends <= limits[rows]).all())

    def encode(self, text: str, parts: np.ndarray, lengths: np.ndarray | None) -> Tokens:
        """Encodes a text, recognizing special tokens in these parts only.

        Args:
            parts: int[m, 2], sorted.
        """
        meant = [
            found
            for start, end in parts.tolist()
            for found in self._pattern.finditer(text, start, end)
        ]
        begins = [0, *(found.end() for found in meant)]
        ends = [*(found.start() for found in meant), len(text)]
        between = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        encodings = self._plain.encode_batch(between, add_special_tokens=False)
        for begin, encoding, found in zip(begins, encodings, [*meant, None], strict=True):
            ids += encoding.ids
            offsets += [(begin + start, begin + end) for start, end in encoding.offsets]
            if found is not None:
                ids.append(self._numbers[found.group()])
                offsets.append(found.span())
        numbers = np.array(ids, np.int32)
        if lengths is not None:
            return Tokens(numbers, text, lengths=lengths)
        table = np.array(offsets, np.int32).reshape(-1, 2)
        return Tokens(numbers, text, characters=(table[:, 0], table[:, 1]))


class TextTokenizer:
    """Encodes batches of texts as a fast Hugging Face tokenizer does; adds no special tokens.

    Args:
        backend: A name of `choose_backend`; all except `hf` are for byte-level BPE only.
        sample: Texts on which it must return the same ids as the tokenizer itself.
        takes_written_tokens: Whether literal special tokens are recognized anywhere in a text.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one, or the backend does not suit it.
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
                f"tokenizer_name: {tokenizer.name_or_path} is no fast tokenizer (it has no "
                "tokenizer.json); expected one that the tokenizers library can run"
            )
        self._oracle = Tokenizer.from_str(fast.to_str())  # a copy: its settings are changed
        self._oracle.no_truncation()
        self._oracle.no_padding()
        self._lengths = byte_lengths(self._oracle)
        if self._lengths is not None:
            self._oracle.post_processor = None  # it would cut spaces off the offsets of tokens
        self._special = SpecialTokens(self._oracle)
        if self._lengths is not None:
            self._backend = choose_backend(backend, self._oracle, [*sample, PROBE])
        elif backend not in ("hf", "auto"):
            raise ConfigurationError(
                f"data_config.tokenizer_backend={backend} needs byte-level BPE, which "
                f"{tokenizer.name_or_path} is not; use auto or hf"
            )
        if self._lengths is None or self._oracle.normalizer is not None:
            self._with_characters = character_backend(self._oracle, [*sample, PROBE])

    def encode(self, texts: Sequence[str], own: OwnParts | None = None) -> list[Tokens]:
        """The tokens of each text.

        Args:
            own: Maps the index of a text to the parts of it (int[m, 2], sorted) in which literal
                special tokens are recognized; elsewhere they are text. None: they are recognized
                everywhere.
        """
        if self._lengths is not None:
            pairs = zip(self._backend(texts), texts, strict=True)
            tokens = [
                Tokens(ids, text, lengths=self._lengths)
                if self._keeps_bytes(text)
                else self._encode_with_characters([text])[0]
                for ids, text in pairs
            ]
        else:
            tokens = self._encode_with_characters(texts)
        if own is None or self._takes_written_tokens:
            return tokens
        # Few texts contain literal special tokens: all texts are encoded with them recognized, at
        # full speed, and those with one outside the allowed parts are encoded a second time.
        for number, places in self._special.find(tokens):
            if not self._special.all_inside(tokens[number], places, own(number)):
                lengths = self._lengths if self._keeps_bytes(texts[number]) else None
                tokens[number] = self._special.encode(texts[number], own(number), lengths)
        return tokens

    def _encode_with_characters(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, with the characters that the tokenizer itself reports."""
        pairs = zip(self._with_characters(texts), texts, strict=True)
        return [Tokens(ids, text, characters=characters) for (ids, characters), text in pairs]

    def _keeps_bytes(self, text: str) -> bool:
        """Whether the bytes of the tokens are those of the text: its normalizer changes nothing."""
        normalizer = self._oracle.normalizer
        return normalizer is None or normalizer.normalize_str(text) == text


def text_positions(positions: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Map positions in the rendered body to positions in the text without its metadata.

    Args:
        positions: int32 [n], character positions in the body, which may include the body's end.
        spans: int32 [m, 2], the inserted strings.

    Returns:
        int32 [n]: the number of text characters before each position.
    """
    if not len(spans):
        return positions
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    rows = np.searchsorted(spans[:, 0], positions, side="right")
    overhang = np.maximum(np.append(spans[:, 1], 0)[rows - 1] - positions, 0)
    overhang[rows == 0] = 0
    return (positions - before[rows] + overhang).astype(np.int32)


def mark_spans(
    token_types: np.ndarray,
    run: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    spans: np.ndarray,
    span_token_types: np.ndarray,
) -> None:
    """Marks the tokens that hold characters of inserted strings.

    A token with characters of several strings gets the type of the first; since no cut may divide
    any of them, they form one run.

    Args:
        token_types: uint8, 0 for text; the token types are written into it.
        run: int32, -1 for text; the run numbers are written into it.
        starts: int32[n], first character of each of the first n tokens; non-decreasing.
        ends: int32[n], the end of its last character.
        spans: int32[m, 2], the inserted strings, sorted and disjoint.
        span_token_types: uint8[m].
    """
    first = ends.searchsorted(spans[:, 0], side="right")
    last = starts.searchsorted(spans[:, 1], side="left")
    before = np.concatenate((np.zeros(1, np.int64), last[:-1]))
    number = np.cumsum(first >= before, dtype=np.int32)
    first = np.maximum(first, before)
    sizes = last - first
    tokens = (first - sizes.cumsum() + sizes).repeat(sizes) + np.arange(sizes.sum())
    token_types[tokens] = span_token_types.repeat(sizes)
    run[tokens] = number.repeat(sizes)


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
    locate: Callable[[], Characters]


class JointBodies:
    """Encodes lead and body of each document as one string."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """The bodies of documents, in one call of the tokenizer."""
        texts = [document.lead + document.body for document in rendered]
        tokens = self._tokenizer.encode(texts, lambda number: _own_parts(rendered[number]))
        return [self._body(*pair) for pair in zip(rendered, tokens, strict=True)]

    def _body(self, rendered: Rendered, tokens: Tokens) -> Body:
        token_types, run, _ = plain_tokens(len(tokens.ids))
        if len(rendered.spans):
            token_types, run = token_types.copy(), run.copy()
            places = _in_body(rendered, tokens)
            mark_spans(token_types, run, *places, rendered.spans, rendered.span_token_types)
        lead = tokens.within(rendered.lead) if rendered.lead else 0
        return Body(tokens.ids, token_types, run, lead, partial(_locate, rendered, tokens))


class SeparateBodies:
    """Encodes the text of each document by itself, and inserts lead and tags between its tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, bool], np.ndarray] = {}

    def encode(self, rendered: Sequence[Rendered]) -> list[Body]:
        """The bodies of documents; texts, and strings that are not known yet, in a call each."""
        texts = [document.text for document in rendered]
        tokens = self._tokenizer.encode(texts, lambda _: NO_PARTS)
        tags = [_inserted_strings(document) for document in rendered]
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
        if not inserted:
            token_types, run, _ = plain_tokens(len(tokens.ids))
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


def _inserted_strings(rendered: Rendered) -> list[tuple[str, bool]]:
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


def _own_parts(rendered: Rendered) -> np.ndarray:
    """The parts of lead and body that come from the configuration (int[m, 2])."""
    lead = len(rendered.lead)
    return np.concatenate(([[0, lead]], rendered.own + lead)) if lead else rendered.own


def _in_body(rendered: Rendered, tokens: Tokens) -> Characters:
    """Characters of the body that its tokens cover; tokens of the lead cover none."""
    lead = len(rendered.lead)
    starts, ends = tokens.characters()
    return (np.maximum(starts - lead, 0), np.maximum(ends - lead, 0)) if lead else (starts, ends)


def _locate(rendered: Rendered, tokens: Tokens) -> Characters:
    """Characters of the original text that the tokens of lead and body cover."""
    starts, ends = (text_positions(side, rendered.spans) for side in _in_body(rendered, tokens))
    return starts, ends


def _places_of(tokens: Tokens, is_text: np.ndarray) -> Characters:
    """Characters that text tokens cover, among tokens that cover none, at the text after them."""
    starts, ends = tokens.characters()
    after = np.append(starts, ends[-1:] if len(ends) else 0).astype(np.int32)
    first = after[is_text.cumsum() - is_text]
    last = first.copy()
    last[is_text] = ends
    return first, last


def plain_tokens(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Types, runs and targets of tokens without metadata; slices of shared read-only arrays."""
    token_types, run, targets = _plain_tokens(max(1 << (length - 1).bit_length(), 1 << 12))
    return token_types[:length], run[:length], targets[:length]


@lru_cache
def _plain_tokens(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = np.zeros(size, np.uint8), np.full(size, -1, np.int32), np.ones(size, np.bool_)
    for array in arrays:
        array.flags.writeable = False
    return arrays
