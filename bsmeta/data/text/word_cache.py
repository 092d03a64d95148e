"""A cache of words for a tokenizer: most words of a batch are not encoded again.

The tokenizers library takes more than a microsecond per word, whether or not it has seen it before,
and nine words in ten recur. A separable tokenizer (see `word_bounds`) encodes the words of a text
one by one, so a batch is cut into words, each distinct word is looked up once, and its tokens are
copied to every position where it occurs. Except for the lookup, Arrow and NumPy do this for the
whole batch at once.

The tokens of a word depend on whether it follows another word, a special token, or nothing (there,
a tokenizer may insert a space). The first byte of a word's key distinguishes these: the space
itself for a word after another, otherwise a control character that is put before it. A new word is
encoded after text of the same sort, whose tokens are then dropped.

Texts that cannot be encoded in this way are encoded whole: those with an added token that depends
on its neighbors, and those that are not valid Unicode, which the tokenizer itself then refuses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from tokenizers import Encoding, Tokenizer

from bsmeta.data.text.word_bounds import check_separable

Characters = tuple[np.ndarray, np.ndarray]
"""The characters of a text that tokens cover: starts and ends, int32 [n] each."""

GENERATION_WORDS = 1 << 16
"""Number of words in a generation. The current and the previous generation are kept."""

MAX_ENTRY_BYTES = 256
"""Largest size in bytes of a cached word and its tokens (12 each); longer words rarely recur."""

ENCODING_BATCH_SIZE = 256
"""Number of new words that are encoded as one text."""

SPACE = 0x20

FIRST_VISIBLE = 0x21
VISIBLE_COUNT = 94
"""The visible characters of ASCII are `!` to `~`."""

BEGINNING = b"\1"
"""Begins the key of a word at the beginning of a text."""

AFTER_SPECIAL = b"\2"
"""Begins the key of a word at the end of a special token."""

SPECIAL = b"\3"
"""Begins the key of a special token."""

SPECIAL_BEGINNING = b"\4"
"""Begins the key of a special token at the beginning of a text."""

CARRIER = "a"
"""Text before a word that follows another."""

COLUMNS = 3
"""Number of values of a token."""

# The values of a token: its id, and the start and end of its characters in the word.
_ID = 0
_START = 1
_END = 2


class WordCache:
    """Encodes texts as their tokenizer does, without special tokens around them.

    Args:
        tokenizer: Padding and truncation must be off.

    Raises:
        Inseparable: If texts of this tokenizer cannot be cut between words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        check_separable(tokenizer)
        self._tokenizer = tokenizer
        self._special = SpecialPatterns(tokenizer)
        self._recent: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        """Number of entries, at most 2 * GENERATION_WORDS."""
        return len(self._recent) + len(self._older)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts; returns the ids of each (int32[n])."""
        words = cut_words(texts, self._special)
        if words is None:
            return [np.array(encoding.ids, np.int32) for encoding in self._encode(texts)]

        tokens, irregular = self._find_tokens(words)
        results = tokens.divide_by_text(tokens.read_column(_ID))
        for number, encoding in self._encode_some(texts, irregular):
            results[number] = np.array(encoding.ids, np.int32)
        return results

    def ids_and_characters(self, texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        """Encodes texts; returns ids (int32[n]) and the characters that each token covers."""
        words = cut_words(texts, self._special)
        if words is None:
            return [ids_and_characters(encoding) for encoding in self._encode(texts)]

        tokens, irregular = self._find_tokens(words)
        before = words.count_characters_before().repeat(tokens.counts)
        ids = tokens.divide_by_text(tokens.read_column(_ID))
        starts = tokens.divide_by_text(tokens.read_column(_START) + before)
        ends = tokens.divide_by_text(tokens.read_column(_END) + before)
        results = list(zip(ids, zip(starts, ends, strict=True), strict=True))
        for number, encoding in self._encode_some(texts, irregular):
            results[number] = ids_and_characters(encoding)
        return results

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _encode_some(
        self, texts: Sequence[str], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Encoding]]:
        """Encodes the texts with these numbers."""
        encodings = self._encode([texts[number] for number in numbers])
        return zip(numbers, encodings, strict=True)

    def _find_tokens(self, words: Words) -> tuple[WordTokens, list[int]]:
        """Finds the tokens of words; also returns the numbers of texts to encode as a whole."""
        entries = self._look_up(words.distinct)
        irregular = set(words.irregular)
        unusable = [number for number, entry in enumerate(entries) if entry is None]
        if unusable:
            positions = np.flatnonzero(np.isin(words.numbers, unusable))
            irregular |= set((words.bounds.searchsorted(positions, "right") - 1).tolist())
        return WordTokens(words, [entry or b"" for entry in entries]), sorted(irregular)

    def _look_up(self, words: Sequence[bytes]) -> list[bytes | None]:
        """Finds the tokens of distinct words in the cache, or encodes them; see `_learn`.

        The cache is filled up to its limit, then the older generation is dropped, so that it keeps
        the most recently used words.
        """
        recent = self._recent
        older = self._older
        entries = [recent.get(word) for word in words]
        missing = [number for number, entry in enumerate(entries) if entry is None]

        new = []
        for number in missing:
            entry = older.get(words[number])
            if entry is None:
                new.append(number)
            else:
                entries[number] = entry
                self._keep(words[number], entry)

        learned = self._learn([words[number] for number in new])
        for number, entry in zip(new, learned, strict=True):
            entries[number] = entry
            if entry is not None and len(words[number]) + len(entry) <= MAX_ENTRY_BYTES:
                self._keep(words[number], entry)
        return entries

    def _keep(self, word: bytes, entry: bytes) -> None:
        if len(self._recent) >= GENERATION_WORDS:
            self._older = self._recent
            self._recent = {}
        self._recent[word] = entry

    def _learn(self, words: Sequence[bytes]) -> list[bytes | None]:
        """Encodes words, many as one text where possible.

        Returns:
            The tokens of each (int32[n, COLUMNS]); None if they depend on more than the word.
        """
        entries: list[bytes | None] = [None] * len(words)
        can_join = [number for number, word in enumerate(words) if precedes_cut(word)]
        alone = set(range(len(words))) - set(can_join)

        # Words that end at a cut are encoded together.
        groups = [
            can_join[first : first + ENCODING_BATCH_SIZE]
            for first in range(0, len(can_join), ENCODING_BATCH_SIZE)
        ]
        group_words: list[list[str]] = []
        for group in groups:
            group_words.append([words[number].decode() for number in group])
        joined = self._encode([CARRIER + "".join(texts) for texts in group_words])
        for group, texts, encoding in zip(groups, group_words, joined, strict=True):
            group_entries = self._divide(texts, encoding)
            if group_entries is None:
                alone.update(group)
                continue
            for number, entry in zip(group, group_entries, strict=True):
                entries[number] = entry

        # All others are encoded one by one, after text of the sort that precedes them.
        numbers = sorted(alone)
        contexts = [self._context(words[number]) for number in numbers]
        encodings = self._encode([context.before + context.text for context in contexts])
        carriers = self._encode([context.before for context in contexts])
        for number, context, carrier, encoding in zip(
            numbers, contexts, carriers, encodings, strict=True
        ):
            entries[number] = self._drop_carrier(context, carrier.ids, encoding)
        return entries

    def _divide(self, words: Sequence[str], encoding: Encoding) -> list[bytes] | None:
        """Divides the tokens of words that were encoded as one text, after `CARRIER`.

        Returns:
            The tokens of each word; None if an added token is among them, or if characters do not
            determine the word of each token.
        """
        if self._special.spans(CARRIER + "".join(words)) or self._special.is_among(encoding.ids):
            return None

        table = make_token_table(encoding)
        starts = table[:, _START]
        ends = table[:, _END]
        bounds = np.cumsum([0, len(CARRIER), *map(len, words)])
        owners = bounds.searchsorted(starts, "right") - 1
        owners = np.minimum(owners, len(words))  # an empty token at the end
        is_within = ends <= bounds[owners + 1]
        is_clear = (starts < ends) | (starts > bounds[owners])
        if not (is_within & is_clear).all() or (np.diff(owners) < 0).any():
            return None

        table[:, _START:] -= bounds[owners, None].astype(np.int32)
        first_rows = owners.searchsorted(np.arange(1, len(words) + 2)).tolist()
        return [table[first:last].tobytes() for first, last in itertools.pairwise(first_rows)]

    def _context(self, word: bytes) -> Context:
        """Chooses text of the sort that precedes a word, according to the word's mark."""
        match word[:1]:
            case b" ":
                return Context(CARRIER, word.decode(), [])
            case mark if mark == BEGINNING:
                return Context("", word[1:].decode(), [])
            case mark if mark == AFTER_SPECIAL:
                special = self._special.example
                return Context(special, word[1:].decode(), [(0, len(special))])
        before = CARRIER if word[:1] == SPECIAL else ""
        text = word[1:].decode()
        return Context(before, text, [(len(before), len(before) + len(text))])

    def _drop_carrier(
        self, context: Context, carrier: list[int], encoding: Encoding
    ) -> bytes | None:
        """Returns the tokens of a word that was encoded in its context, without the carrier's.

        None if another added token was formed.
        """
        if self._special.spans(context.before + context.text) != context.special:
            return None
        ids = encoding.ids
        if ids[: len(carrier)] != carrier or self._special.is_among(ids):
            return None

        table = make_token_table(encoding)[len(carrier) :]
        table[:, _START:] -= len(context.before)
        return table.tobytes()


