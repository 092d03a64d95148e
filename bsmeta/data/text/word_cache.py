"""A word cache for a tokenizer: most words of a batch need not be encoded again.

The tokenizers library takes more than a microsecond per word, whether or not it has seen the word
before, and nine words in ten recur. A separable tokenizer (see `word_bounds`) encodes the words of
a text one by one, so a batch is cut into words, each distinct word is looked up once, and its
tokens are copied to every position at which it occurs. Except for the lookup, Arrow and NumPy do
this for the whole batch at once.

The tokens of a word depend on what precedes it: another word, a special token, or nothing (a
tokenizer may insert a space at the beginning of a text). The first byte of a word's key, its mark,
distinguishes these cases: the word's own space after another word, otherwise a control character
that is put before the word. A new word is encoded after a text that represents its case (the
carrier), whose tokens are then dropped.

Other texts are encoded whole: texts with an added token that depends on its neighbors, and texts
that are not valid Unicode, which the tokenizer then refuses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Encoding, Tokenizer

from bsmeta.data.text.word_bounds import check_separable

Characters = tuple[np.ndarray, np.ndarray]
"""The characters of a text that each token covers: starts and ends, each int32 [n]."""

MAX_GENERATION_WORDS = 1 << 16
"""Maximum number of words in a generation of the cache; two generations are kept."""

MAX_ENTRY_BYTES = 256
"""Maximum size of a cached word and its tokens (12 bytes each); longer words rarely recur."""

ENCODING_BATCH_SIZE = 256
"""Number of new words that are encoded as one text."""

SPACE = 0x20

FIRST_VISIBLE = 0x21
NUM_VISIBLE = 94
"""The visible characters of ASCII are `!` to `~`."""

BEGINNING = b"\1"
"""Mark of a word at the beginning of a text."""

AFTER_SPECIAL = b"\2"
"""Mark of a word directly after a special token."""

SPECIAL = b"\3"
"""Mark of a special token after other text."""

SPECIAL_BEGINNING = b"\4"
"""Mark of a special token at the beginning of a text."""

CARRIER = "a"
"""The carrier of a word after another word."""

NUM_COLUMNS = 3
"""Number of columns of a token table."""

# The columns of a token table: id, and the start and end of the token's characters in the word.
_ID = 0
_START = 1
_END = 2


class WordCache:
    """Encodes texts exactly like a tokenizer that adds no special tokens.

    Args:
        tokenizer: Padding and truncation must be off.

    Raises:
        InseparableError: If texts of this tokenizer cannot be cut between words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        check_separable(tokenizer)
        self._tokenizer = tokenizer
        self._special_patterns = SpecialPatterns(tokenizer)
        self._recent_entries: dict[bytes, bytes] = {}
        self._older_entries: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """Returns the number of entries, at most 2 * MAX_GENERATION_WORDS."""
        return len(self._recent_entries) + len(self._older_entries)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the token ids of each text (int32[n])."""
        words = cut_words(texts, self._special_patterns)
        if words is None:
            return [np.array(encoding.ids, np.int32) for encoding in self._encode(texts)]

        tokens, irregular = self._find_tokens(words)
        results = tokens.divide_by_text(tokens.read_column(_ID))
        for index, encoding in self._encode_some(texts, irregular):
            results[index] = np.array(encoding.ids, np.int32)
        return results

    def encode_with_characters(self, texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        """Returns the token ids of each text (int32[n]), and the characters of its tokens."""
        words = cut_words(texts, self._special_patterns)
        if words is None:
            return [read_ids_and_characters(encoding) for encoding in self._encode(texts)]

        tokens, irregular = self._find_tokens(words)
        num_before = words.count_characters_before().repeat(tokens.counts)
        ids = tokens.divide_by_text(tokens.read_column(_ID))
        starts = tokens.divide_by_text(tokens.read_column(_START) + num_before)
        ends = tokens.divide_by_text(tokens.read_column(_END) + num_before)
        results = list(zip(ids, zip(starts, ends, strict=True), strict=True))
        for index, encoding in self._encode_some(texts, irregular):
            results[index] = read_ids_and_characters(encoding)
        return results

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodes texts with the tokenizer itself."""
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _encode_some(
        self, texts: Sequence[str], indices: Sequence[int]
    ) -> Iterator[tuple[int, Encoding]]:
        """Encodes the texts at given indices; yields each index with the encoding."""
        encodings = self._encode([texts[index] for index in indices])
        return zip(indices, encodings, strict=True)

    def _find_tokens(self, words: Words) -> tuple[WordTokens, list[int]]:
        """Returns the tokens of words, and the indices of texts that must be encoded whole."""
        entries = self._look_up(words.keys)
        irregular = set(words.irregular)
        unusable = [index for index, entry in enumerate(entries) if entry is None]
        if unusable:
            word_indices = np.flatnonzero(np.isin(words.key_indices, unusable))
            text_indices = words.bounds.searchsorted(word_indices, "right") - 1
            irregular.update(text_indices.tolist())
        return WordTokens(words, [entry or b"" for entry in entries]), sorted(irregular)

    def _look_up(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the tokens of distinct words from the cache; encodes and caches new words.

        Returns:
            The token table of each word; see `_encode_new`.
        """
        recent = self._recent_entries
        older = self._older_entries
        entries = [recent.get(key) for key in keys]
        missing = [index for index, entry in enumerate(entries) if entry is None]

        new = []
        for index in missing:
            entry = older.get(keys[index])
            if entry is None:
                new.append(index)
            else:
                entries[index] = entry
                self._store(keys[index], entry)

        new_entries = self._encode_new([keys[index] for index in new])
        for index, entry in zip(new, new_entries, strict=True):
            entries[index] = entry
            if entry is not None and len(keys[index]) + len(entry) <= MAX_ENTRY_BYTES:
                self._store(keys[index], entry)
        return entries

    def _store(self, key: bytes, entry: bytes) -> None:
        """Adds an entry to the recent generation.

        When this is full, it becomes the older generation, and the previous older one is dropped.
        So the cache keeps the most recently used words.
        """
        if len(self._recent_entries) >= MAX_GENERATION_WORDS:
            self._older_entries = self._recent_entries
            self._recent_entries = {}
        self._recent_entries[key] = entry

    def _encode_new(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Encodes words, several as one text where possible, otherwise one by one.

        Returns:
            The token table of each word, as the bytes of int32[n, NUM_COLUMNS]; None if the tokens
            depend on more than the word.
        """
        joinable = [index for index, key in enumerate(keys) if can_precede_cut(key)]
        entries = self._encode_joined(keys, joinable)
        remaining = [index for index in range(len(keys)) if index not in entries]

        contexts = [self._choose_context(keys[index]) for index in remaining]
        encodings = self._encode([context.carrier + context.word for context in contexts])
        carrier_encodings = self._encode([context.carrier for context in contexts])
        for index, context, carrier_encoding, encoding in zip(
            remaining, contexts, carrier_encodings, encodings, strict=True
        ):
            entries[index] = self._drop_carrier(context, carrier_encoding.ids, encoding)
        return [entries[index] for index in range(len(keys))]

    def _encode_joined(
        self, keys: Sequence[bytes], joinable: Sequence[int]
    ) -> dict[int, bytes | None]:
        """Encodes words that may precede a cut, joining `ENCODING_BATCH_SIZE` words to one text.

        Args:
            joinable: The indices of these words in `keys`.

        Returns:
            The token table of each word, by its index. The words of a text are missing if its
            tokens cannot be assigned to words.
        """
        groups = [
            joinable[first : first + ENCODING_BATCH_SIZE]
            for first in range(0, len(joinable), ENCODING_BATCH_SIZE)
        ]
        group_words: list[list[str]] = []
        for group in groups:
            group_words.append([keys[index].decode() for index in group])
        encodings = self._encode([CARRIER + "".join(words) for words in group_words])

        entries: dict[int, bytes | None] = {}
        for group, words, encoding in zip(groups, group_words, encodings, strict=True):
            group_entries = self._divide_by_word(words, encoding)
            if group_entries is not None:
                entries.update(zip(group, group_entries, strict=True))
        return entries

    def _divide_by_word(self, words: Sequence[str], encoding: Encoding) -> list[bytes] | None:
        """Divides the tokens of words that were encoded as one text, after `CARRIER`.

        Returns:
            The token table of each word; None if an added token is among the tokens, or if the
            characters of a token do not determine its word.
        """
        text = CARRIER + "".join(words)
        if self._special_patterns.find_spans(text) or self._special_patterns.is_among(encoding.ids):
            return None

        table = make_token_table(encoding)
        starts = table[:, _START]
        ends = table[:, _END]
        bounds = np.cumsum([0, len(CARRIER), *map(len, words)])
        word_indices = bounds.searchsorted(starts, "right") - 1  # 0 is the carrier
        word_indices = np.minimum(word_indices, len(words))  # for an empty token at the end
        is_within_word = ends <= bounds[word_indices + 1]
        is_unambiguous = (starts < ends) | (starts > bounds[word_indices])
        if not (is_within_word & is_unambiguous).all() or (np.diff(word_indices) < 0).any():
            return None

        table[:, _START:] -= bounds[word_indices, None].astype(np.int32)
        first_rows = word_indices.searchsorted(np.arange(1, len(words) + 2)).tolist()
        return [table[first:last].tobytes() for first, last in itertools.pairwise(first_rows)]

    def _choose_context(self, key: bytes) -> Context:
        """Chooses the carrier of a word by the mark of its key."""
        mark = key[:1]
        if mark == b" ":
            return Context(CARRIER, key.decode(), [])

        word = key[1:].decode()
        if mark == BEGINNING:
            return Context("", word, [])
        if mark == AFTER_SPECIAL:
            special = self._special_patterns.example
            return Context(special, word, [(0, len(special))])

        # The word itself is a special token.
        carrier = CARRIER if mark == SPECIAL else ""
        return Context(carrier, word, [(len(carrier), len(carrier) + len(word))])

    def _drop_carrier(
        self, context: Context, carrier_ids: list[int], encoding: Encoding
    ) -> bytes | None:
        """Returns the token table of a word that was encoded after its carrier.

        Returns:
            None if the tokens of the carrier changed, or if an unexpected added token was formed.
        """
        text = context.carrier + context.word
        if self._special_patterns.find_spans(text) != context.special_spans:
            return None
        ids = encoding.ids
        if ids[: len(carrier_ids)] != carrier_ids or self._special_patterns.is_among(ids):
            return None

        table = make_token_table(encoding)[len(carrier_ids) :]
        table[:, _START:] -= len(context.carrier)
        return table.tobytes()


@dataclass(slots=True)
class Context:
    """A word and its carrier, after which it is encoded as within a text.

    Attributes:
        special_spans: The spans of `carrier + word`, in characters, that must be encoded as special
            tokens.
    """

    carrier: str
    word: str
    special_spans: list[tuple[int, int]]


class SpecialPatterns:
    """Finds the added tokens of a tokenizer in texts that are not normalized.

    The library searches for added tokens twice: first for the tokens that are not normalized, in
    the original text; then for the other tokens, in the normalized text between them. Both times,
    the leftmost match counts and, at the same position, the longest.

    An added token is regular if matching it does not depend on its neighbors.

    Attributes:
        example: A regular token; "" if there is none.
        has_cut: Whether there may be a cut inside a regular token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        original = [token for token in added.values() if not token.normalized]
        irregular = [
            token for token in original if token.lstrip or token.rstrip or token.single_word
        ]

        regular = [token.content for token in original if token not in irregular]
        contents = [token.content for token in irregular]
        if tokenizer.normalizer is None:
            contents += [
                token.content
                for token in added.values()
                if token.normalized and any(map(str.isspace, token.content[1:]))
            ]

        self._normalized_ids = {token_id for token_id, token in added.items() if token.normalized}
        self._regular_pattern = re.compile(b"(" + build_alternatives(regular).encode() + b")")
        self._irregular_pattern = re.compile(build_alternatives(contents).encode())
        self._added_pattern = re.compile(build_alternatives([*regular, *contents]))
        self.example = regular[0] if regular else ""
        self.has_cut = any(" " in content for content in regular)

    def split(self, raw: bytes) -> list[bytes] | None:
        """Splits a text into text and special tokens in alternation, beginning with text.

        Returns:
            The segments; None if the text contains an added token that is not regular.
        """
        return None if self._irregular_pattern.search(raw) else self._regular_pattern.split(raw)

    def find_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the spans of the added tokens in the original text, in characters."""
        return [match.span() for match in self._added_pattern.finditer(text)]

    def is_among(self, ids: Sequence[int]) -> bool:
        """Returns whether ids include an added token that is matched in normalized text."""
        return not self._normalized_ids.isdisjoint(ids)


def build_alternatives(strings: Sequence[str]) -> str:
    """Builds a pattern that matches any of the strings, preferring the longest."""
    return "|".join(map(re.escape, sorted(strings, key=len, reverse=True))) or "(?!)"


def can_precede_cut(key: bytes) -> bool:
    """Returns whether a word follows another word, and a space after it would begin a new word."""
    if key[0] != SPACE or len(key) < 2:
        return False
    return 0 <= key[-1] - FIRST_VISIBLE < NUM_VISIBLE and key[-2] < 0x80


@dataclass(slots=True)
class Words:
    """The words of a batch of texts, n in all.

    Attributes:
        keys: The keys of the distinct words.
        key_indices: int64[n], the index of each word's key in `keys`.
        bounds: int64[texts + 1], the index of each text's first word, then n.
        irregular: Indices of texts that cannot be cut and so contribute no words.
        codes: uint8, the concatenated keys of all words.
        starts: int64[n], the index in `codes` of each word's key.
    """

    keys: list[bytes]
    key_indices: np.ndarray
    bounds: np.ndarray
    irregular: list[int]
    codes: np.ndarray
    starts: np.ndarray

    def count_characters_before(self) -> np.ndarray:
        """Counts the characters before each word in its text (int32[n])."""
        begins_character = self.codes.view(np.int8) >= -0x40  # in UTF-8
        is_control_mark = self.codes[self.starts] != SPACE
        begins_character[self.starts[is_control_mark]] = False  # such a mark is not in the text
        lengths = np.add.reduceat(begins_character, self.starts, dtype=np.int32)
        num_before = lengths.cumsum(dtype=np.int32) - lengths
        first_words = self.bounds[:-1]
        return num_before - num_before[first_words].repeat(np.diff(self.bounds))


class MarkedTexts(NamedTuple):
    """The segments of a batch of texts, with a mark before each segment.

    A segment is a special token, or the text between special tokens.

    Attributes:
        segments: The marked segments of all texts, in order.
        first_segments: For each text, the index of its first segment.
        irregular: Indices of texts that cannot be cut; each has one empty segment.
    """

    segments: list[bytes]
    first_segments: list[int]
    irregular: list[int]


def cut_words(texts: Sequence[str], special: SpecialPatterns) -> Words | None:
    """Cuts texts into words and special tokens.

    Returns:
        The words; None if there are no texts, or if one is not valid Unicode.
    """
    marked = _mark_texts(texts, special)
    if marked is None or not marked.segments:
        return None

    raw = b"".join(marked.segments)
    codes = np.frombuffer(raw, np.uint8)
    segment_starts = np.cumsum([0, *map(len, marked.segments)])
    starts = _find_word_starts(codes, segment_starts, special)

    # Arrow finds the distinct words among slices of one buffer, without copying each word.
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(raw)]
    words = pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers).dictionary_encode()
    return Words(
        keys=words.dictionary.to_pylist(),
        key_indices=words.indices.to_numpy().astype(np.int64),
        bounds=starts.searchsorted(segment_starts[[*marked.first_segments, -1]]),
        irregular=marked.irregular,
        codes=codes,
        starts=starts[:-1],
    )


