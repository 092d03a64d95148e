"""A cache of words in front of a tokenizer: most words of a batch are not encoded again.

The tokenizers library takes more than a microsecond per word, whether or not it has seen it before,
and nine words in ten recur. A separable tokenizer (see `word_bounds`) encodes the words of a text
one by one, so a batch is cut into words, each distinct word is looked up once, and its tokens are
copied to every place where it occurs. Except for the lookup, Arrow and NumPy do this for the whole
batch at once.

The tokens of a word depend on whether it follows another word, a special token, or nothing (there,
a tokenizer may insert a space). The first byte of a word's key says which: the space itself for a
word after another, otherwise a control character that is put before it. A new word is encoded after
text of the same sort, whose tokens are then dropped.

Texts that cannot be encoded in this way are encoded whole: those with an added token that depends
on its neighbors, and those that are no valid Unicode, which the tokenizer itself then refuses.
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

GENERATION = 1 << 16
"""Words of a generation. The current generation and the one before it are kept."""

LARGEST_ENTRY = 256
"""Bytes of a word and its tokens (12 each) that are kept; longer words rarely recur."""

JOINED = 256
"""New words that are encoded as one text."""

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
"""Of each token: its id, and the start and the end of its characters in the word."""


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
        """Number of entries, at most 2 * GENERATION."""
        return len(self._recent) + len(self._older)

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (int32[n])."""
        words = cut_words(texts, self._special)
        if words is None:
            return [np.array(encoding.ids, np.int32) for encoding in self._encode(texts)]
        tokens, whole = self._tokens(words)
        results = tokens.by_text(tokens.column(0))
        for number, encoding in self._encode_some(texts, whole):
            results[number] = np.array(encoding.ids, np.int32)
        return results

    def ids_and_characters(self, texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        """The ids of each text (int32[n]), and the characters that each token covers."""
        words = cut_words(texts, self._special)
        if words is None:
            return [ids_and_characters(encoding) for encoding in self._encode(texts)]
        tokens, whole = self._tokens(words)
        before = words.characters_before().repeat(tokens.counts)
        ids = tokens.by_text(tokens.column(0))
        starts = tokens.by_text(tokens.column(1) + before)
        ends = tokens.by_text(tokens.column(2) + before)
        results = list(zip(ids, zip(starts, ends, strict=True), strict=True))
        for number, encoding in self._encode_some(texts, whole):
            results[number] = ids_and_characters(encoding)
        return results

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _encode_some(
        self, texts: Sequence[str], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Encoding]]:
        """Encodes the texts of these numbers."""
        encodings = self._encode([texts[number] for number in numbers])
        return zip(numbers, encodings, strict=True)

    def _tokens(self, words: Words) -> tuple[WordTokens, list[int]]:
        """The tokens of the words, and the numbers of the texts that must be encoded whole."""
        rows = self._look_up(words.distinct)
        whole = set(words.irregular)
        unusable = [number for number, entry in enumerate(rows) if entry is None]
        if unusable:
            positions = np.flatnonzero(np.isin(words.numbers, unusable))
            whole |= set((words.bounds.searchsorted(positions, "right") - 1).tolist())
        return WordTokens(words, [entry or b"" for entry in rows]), sorted(whole)

    def _look_up(self, words: Sequence[bytes]) -> list[bytes | None]:
        """The tokens of distinct words, from the cache or the tokenizer, as `_learn` returns them.

        The cache is filled up to its limit, then the older generation is dropped, so that it keeps
        the words that were used last.
        """
        recent, older = self._recent, self._older
        rows = [recent.get(word) for word in words]
        missing = [number for number, entry in enumerate(rows) if entry is None]
        new = []
        for number in missing:
            entry = older.get(words[number])
            if entry is None:
                new.append(number)
            else:
                rows[number] = entry
                self._keep(words[number], entry)
        learned = self._learn([words[number] for number in new])
        for number, entry in zip(new, learned, strict=True):
            rows[number] = entry
            if entry is not None and len(words[number]) + len(entry) <= LARGEST_ENTRY:
                self._keep(words[number], entry)
        return rows

    def _keep(self, word: bytes, entry: bytes) -> None:
        if len(self._recent) >= GENERATION:
            self._older = self._recent
            self._recent = {}
        self._recent[word] = entry

    def _learn(self, words: Sequence[bytes]) -> list[bytes | None]:
        """Encodes words, many as one text where possible.

        Returns:
            The tokens of each (int32[n, COLUMNS]); None if they depend on more than the word.
        """
        rows: list[bytes | None] = [None] * len(words)
        can_join = [number for number, word in enumerate(words) if precedes_cut(word)]
        groups = [can_join[begin : begin + JOINED] for begin in range(0, len(can_join), JOINED)]
        members = [[words[number].decode() for number in group] for group in groups]
        joined = self._encode([CARRIER + "".join(group) for group in members])

        alone = set(range(len(words))) - set(can_join)
        for group, texts, encoding in zip(groups, members, joined, strict=True):
            parts = self._divide(texts, encoding)
            if parts is None:
                alone.update(group)
                continue
            for number, part in zip(group, parts, strict=True):
                rows[number] = part

        numbers = sorted(alone)
        contexts = [self._context(words[number]) for number in numbers]
        encodings = self._encode([context.before + context.text for context in contexts])
        carriers = self._encode([context.before for context in contexts])
        for number, context, carrier, encoding in zip(
            numbers, contexts, carriers, encodings, strict=True
        ):
            rows[number] = self._after(context, carrier.ids, encoding)
        return rows

    def _divide(self, words: Sequence[str], encoding: Encoding) -> list[bytes] | None:
        """The tokens of each of the words that were encoded as one text, after `CARRIER`.

        None if an added token is among them, or if characters do not say whose a token is.
        """
        if self._special.spans(CARRIER + "".join(words)) or self._special.is_among(encoding.ids):
            return None
        table = token_table(encoding)
        bounds = np.cumsum([0, len(CARRIER), *map(len, words)])
        owners = bounds.searchsorted(table[:, 1], "right") - 1
        owners = np.minimum(owners, len(words))  # an empty token at the end
        within = table[:, 2] <= bounds[owners + 1]
        is_clear = (table[:, 1] < table[:, 2]) | (table[:, 1] > bounds[owners])
        if not (within & is_clear).all() or (np.diff(owners) < 0).any():
            return None
        table[:, 1:] -= bounds[owners, None].astype(np.int32)
        first = owners.searchsorted(np.arange(1, len(words) + 2)).tolist()
        return [table[begin:end].tobytes() for begin, end in itertools.pairwise(first)]

    def _context(self, word: bytes) -> Context:
        """The word, after text like that before it."""
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

    def _after(self, context: Context, carrier: list[int], encoding: Encoding) -> bytes | None:
        """The tokens of a word that was encoded in its context, without those of the carrier.

        None if another added token was formed.
        """
        if self._special.spans(context.before + context.text) != context.special:
            return None
        ids = encoding.ids
        if ids[: len(carrier)] != carrier or self._special.is_among(ids):
            return None
        table = token_table(encoding)[len(carrier) :]
        table[:, 1:] -= len(context.before)
        return table.tobytes()


