"""What is known about words: how frequent they are, how they are capitalized, what is beside them.

The counts are those of texts that no model is trained on (`counted_share`), because in the texts
that it is trained on every correct word and every pair of correct words would be known. Lists of
words with counts, pairs of words, and known misspellings are added where they are installed.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import parse_json
from bsmeta.data.text.sentences import core
from bsmeta.tasks.spelling.config import SYMSPELLPY, WORDFREQ
from bsmeta.tasks.spelling.noise import is_editable

WORDS_FILE, ARRAYS_FILE, MISSPELLINGS_FILE = "words.txt", "lexicon.npz", "misspellings.json"
MOST_WORDS = 500_000  # words that are kept: the most frequent
MOST_NGRAMS = 5_000_000  # pairs, and triples, of words that are kept: the most frequent
TWO_EDITS = 80_000
"""Most frequent words that are candidates at two edits; the others are at one edit."""
LEAST_COUNT = 2
"""Occurrences of a word in the texts from which it is a candidate; of the words of lists, all."""
BOUNDARY, NUMBER = "\n", "0"
"""What is beside the first and last word of a sentence, and in place of a word without letters."""
_POSSESSIVE = re.compile(r"(?<=..)['’][sS]$")
_ENDS_SENTENCE = re.compile(r"[.!?:;]['\"”’)\]]*$")
_BLOCK = 1_000_000  # words of text that are counted at once
_FACTORS = np.array([0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD], np.uint64)
_NGRAMS = ("singles", "pairs", "triples", "listed_pairs")
_LONGEST = 32  # characters of a word that are hashed; the end of a longer word is ignored
_LONGEST_TWICE = 15  # characters up to which two characters are deleted; of a longer word, one
_MOST_SHARING = 100
"""Words that are found by one string that they share with a word: the most frequent."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
_POWERS = np.array([pow(_BASE, n, 2**64) for n in range(_LONGEST)], np.uint64)
_ONCE = np.uint64(_INVERSE)
_TWICE = np.uint64(pow(_INVERSE, 2, 2**64))


def fold(word: str) -> str:
    """The form of a word that is counted: in lower case, with the typewriter's apostrophe."""
    return word.lower().replace("’", "'")


def _read_resource(name: str) -> str:
    return (resources.files(SYMSPELLPY) / name).read_text(encoding="utf-8-sig")


def read_word_list(name: str) -> dict[str, int]:
    """The words of a list with their counts (`fold`): a file of lines `word count`; `symspellpy`,
    the English list of that package; `wordfreq` or `wordfreq:LANGUAGE`, the large list of that
    package, in words of a billion.

    Raises:
        ConfigurationError: If the file or the package is missing, or a line has no count.
    """
    package, _, language = name.partition(":")
    try:
        if package == WORDFREQ:
            return _read_wordfreq(language or "en")
        if name == SYMSPELLPY:
            text = _read_resource("frequency_dictionary_en_82_765.txt")
        else:
            text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ImportError, LookupError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"word_lists: {name} cannot be read: {error}; expected a file of lines `word count`, "
            "or symspellpy or wordfreq with that package installed (pip install -e .[spelling])",
            ["word_lists"],
        ) from error
    found: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        word, _, count = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not word or not count.isdecimal():
            raise ConfigurationError(
                f"word_lists: {name}, line {number:,} is {line!r}; expected a word and its count",
                ["word_lists"],
            )
        found[fold(word)] += int(count)
    return found


def _read_wordfreq(language: str) -> dict[str, int]:
    from wordfreq import get_frequency_dict

    frequencies = get_frequency_dict(language, wordlist="large")
    return {
        fold(word): max(round(frequency * 1e9), 1)
        for word, frequency in frequencies.items()
        if not any(map(str.isdigit, word)) and any(map(str.isalpha, word))
    }


def hash_words(words: Sequence[str]) -> np.ndarray:
    """The hash of each word, uint64 [words]."""
    return _prefixes(words)[0][:, -1]


