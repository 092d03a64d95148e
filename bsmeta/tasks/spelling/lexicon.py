"""Statistics of words: their frequencies, capitalization, and neighbors.

They are counted in texts held out from training (`counted_share`), because in the training texts
every correct word and every pair of correct words would be known. Lists of words with counts, pairs
of words, and known misspellings are added where they are installed.
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
from bsmeta.core.parsing import decode_json
from bsmeta.data.io.array_archives import ArrayForm, read_array_archive
from bsmeta.data.text.sentences import find_word_core
from bsmeta.tasks.spelling.config import SYMSPELLPY, WORDFREQ
from bsmeta.tasks.spelling.ngrams import (
    NO_NGRAMS,
    ORDER,
    NgramCounter,
    NgramModel,
    Ngrams,
    join_hashes,
)
from bsmeta.tasks.spelling.noise import is_editable
from bsmeta.tasks.spelling.word_scripts import WordScripts

# Files of a lexicon beside a model.
WORDS_FILE = "words.txt"
ARRAYS_FILE = "lexicon.npz"
MISSPELLINGS_FILE = "misspellings.json"

FORMAT = 2
"""Version of these files, for counts that are stored beside samples."""

MAX_WORDS = 500_000  # words that are kept: the most frequent
MAX_TWO_EDIT_WORDS = 80_000
"""Number of words that are candidates at two edits: the most frequent; the others are at one."""
MIN_COUNT = 2
"""Minimum count in the texts of a candidate; all words of lists are candidates."""

BOUNDARY = "\n"
"""The token before the first and after the last word of a sentence."""
NUMBER = "0"
"""The token for words without letters."""

_POSSESSIVE = re.compile(r"(?<=..)['’][sS]$")
_ENDS_SENTENCE = re.compile(r"[.!?:;]['\"”’)\]]*$")
_BLOCK_WORDS = 1_000_000  # words of text that are counted together
_TEXT_NGRAMS = ("unigrams", "bigrams", "trigrams", "fourgrams")
_LISTED = "listed_bigrams"
_FORMS = {"counts": ArrayForm(np.float32, ("", ""), at_least=0)}
for _name in (*_TEXT_NGRAMS, _LISTED):
    _FORMS[f"{_name}_keys"] = ArrayForm(np.uint64, (_name,), is_ascending=True)
    _FORMS[f"{_name}_counts"] = ArrayForm(np.float32, (_name,), at_least=0)
for _name in _TEXT_NGRAMS[:-1]:
    _FORMS[f"{_name}_left_over"] = ArrayForm(np.float32, (_name,), at_least=0, at_most=1)

# The hash of a word is a polynomial of its characters modulo 2^64; see `NearWords`.
_MAX_HASHED_CHARS = 32  # characters of a word that are hashed; the end of a longer word is ignored
_MAX_TWO_DELETION_CHARS = 15  # of a word with two deletions; of a longer word, one is deleted
_MAX_SHARING_WORDS = 100  # words found by one shared string: the most frequent
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
_POWERS = np.array([pow(_BASE, n, 2**64) for n in range(_MAX_HASHED_CHARS)], np.uint64)
# Factors that move the characters after deletions to their new positions
_AFTER_ONE_DELETION = np.uint64(_INVERSE)
_AFTER_TWO_DELETIONS = np.uint64(pow(_INVERSE, 2, 2**64))


def fold_word(word: str) -> str:
    """Returns the counted form of a word: in lower case, with the typewriter's apostrophe."""
    return word.lower().replace("’", "'")


def _read_resource(name: str) -> str:
    return (resources.files(SYMSPELLPY) / name).read_text(encoding="utf-8-sig")