def _mark_texts(texts: Sequence[str], special: SpecialPatterns) -> MarkedTexts | None:
    """Splits texts at special tokens and marks their segments; None if one is invalid Unicode."""
    marked = MarkedTexts([], [], [])
    for index, text in enumerate(texts):
        try:
            segments = special.split(text.encode())
        except UnicodeEncodeError:
            return None
        if segments is None:
            marked.irregular.append(index)
            segments = [b""]
        marked.first_segments.append(len(marked.segments))
        marked.segments.extend(mark_segments(segments))
    return marked


def mark_segments(segments: Sequence[bytes]) -> list[bytes]:
    """Puts a mark before each segment of a text; drops an empty text before a special token.

    Args:
        segments: Text and special tokens in alternation, beginning with text.
    """
    if len(segments) == 1:
        return [BEGINNING + segments[0]]

    if segments[0]:
        marked = [BEGINNING + segments[0], SPECIAL + segments[1]]
    else:
        marked = [SPECIAL_BEGINNING + segments[1]]

    marks = itertools.cycle((AFTER_SPECIAL, SPECIAL))
    for mark, segment in zip(marks, segments[2:], strict=False):
        marked.append(mark + segment)
    return marked


def _find_word_starts(
    codes: np.ndarray, segment_starts: np.ndarray, special: SpecialPatterns
) -> np.ndarray:
    """Returns the index of each word's first byte, then the number of bytes (int64).

    Words begin at the segments, and at cuts that are not inside a special token.

    Args:
        codes: The bytes of all marked segments (uint8).
        segment_starts: The index of each segment's mark, then the number of bytes.
    """
    cuts = find_cuts(codes)
    if special.has_cut:
        marks = codes[segment_starts[:-1]]
        is_special = (marks == SPECIAL[0]) | (marks == SPECIAL_BEGINNING[0])
        cuts = cuts[~is_special[segment_starts.searchsorted(cuts, "right") - 1]]

    starts = np.concatenate((segment_starts, cuts))
    starts.sort()
    return starts