def _prefixes(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Prefix hashes, uint64 [words, characters + 1], and the lengths, int64 [words]."""
    if not words:
        return np.zeros((0, 1), np.uint64), np.zeros(0, np.int64)
    array = np.array([word[:_LONGEST] for word in words], dtype=np.str_)
    characters = array.view(np.uint32).reshape(len(words), -1).astype(np.uint64)
    sums = np.zeros((len(words), characters.shape[1] + 1), np.uint64)
    np.cumsum(characters * _POWERS[: characters.shape[1]], axis=1, out=sums[:, 1:])
    return sums, np.strings.str_len(array)


def _deletions(words: Sequence[str], most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields hashes after the deletion of up to `most` characters, and the words' numbers."""
    sums, lengths = _prefixes(words)
    numbers = np.arange(len(words))
    total = sums[:, -1]
    yield total, numbers
    for first in range(int(lengths.max(initial=0))):
        own = numbers[lengths > first]
        head, after = sums[own, first], sums[own, first + 1]
        yield head + (total[own] - after) * _ONCE, own
        if most < 2:
            continue
        for second in range(first + 1, int(min(lengths.max(), _LONGEST_TWICE))):
            keep = (lengths[own] > second) & (lengths[own] <= _LONGEST_TWICE)
            both = own[keep]
            middle = (sums[both, second] - after[keep]) * _ONCE
            yield head[keep] + middle + (total[both] - sums[both, second + 1]) * _TWICE, both


def _all_deletions(words: Sequence[str], most: int) -> tuple[np.ndarray, np.ndarray]:
    keys, numbers = zip(*_deletions(words, most), strict=True)
    return np.concatenate(keys), np.concatenate(numbers)


class NearWords:
    """Words within a small edit distance of a word: an index over what remains after deletions.

    Two words at a distance of n edits share a string that each becomes when at most n characters
    are deleted (Garbe's symmetric deletions, 2012). The strings are never built: the hash of a word
    is a polynomial of its characters modulo 2^64, and the hash after a deletion follows from prefix
    sums, so the index of 80,000 words takes about a second and 40 MB.

    The first words, the most frequent (`twice`, their number), are found with two edits; the others
    with one.
    """

    def __init__(self, words: Sequence[str], twice: int) -> None:
        keys, numbers = _all_deletions(words[:twice], 2)
        more_keys, more_numbers = _all_deletions(words[twice:], 1)
        keys = np.concatenate([keys, more_keys])
        numbers = np.concatenate([numbers, more_numbers + min(twice, len(words))])
        order = np.lexsort((numbers, keys))
        self._keys, self._numbers = keys[order], numbers[order].astype(np.int32)

    def find(self, words: Sequence[str]) -> list[np.ndarray]:
        """The numbers of the words near each word, int32, ascending; some are at three edits."""
        keys, queries = _all_deletions(words, 2)
        starts = np.searchsorted(self._keys, keys, "left")
        ends = np.searchsorted(self._keys, keys, "right")
        sizes = np.minimum(ends - starts, _MOST_SHARING)
        places = np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        pairs = np.repeat(queries, sizes) << np.int64(32) | self._numbers[places]
        found = np.unique(pairs)
        ends = np.searchsorted(found, np.arange(1, len(words)) << np.int64(32))
        return np.split((found & 0xFFFFFFFF).astype(np.int32), ends)


class Parsed(NamedTuple):
    """A word of a text: the part that is spelled, what is around it, and how it is counted."""

    before: str
    core: str
    after: str
    key: str
    ends_sentence: bool


@lru_cache(2**18)
def parse(word: str) -> Parsed:
    """Separates a word from the punctuation around it, and from a possessive s; a word that is not
    spelled (`is_editable`) has no core.
    """
    span = core(word)
    ends = _ENDS_SENTENCE.search(word) is not None
    if span is None or not is_editable(word):
        return Parsed(word, "", "", NUMBER, ends and span is None)
    start, end = span
    possessive = _POSSESSIVE.search(word, start, end)
    end = possessive.start() if possessive else end
    return Parsed(word[:start], word[start:end], word[end:], fold(word[start:end]), ends)


@dataclass(frozen=True)
class Ngrams:
    """How often words follow each other."""

    keys: np.ndarray  # the hash of each sequence of words, uint64, ascending
    counts: np.ndarray  # how often it occurs, float32

    def count(self, keys: np.ndarray) -> np.ndarray:
        """The count of each sequence of words, float32."""
        if not len(self.keys):
            return np.zeros(keys.shape, np.float32)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.counts[places], np.float32(0))

    def plus(self, hashes: np.ndarray) -> Ngrams:
        """The counts with those of some hashes; when there are too many, the rarest are dropped."""
        own, counts = np.unique(hashes, return_counts=True)
        keys, places = np.unique(np.concatenate([self.keys, own]), return_inverse=True)
        values = np.concatenate([self.counts, counts.astype(np.float32)])
        sums = np.bincount(places, values, len(keys)).astype(np.float32)
        if len(keys) > MOST_NGRAMS:
            kept = np.sort(np.argsort(-sums, kind="stable")[:MOST_NGRAMS])
            keys, sums = keys[kept], sums[kept]
        return Ngrams(keys, sums)