@dataclass(slots=True)
class Context:
    """A word, and text before it that makes it be encoded as in its own text.

    Attributes:
        special: The spans (characters of both together) where special tokens must be found.
    """

    before: str
    text: str
    special: list[tuple[int, int]]


class SpecialPatterns:
    """Finds the added tokens of a tokenizer in texts that are not normalized.

    The library looks for added tokens twice: in the original text for those that are not to be
    normalized, then for the others in the normalized text between them; in both, for the leftmost
    and there the longest.

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
        self._regular = re.compile(b"(" + alternatives(regular).encode() + b")")
        self._irregular = re.compile(alternatives(contents).encode())
        self._all = re.compile(alternatives([*regular, *contents]))
        self.example = regular[0] if regular else ""
        self.has_cut = any(" " in content for content in regular)

    def split(self, raw: bytes) -> list[bytes] | None:
        """Text, special token, text, … in turns.

        None if the text has an added token that depends on its neighbors, or that the text may be
        cut in.
        """
        return None if self._irregular.search(raw) else self._regular.split(raw)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where added tokens are in a text (characters), except those that are normalized."""
        return [match.span() for match in self._all.finditer(text)]

    def is_among(self, ids: Sequence[int]) -> bool:
        """Whether these are the ids of a text with an added token that is normalized."""
        return not self._normalized.isdisjoint(ids)