@dataclass(slots=True)
class Context:
    """A word, and text to put before it so that it is encoded as in the text that contains it.

    Attributes:
        special: Spans of `before + text`, in characters, that must be encoded as special tokens.
    """

    before: str
    text: str
    special: list[tuple[int, int]]


class SpecialPatterns:
    """Finds the added tokens of a tokenizer in texts that are not normalized.

    The library searches for added tokens twice: in the original text for tokens that are not
    normalized, then for the others in the normalized text between them; in both, for the leftmost
    and, at the same position, the longest.

    Attributes:
        example: A token that is found independently of its neighbors; "" if there is none.
        has_cut: Whether a text may be cut inside one of those tokens.
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

        self._normalized = {number for number, token in added.items() if token.normalized}
        self._regular = re.compile(b"(" + build_alternatives(regular).encode() + b")")
        self._irregular = re.compile(build_alternatives(contents).encode())
        self._all = re.compile(build_alternatives([*regular, *contents]))
        self.example = regular[0] if regular else ""
        self.has_cut = any(" " in content for content in regular)

    def split(self, raw: bytes) -> list[bytes] | None:
        """Splits a text into text, special token, text, … in turns.

        None if the text has an added token that depends on its neighbors, or in which the text may
        be cut.
        """
        return None if self._irregular.search(raw) else self._regular.split(raw)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Finds the added tokens in a text (spans of characters), except normalized ones."""
        return [match.span() for match in self._all.finditer(text)]

    def is_among(self, ids: Sequence[int]) -> bool:
        """Whether ids include an added token that is matched in normalized text."""
        return not self._normalized.isdisjoint(ids)