_NO_NGRAMS = Ngrams(np.zeros(0, np.uint64), np.zeros(0, np.float32))


def join_hashes(*words: np.ndarray) -> np.ndarray:
    """The hash of sequences of words from the hashes of the words, uint64."""
    found = np.zeros(1, np.uint64)
    for word, factor in zip(words, _FACTORS, strict=False):
        mixed = (word ^ (word >> np.uint64(29))) * factor
        found = (found ^ (found >> np.uint64(31))) * _FACTORS[0] + mixed
    return found


class Lexicon:
    """Words and sequences of words with their counts.

    Args:
        words: As they are counted (`fold`), the most frequent first.
        counts: float32 [words, 2 + lists]: how often each occurs in the texts, how often with a
            capital inside a sentence, and in each list.
        ngrams: Single words, pairs and triples of the texts; and pairs of a list, where a count is
            the share of the words of that list.
        misspellings: Misspelling → words.
    """

    def __init__(
        self, words: Sequence[str], counts: np.ndarray, ngrams: Sequence[Ngrams],
        misspellings: Mapping[str, Sequence[str]],
    ) -> None:  # fmt: skip
        self.words = list(words)
        self.counts = counts
        self.singles, self.pairs, self.triples, self.listed_pairs = self._ngrams = tuple(ngrams)
        self.misspellings = misspellings
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @cached_property
    def frequencies(self) -> np.ndarray:
        """The frequency of each word, float32 [words]: the mean of those of all sources."""
        return _frequencies(self.counts)

    @cached_property
    def near(self) -> NearWords:
        """The index of words that are candidates."""
        return NearWords(self.words, TWO_EDITS)

    def number(self, word: str) -> int:
        """The number of a word (`fold`); -1 if it is unknown."""
        return self._numbers.get(word, -1)

    def write(self, folder: Path) -> None:
        """Writes it beside a model."""
        (folder / WORDS_FILE).write_text("\n".join(self.words), encoding="utf-8")
        arrays = {"counts": self.counts}
        for name, ngrams in zip(_NGRAMS, self._ngrams, strict=True):
            arrays |= {f"{name}_keys": ngrams.keys, f"{name}_counts": ngrams.counts}
        np.savez(folder / ARRAYS_FILE, **arrays)  # type: ignore[arg-type]
        text = json.dumps(self.misspellings, ensure_ascii=False)
        (folder / MISSPELLINGS_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Lexicon:
        """Reads it beside a model."""
        try:
            text = (folder / WORDS_FILE).read_text(encoding="utf-8")
            words = text.split("\n") if text else []
            misspellings = parse_json((folder / MISSPELLINGS_FILE).read_text(encoding="utf-8"))
            with np.load(folder / ARRAYS_FILE) as arrays:
                ngrams = [Ngrams(arrays[f"{n}_keys"], arrays[f"{n}_counts"]) for n in _NGRAMS]
                return cls(words, arrays["counts"], ngrams, misspellings)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder}: {error}; copy the model again") from error