def find_cuts(codes: np.ndarray) -> np.ndarray:
    """Returns the indices of the bytes before which a text may be cut (int64); see `word_bounds`.

    Args:
        codes: The bytes of the text (uint8).
    """
    is_cut = codes[2:] == SPACE
    is_cut &= codes[1:-1] - np.uint8(FIRST_VISIBLE) < NUM_VISIBLE
    is_cut &= codes[:-2] < 0x80
    return np.flatnonzero(is_cut) + 2


class WordTokens:
    """The tokens of all words of a batch, in order.

    Args:
        tables: The token table of each distinct word, as bytes.

    Attributes:
        counts: int64[words], the number of tokens of each word.
    """

    def __init__(self, words: Words, tables: Sequence[bytes]) -> None:
        table = np.frombuffer(b"".join(tables), np.int32).reshape(-1, NUM_COLUMNS)
        self._columns = np.ascontiguousarray(table.T)

        # The number of tokens of each distinct word, and its first row in the table.
        row_bytes = NUM_COLUMNS * table.itemsize
        key_counts = np.fromiter(map(len, tables), np.int64, len(tables)) // row_bytes
        key_starts = key_counts.cumsum() - key_counts

        # For each token of the batch, its row in the table: the tokens of a word are consecutive.
        self.counts = key_counts[words.key_indices]
        ends = self.counts.cumsum()
        starts = ends - self.counts
        shifts = key_starts[words.key_indices] - starts
        self._rows = shifts.repeat(self.counts)
        self._rows += np.arange(len(self._rows))

        self._bounds = np.concatenate(([0], ends))[words.bounds].tolist()

    def read_column(self, column: int) -> np.ndarray:
        """Returns the values of one column for the tokens of all texts (int32)."""
        return self._columns[column].take(self._rows)

    def divide_by_text(self, values: np.ndarray) -> list[np.ndarray]:
        """Divides an array of a value per token into one array per text."""
        return [values[start:end] for start, end in itertools.pairwise(self._bounds)]


def make_token_table(encoding: Encoding) -> np.ndarray:
    """Returns the token table of an encoded text (int32[n, NUM_COLUMNS])."""
    ids = encoding.ids
    table = np.empty((len(ids), NUM_COLUMNS), np.int32)
    table[:, _ID] = ids
    table[:, _START:] = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return table


def read_ids_and_characters(encoding: Encoding) -> tuple[np.ndarray, Characters]:
    """Returns the ids of an encoded text (int32[n]), and the characters of each token."""
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return np.array(encoding.ids, np.int32), (offsets[:, 0], offsets[:, 1])