def build_alternatives(strings: Sequence[str]) -> str:
    """Builds a pattern that matches any of the strings, preferring the longest."""
    return "|".join(map(re.escape, sorted(strings, key=len, reverse=True))) or "(?!)"


def precedes_cut(word: bytes) -> bool:
    """Whether a word follows another, and a space after it would be cut off."""
    if word[0] != SPACE or len(word) < 2:
        return False
    return 0 <= word[-1] - FIRST_VISIBLE < VISIBLE_COUNT and word[-2] < 0x80


@dataclass(slots=True)
class Words:
    """The words of a batch of texts, n in all.

    Attributes:
        distinct: The keys of the distinct words.
        numbers: int64[n], the index of each word's key.
        bounds: int64[texts + 1], the index of each text's first word.
        irregular: Numbers of texts that were not cut; they are empty here.
        codes: uint8, the keys of all words, one after the other.
        starts: int64[n], the index in `codes` of each word's key.
    """

    distinct: list[bytes]
    numbers: np.ndarray
    bounds: np.ndarray
    irregular: list[int]
    codes: np.ndarray
    starts: np.ndarray

    def count_characters_before(self) -> np.ndarray:
        """Counts the characters of the text before each of its words (int32[n])."""
        begins_character = self.codes.view(np.int8) >= -0x40  # in UTF-8
        begins_character[self.starts[self.codes[self.starts] != SPACE]] = False  # mark of a key
        lengths = np.add.reduceat(begins_character, self.starts, dtype=np.int32)
        before = lengths.cumsum(dtype=np.int32) - lengths
        first_words = self.bounds[:-1]
        return before - before[first_words].repeat(np.diff(self.bounds))