def read_word_list(name: str) -> dict[str, int]:
    """Reads the counts of the words of a list, in their counted form (`fold_word`).

    Args:
        name: A file of lines `word count`; `symspellpy`, the English list of that package;
            `wordfreq` or `wordfreq:LANGUAGE`, the large list of that package, per billion words.

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

    counts: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        word, _, count = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not word or not count.isdecimal():
            raise ConfigurationError(
                f"word_lists: {name}, line {number:,} is {line!r}; expected a word and its count",
                ["word_lists"],
            )
        counts[fold_word(word)] += int(count)
    return counts


def _read_wordfreq(language: str) -> dict[str, int]:
    from wordfreq import get_frequency_dict

    frequencies = get_frequency_dict(language, wordlist="large")
    return {
        fold_word(word): max(round(frequency * 1e9), 1)
        for word, frequency in frequencies.items()
        if not any(map(str.isdigit, word)) and any(map(str.isalpha, word))
    }


def hash_words(words: Sequence[str]) -> np.ndarray:
    """Returns the hash of each word: uint64 [words]."""
    return _hash_prefixes(words).hashes[:, -1]


class _Prefixes(NamedTuple):
    """Hashes of the prefixes of words."""

    hashes: np.ndarray  # uint64 [words, characters + 1]
    lengths: np.ndarray  # int64 [words], in characters


def _hash_prefixes(words: Sequence[str]) -> _Prefixes:
    if not words:
        return _Prefixes(np.zeros((0, 1), np.uint64), np.zeros(0, np.int64))

    strings = np.array([word[:_MAX_HASHED_CHARS] for word in words], dtype=np.str_)
    characters = strings.view(np.uint32).reshape(len(words), -1).astype(np.uint64)
    width = characters.shape[1]
    hashes = np.zeros((len(words), width + 1), np.uint64)
    np.cumsum(characters * _POWERS[:width], axis=1, out=hashes[:, 1:])
    return _Prefixes(hashes, np.strings.str_len(strings))


class _Deletions(NamedTuple):
    """Hashes of words after the deletion of characters."""

    hashes: np.ndarray  # uint64 [deletions]
    words: np.ndarray  # int64 [deletions], the number of the word of each


def _hash_deletions(words: Sequence[str], edits: int) -> Iterator[_Deletions]:
    """Yields the hashes of words after up to `edits` deletions (0 to 2), by their positions."""
    hashes, lengths = _hash_prefixes(words)
    numbers = np.arange(len(words))
    total = hashes[:, -1]
    yield _Deletions(total, numbers)

    for first in range(int(lengths.max(initial=0))):
        longer = numbers[lengths > first]
        head = hashes[longer, first]
        after = hashes[longer, first + 1]
        yield _Deletions(head + (total[longer] - after) * _AFTER_ONE_DELETION, longer)
        if edits < 2:
            continue

        for second in range(first + 1, int(min(lengths.max(), _MAX_TWO_DELETION_CHARS))):
            is_deleted = (lengths[longer] > second) & (lengths[longer] <= _MAX_TWO_DELETION_CHARS)
            numbers_of_both = longer[is_deleted]
            middle = (hashes[numbers_of_both, second] - after[is_deleted]) * _AFTER_ONE_DELETION
            rest = total[numbers_of_both] - hashes[numbers_of_both, second + 1]
            tail = rest * _AFTER_TWO_DELETIONS
            yield _Deletions(head[is_deleted] + middle + tail, numbers_of_both)


def _hash_all_deletions(words: Sequence[str], edits: int) -> _Deletions:
    hashes, numbers = zip(*_hash_deletions(words, edits), strict=True)
    return _Deletions(np.concatenate(hashes), np.concatenate(numbers))


class NearWords:
    """An index of words for queries by edit distance.

    Two words at a distance of n edits share a string that each becomes when at most n characters
    are deleted (Garbe's symmetric deletions, 2012). The strings are never built: the hash of a word
    is a polynomial of its characters modulo 2^64, and the hash after a deletion follows from prefix
    sums, so the index of 80,000 words takes about a second and 40 MB.

    Args:
        words: The most frequent first.
        two_edit_words: The number of words, from the first, that are found at two edits; the
            others are found at one.
    """

    def __init__(self, words: Sequence[str], two_edit_words: int) -> None:
        frequent = _hash_all_deletions(words[:two_edit_words], 2)
        others = _hash_all_deletions(words[two_edit_words:], 1)
        hashes = np.concatenate([frequent.hashes, others.hashes])
        other_numbers = others.words + min(two_edit_words, len(words))
        numbers = np.concatenate([frequent.words, other_numbers])

        order = np.lexsort((numbers, hashes))
        self._hashes = hashes[order]
        self._numbers = numbers[order].astype(np.int32)

    def find(self, words: Sequence[str]) -> list[np.ndarray]:
        """Returns the numbers of the indexed words near each word: int32, ascending.

        All words within the indexed distance are found, up to `_MAX_SHARING_WORDS` for one string,
        and also some at three or four edits.
        """
        hashes, queries = _hash_all_deletions(words, 2)
        starts = np.searchsorted(self._hashes, hashes, "left")
        ends = np.searchsorted(self._hashes, hashes, "right")
        sizes = np.minimum(ends - starts, _MAX_SHARING_WORDS)

        # Concatenate the ranges [start, start + size) of positions in the index.
        range_begins = np.cumsum(sizes) - sizes
        matches = np.repeat(starts - range_begins, sizes) + np.arange(sizes.sum())

        # A pair is the number of the query in the high bits and of the near word in the low bits.
        pairs = np.repeat(queries, sizes) << np.int64(32) | self._numbers[matches]
        distinct_pairs = np.unique(pairs)
        query_ends = np.searchsorted(distinct_pairs, np.arange(1, len(words)) << np.int64(32))
        return np.split((distinct_pairs & 0xFFFFFFFF).astype(np.int32), query_ends)


class Parsed(NamedTuple):
    """A word of a text: the spelled part, the characters around it, and its counted form."""

    before: str
    core: str
    after: str
    key: str
    ends_sentence: bool


def remove_possessive(word: str) -> str:
    """Removes a possessive s, with its apostrophe, from a word without punctuation around it."""
    return _POSSESSIVE.sub("", word)


@lru_cache(2**18)
def parse_token(word: str) -> Parsed:
    """Parses a token: separates a word from the punctuation around it, and from a possessive s.

    A word that cannot be misspelled (see `is_editable`) has an empty core.
    """
    span = find_word_core(word)
    ends = _ENDS_SENTENCE.search(word) is not None
    if span is None or not is_editable(word):
        return Parsed(word, "", "", NUMBER, ends and span is None)

    start, end = span
    possessive = _POSSESSIVE.search(word, start, end)
    if possessive:
        end = possessive.start()
    return Parsed(word[:start], word[start:end], word[end:], fold_word(word[start:end]), ends)


class Lexicon:
    """Words and n-grams with their counts, and known misspellings.

    Args:
        words: In their counted form (`fold_word`), the most frequent first.
        counts: float32 [words, 2 + lists]: occurrences in the texts, occurrences with a capital
            inside a sentence, and the count in each list.
        ngrams: Of the texts.
        listed_bigrams: The pairs of a list, with their shares of the words of that list as counts.
        misspellings: Misspelling → words.
    """

    def __init__(
        self,
        words: Sequence[str],
        counts: np.ndarray,
        ngrams: NgramModel,
        listed_bigrams: Ngrams,
        misspellings: Mapping[str, Sequence[str]],
    ) -> None:
        self.words = list(words)
        self.counts = counts
        self.ngrams = ngrams
        self.listed_bigrams = listed_bigrams
        self.misspellings = misspellings
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @cached_property
    def frequencies(self) -> np.ndarray:
        """The relative frequency of each word, float [words]: the mean over all sources."""
        return _average_frequencies(self.counts)

    @cached_property
    def scripts(self) -> WordScripts:
        """The scripts of the words; words in other scripts are not judged."""
        return WordScripts(self.words)

    @cached_property
    def near(self) -> NearWords:
        """The index of words that are candidates."""
        return NearWords(self.words, MAX_TWO_EDIT_WORDS)

    def find_number(self, word: str) -> int:
        """Returns the index of a word in `words`, in its counted form; -1 if it is unknown."""
        return self._numbers.get(word, -1)

    def write(self, folder: Path) -> None:
        """Writes the lexicon beside a model."""
        (folder / WORDS_FILE).write_text("\n".join(self.words), encoding="utf-8")

        arrays = {"counts": self.counts}
        all_ngrams = (*self.ngrams.orders, self.listed_bigrams)
        for name, ngrams in zip((*_TEXT_NGRAMS, _LISTED), all_ngrams, strict=True):
            arrays[f"{name}_keys"] = ngrams.keys
            arrays[f"{name}_counts"] = ngrams.counts
        for name, left_over in zip(_TEXT_NGRAMS[:-1], self.ngrams.left_over, strict=True):
            arrays[f"{name}_left_over"] = left_over
        np.savez(folder / ARRAYS_FILE, **arrays)  # type: ignore[arg-type]

        text = json.dumps(self.misspellings, ensure_ascii=False)
        (folder / MISSPELLINGS_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Lexicon:
        """Reads the lexicon beside a model.

        Raises:
            DataError: If a file is missing or damaged.
        """
        try:
            text = (folder / WORDS_FILE).read_text(encoding="utf-8")
            content = (folder / MISSPELLINGS_FILE).read_bytes()
            misspellings = decode_json(content, dict[str, list[str]])
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: {error}; copy the model again") from error

        words = text.split("\n") if text else []
        arrays = read_array_archive(folder / ARRAYS_FILE, _FORMS)
        if len(arrays["counts"]) != len(words):
            raise DataError(
                f"{folder}: {ARRAYS_FILE} counts {len(arrays['counts']):,} words, and {WORDS_FILE} "
                f"has {len(words):,}; copy the model again"
            )
        *orders, listed_bigrams = (
            Ngrams(arrays[f"{name}_keys"], arrays[f"{name}_counts"])
            for name in (*_TEXT_NGRAMS, _LISTED)
        )
        left_over = [arrays[f"{name}_left_over"] for name in _TEXT_NGRAMS[:-1]]
        ngrams = NgramModel(orders, left_over)
        return cls(words, arrays["counts"], ngrams, listed_bigrams, misspellings)


def is_lexicon(folder: str | None) -> bool:
    """Returns whether a folder has the lexicon of a small model."""
    return folder is not None and (Path(folder) / ARRAYS_FILE).is_file()


def _average_frequencies(counts: np.ndarray) -> np.ndarray:
    """Averages the frequency of each word over the texts and the lists that are not empty."""
    sources = counts[:, [0, *range(2, counts.shape[1])]]  # without the counts of capitals
    totals = sources.sum(0)
    return (sources / np.maximum(totals, 1)).sum(1) / max((totals > 0).sum(), 1)


def build_lexicon(
    texts: Iterable[str], lists: Sequence[str], misspellings: Mapping[str, Sequence[str]]
) -> Lexicon:
    """Counts words and n-grams in correct texts, and adds lists of words.

    Args:
        texts: Read once.
        lists: The names of lists; see `read_word_list`.
        misspellings: Word → misspellings.

    Raises:
        ConfigurationError: If a list cannot be read.
    """
    word_lists = [read_word_list(name) for name in lists]
    counts = _count_texts(texts)

    names = dict.fromkeys(word for word, count in counts.occurrences.items() if count >= MIN_COUNT)
    for words in word_lists:
        names |= dict.fromkeys(words)
    for marker in (BOUNDARY, NUMBER):
        names.pop(marker, None)

    all_words = [*names]
    columns = (counts.occurrences, counts.capitals, *word_lists)
    table = np.zeros((len(all_words), len(columns)), np.float32)
    for number, column in enumerate(columns):
        table[:, number] = [column.get(word, 0) for word in all_words]
    order = np.argsort(-_average_frequencies(table), kind="stable")[:MAX_WORDS]

    return Lexicon(
        words=[all_words[number] for number in order],
        counts=table[order],
        ngrams=counts.ngrams,
        listed_bigrams=_read_listed_bigrams(lists),
        misspellings=_invert_misspellings(misspellings),
    )


def _invert_misspellings(misspellings: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Inverts word → misspellings to misspelling → words, all in their counted form."""
    words: dict[str, list[str]] = {}
    for word, word_misspellings in misspellings.items():
        for misspelling in word_misspellings:
            words.setdefault(fold_word(misspelling), []).append(fold_word(word))
    return words


@dataclass(frozen=True)
class _TextCounts:
    """Counts of the words and n-grams of texts."""

    occurrences: dict[str, int]  # by word
    capitals: dict[str, int]  # by word: capitalized occurrences inside a sentence
    ngrams: NgramModel


def _count_texts(texts: Iterable[str]) -> _TextCounts:
    numbers: dict[str, int] = {}
    occurrences = np.zeros(0, np.int64)
    capitals = np.zeros(0, np.int64)
    counters = [NgramCounter(length) for length in range(1, ORDER + 1)]
    (boundary,) = hash_words([BOUNDARY])

    for block in read_word_blocks(texts, numbers):
        # The block may have new words, whose earlier counts are 0.
        new_words = (0, len(numbers) - len(occurrences))
        occurrences = np.pad(occurrences, new_words)
        capitals = np.pad(capitals, new_words)
        occurrences += np.bincount(block.words, minlength=len(numbers))
        capitals += np.bincount(block.words[block.has_capital], minlength=len(numbers))

        hashes = hash_words([*numbers])[block.words]
        for counter in counters:
            counter.add(hashes, boundary)

    return _TextCounts(
        occurrences=dict(zip(numbers, occurrences.tolist(), strict=True)),
        capitals=dict(zip(numbers, capitals.tolist(), strict=True)),
        ngrams=NgramModel.of(counters),
    )


class WordBlock(NamedTuple):
    """Words of texts as numbers, with a boundary after each sentence."""

    words: np.ndarray  # int64 [words]
    has_capital: np.ndarray  # bool [words], whether a word is capitalized inside a sentence


def read_word_blocks(texts: Iterable[str], numbers: dict[str, int]) -> Iterator[WordBlock]:
    """Yields the words of texts in blocks of about `_BLOCK_WORDS`; each begins with a boundary.

    Args:
        numbers: The number of each word; new words, and the markers, are added.
    """
    boundary = numbers.setdefault(BOUNDARY, len(numbers))
    numbers.setdefault(NUMBER, len(numbers))
    words = array("q", [boundary])
    has_capital = bytearray(1)
    for text in texts:
        is_start = True
        for word in map(parse_token, text.split()):
            words.append(numbers.setdefault(word.key, len(numbers)))
            has_capital.append(not is_start and word.core[:1].isupper())
            is_start = word.ends_sentence
            if is_start:
                words.append(boundary)
                has_capital.append(False)
        if not is_start:
            words.append(boundary)
            has_capital.append(False)

        if len(words) > _BLOCK_WORDS:
            yield WordBlock(np.frombuffer(words, np.int64), np.frombuffer(has_capital, bool))
            words = array("q", [boundary])
            has_capital = bytearray(1)
    yield WordBlock(np.frombuffer(words, np.int64), np.frombuffer(has_capital, bool))


def _read_listed_bigrams(lists: Sequence[str]) -> Ngrams:
    """Reads the pairs of symspellpy, with shares of its words as counts, if `lists` names it."""
    if SYMSPELLPY not in lists:
        return NO_NGRAMS

    total = sum(read_word_list(SYMSPELLPY).values())
    lines = _read_resource("frequency_bigramdictionary_en_243_342.txt").splitlines()
    first, second, counts = zip(*(line.split() for line in lines if line), strict=True)
    keys = join_hashes(hash_words(first), hash_words(second))
    order = np.argsort(keys)
    return Ngrams(keys[order], (np.array(counts, np.float64) / total).astype(np.float32)[order])