def is_lexicon(folder: str | None) -> bool:
    """Whether a folder has the words of a small model."""
    return folder is not None and (Path(folder) / ARRAYS_FILE).is_file()


def _frequencies(counts: np.ndarray) -> np.ndarray:
    known = counts[:, [0, *range(2, counts.shape[1])]]
    totals = known.sum(0)
    return (known / np.maximum(totals, 1)).sum(1) / max((totals > 0).sum(), 1)


def build_lexicon(
    texts: Iterable[str], lists: Sequence[str], misspellings: Mapping[str, Sequence[str]]
) -> Lexicon:
    """Counts words and sequences of words in correct texts, and adds lists of words
    (`read_word_list`) and a map from words to their misspellings.
    """
    listed = [read_word_list(name) for name in lists]
    numbers: dict[str, int] = {BOUNDARY: 0, NUMBER: 1}
    totals = np.zeros((2, 0), np.int64)
    singles = pairs = triples = _NO_NGRAMS
    for sequence, has_capital in _blocks(texts, numbers):
        own = [np.bincount(n, minlength=len(numbers)) for n in (sequence, sequence[has_capital])]
        totals = np.pad(totals, ((0, 0), (0, len(numbers) - totals.shape[1]))) + np.stack(own)
        hashes = hash_words([*numbers])[sequence]
        singles = singles.plus(join_hashes(hashes))
        pairs = pairs.plus(join_hashes(hashes[:-1], hashes[1:]))
        triples = triples.plus(join_hashes(hashes[:-2], hashes[1:-1], hashes[2:]))
    counts, capitals = (dict(zip(numbers, row, strict=True)) for row in totals.tolist())
    known = dict.fromkeys(word for word, count in counts.items() if count >= LEAST_COUNT)
    for words in listed:
        known |= dict.fromkeys(words)
    for marker in (BOUNDARY, NUMBER):
        known.pop(marker, None)
    names, columns = [*known], (counts, capitals, *listed)
    table = np.array([[own.get(word, 0) for own in columns] for word in names], np.float32)
    table = table.reshape(len(names), len(columns))
    order = np.argsort(-_frequencies(table), kind="stable")[:MOST_WORDS]
    wrong: dict[str, list[str]] = {}
    for word, written in misspellings.items():
        for misspelling in written:
            wrong.setdefault(fold(misspelling), []).append(fold(word))
    return Lexicon(
        [names[number] for number in order], table[order],
        [singles, pairs, triples, _listed_pairs(lists)], wrong,
    )  # fmt: skip


def _blocks(
    texts: Iterable[str], numbers: dict[str, int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the words of many sentences by their numbers, with a boundary after each sentence, and
    whether each has a capital that no start of a sentence explains. New words get numbers.
    """
    sequence, has_capital = array("q", [0]), bytearray(1)
    for text in texts:
        is_start = True
        for word in map(parse, text.split()):
            sequence.append(numbers.setdefault(word.key, len(numbers)))
            has_capital.append(not is_start and word.core[:1].isupper())
            is_start = word.ends_sentence
            if is_start:
                sequence.append(0)
                has_capital.append(False)
        if not is_start:
            sequence.append(0)
            has_capital.append(False)
        if len(sequence) > _BLOCK:
            yield np.frombuffer(sequence, np.int64), np.frombuffer(has_capital, bool)
            sequence, has_capital = array("q", [0]), bytearray(1)
    yield np.frombuffer(sequence, np.int64), np.frombuffer(has_capital, bool)


def _listed_pairs(lists: Sequence[str]) -> Ngrams:
    """The pairs of words of symspellpy, if its words are used, as shares of its words."""
    if SYMSPELLPY not in lists:
        return _NO_NGRAMS
    total = sum(read_word_list(SYMSPELLPY).values())
    lines = _read_resource("frequency_bigramdictionary_en_243_342.txt").splitlines()
    first, second, counts = zip(*(line.split() for line in lines if line), strict=True)
    keys = join_hashes(hash_words(first), hash_words(second))
    order = np.argsort(keys)
    return Ngrams(keys[order], (np.array(counts, np.float64) / total).astype(np.float32)[order])