def cut_words(texts: Sequence[str], special: SpecialPatterns) -> Words | None:
    """Cuts texts into words and special tokens; None if one of them is not valid Unicode."""
    parts: list[bytes] = []
    first_parts: list[int] = []
    irregular = []
    for number, text in enumerate(texts):
        try:
            pieces = special.split(text.encode())
        except UnicodeEncodeError:
            return None
        if pieces is None:
            irregular.append(number)
            pieces = [b""]
        first_parts.append(len(parts))
        parts += mark_pieces(pieces)
    if not parts:
        return None

    raw = b"".join(parts)
    codes = np.frombuffer(raw, np.uint8)
    part_starts = np.cumsum([0, *map(len, parts)])
    cuts = cut_positions(codes)
    if special.has_cut:
        marks = codes[part_starts[:-1]]
        is_special = (marks == SPECIAL[0]) | (marks == SPECIAL_BEGINNING[0])
        cuts = cuts[~is_special[part_starts.searchsorted(cuts, "right") - 1]]
    starts = np.concatenate((part_starts, cuts))
    starts.sort()

    # Arrow finds the distinct words: slices of one buffer, without copying each word.
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(raw)]
    words = pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers).dictionary_encode()
    return Words(
        distinct=words.dictionary.to_pylist(),
        numbers=words.indices.to_numpy().astype(np.int64),
        bounds=starts.searchsorted(part_starts[[*first_parts, -1]]),
        irregular=irregular,
        codes=codes,
        starts=starts[:-1],
    )


def mark_pieces(pieces: Sequence[bytes]) -> list[bytes]:
    """Puts a mark before each piece of a text, which is text, special token, text, … in turns."""
    if len(pieces) == 1:
        return [BEGINNING + pieces[0]]

    marks = itertools.cycle((SPECIAL, AFTER_SPECIAL))
    if pieces[0]:
        return [BEGINNING + pieces[0], *map(bytes.__add__, marks, pieces[1:])]

    next(marks)
    return [SPECIAL_BEGINNING + pieces[1], *map(bytes.__add__, marks, pieces[2:])]


def cut_positions(codes: np.ndarray) -> np.ndarray:
    """Finds the bytes (uint8) before which `word_bounds` permits to cut a text (int64)."""
    is_cut = codes[2:] == SPACE
    is_cut &= codes[1:-1] - np.uint8(FIRST_VISIBLE) < VISIBLE_COUNT
    is_cut &= codes[:-2] < 0x80
    return np.flatnonzero(is_cut) + 2


class WordTokens:
    """The tokens of all words of a batch, in order.

    Attributes:
        counts: int64[words], the number of tokens of each.

    Args:
        rows: The tokens of each distinct word.
    """

    def __init__(self, words: Words, rows: Sequence[bytes]) -> None:
        table = np.frombuffer(b"".join(rows), np.int32).reshape(-1, COLUMNS)
        self._columns = np.ascontiguousarray(table.T)

        # The row of each token of the batch in the table of distinct words.
        row_bytes = COLUMNS * table.itemsize
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // row_bytes
        self.counts = sizes[words.numbers]
        ends = self.counts.cumsum()
        shifts = (sizes.cumsum() - sizes)[words.numbers] - (ends - self.counts)
        self._rows = shifts.repeat(self.counts)
        self._rows += np.arange(len(self._rows))

        self._bounds = np.concatenate(([0], ends))[words.bounds].tolist()

    def read_column(self, number: int) -> np.ndarray:
        """Returns a value of each token of all texts (int32)."""
        return self._columns[number].take(self._rows)

    def divide_by_text(self, values: np.ndarray) -> list[np.ndarray]:
        """Divides values of all tokens by text."""
        return [values[start:end] for start, end in itertools.pairwise(self._bounds)]


def make_token_table(encoding: Encoding) -> np.ndarray:
    """Returns the ids and characters of tokens (int32[n, COLUMNS])."""
    ids = encoding.ids
    table = np.empty((len(ids), COLUMNS), np.int32)
    table[:, _ID] = ids
    table[:, _START:] = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return table


def ids_and_characters(encoding: Encoding) -> tuple[np.ndarray, Characters]:
    """Returns the ids of an encoded text (int32[n]), and the characters that each token covers."""
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return np.array(encoding.ids, np.int32), (offsets[:, 0], offsets[:, 1])