def alternatives(strings: Sequence[str]) -> str:
    """A pattern that matches any of the strings, preferring the longest."""
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
        begins: int64[n], where they begin.
    """

    distinct: list[bytes]
    numbers: np.ndarray
    bounds: np.ndarray
    irregular: list[int]
    codes: np.ndarray
    begins: np.ndarray

    def characters_before(self) -> np.ndarray:
        """Characters of the text before each of its words (int32[n])."""
        is_first = self.codes.view(np.int8) >= -0x40  # of its character, in UTF-8
        is_first[self.begins[self.codes[self.begins] != SPACE]] = False  # the mark of a key
        lengths = np.add.reduceat(is_first, self.begins, dtype=np.int32)
        before = lengths.cumsum(dtype=np.int32) - lengths
        first_words = self.bounds[:-1]
        return before - before[first_words].repeat(np.diff(self.bounds))


def cut_words(texts: Sequence[str], special: SpecialPatterns) -> Words | None:
    """Cuts texts into words and special tokens; None if one of them is no valid Unicode."""
    parts: list[bytes] = []
    firsts: list[int] = []
    irregular = []
    for number, text in enumerate(texts):
        try:
            pieces = special.split(text.encode())
        except UnicodeEncodeError:
            return None
        if pieces is None:
            irregular.append(number)
            pieces = [b""]
        firsts.append(len(parts))
        parts += marked(pieces)
    if not parts:
        return None

    raw = b"".join(parts)
    codes = np.frombuffer(raw, np.uint8)
    part_begins = np.cumsum([0, *map(len, parts)])
    cuts = cut_positions(codes)
    if special.has_cut:
        marks = codes[part_begins[:-1]]
        is_special = (marks == SPECIAL[0]) | (marks == SPECIAL_BEGINNING[0])
        cuts = cuts[~is_special[part_begins.searchsorted(cuts, "right") - 1]]
    begins = np.concatenate((part_begins, cuts))
    begins.sort()

    buffers = [None, pa.py_buffer(begins), pa.py_buffer(raw)]
    words = pa.Array.from_buffers(pa.large_binary(), len(begins) - 1, buffers).dictionary_encode()
    return Words(
        distinct=words.dictionary.to_pylist(),
        numbers=words.indices.to_numpy().astype(np.int64),
        bounds=begins.searchsorted(part_begins[[*firsts, -1]]),
        irregular=irregular,
        codes=codes,
        begins=begins[:-1],
    )


def marked(pieces: Sequence[bytes]) -> list[bytes]:
    """Puts a mark before each piece of a text, which is text, special token, text, … in turns."""
    if len(pieces) == 1:
        return [BEGINNING + pieces[0]]
    marks = itertools.cycle((SPECIAL, AFTER_SPECIAL))
    if pieces[0]:
        return [BEGINNING + pieces[0], *map(bytes.__add__, marks, pieces[1:])]
    next(marks)
    return [SPECIAL_BEGINNING + pieces[1], *map(bytes.__add__, marks, pieces[2:])]


def cut_positions(codes: np.ndarray) -> np.ndarray:
    """Where `word_bounds` permits to cut a text: bytes (uint8) before which to cut (int64)."""
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
        row_bytes = COLUMNS * table.itemsize
        sizes = np.fromiter(map(len, rows), np.int64, len(rows)) // row_bytes
        self.counts = sizes[words.numbers]
        ends = self.counts.cumsum()
        shifts = (sizes.cumsum() - sizes)[words.numbers] - (ends - self.counts)
        self._places = shifts.repeat(self.counts)
        self._places += np.arange(len(self._places))
        self._bounds = np.concatenate(([0], ends))[words.bounds].tolist()

    def column(self, number: int) -> np.ndarray:
        """A value of each token of all texts (int32)."""
        return self._columns[number].take(self._places)

    def by_text(self, values: np.ndarray) -> list[np.ndarray]:
        """Divides values of all tokens by text."""
        return [values[begin:end] for begin, end in itertools.pairwise(self._bounds)]


def token_table(encoding: Encoding) -> np.ndarray:
    """Ids and characters of tokens (int32[n, COLUMNS])."""
    ids = encoding.ids
    table = np.empty((len(ids), COLUMNS), np.int32)
    table[:, 0] = ids
    table[:, 1:] = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return table


def ids_and_characters(encoding: Encoding) -> tuple[np.ndarray, Characters]:
    """Ids of an encoded text (int32[n]), and the characters that each token covers."""
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return np.array(encoding.ids, np.int32), (offsets[:, 0], offsets[:, 1])
