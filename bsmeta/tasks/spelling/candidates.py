"""Candidate corrections of words, with their features.

The candidates of a word are the words within two edits, the corrections listed for it, and two
words whose space it lacks, each in lower case and capitalized. Features that do not depend on the
context are computed once for each form of a word.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import xxhash
from rapidfuzz import process
from rapidfuzz.distance import OSA, Indel, Levenshtein

from bsmeta.data.text.sentences import Span, divide_compound
from bsmeta.tasks.spelling.lexicon import Lexicon, Parsed, fold_word, hash_words, parse_token
from bsmeta.tasks.spelling.noise import remove_accents
from bsmeta.tasks.spelling.word_kinds import has_inner_capital
from bsmeta.tasks.spelling.word_parts import find_word_runs, is_word, measure_elision

MAX_COMPARED_WORDS = 300
"""Maximum number of near words, the most frequent ones, that are compared with a word."""

# Maximum number of near words that become candidates
MAX_NEAR = 12
MAX_NEAR_OF_SHORT = 32  # of a short word
MAX_NEAR_OF_LISTED = 8  # of a word in a list

MAX_SHORT_CHARS = 3
"""Maximum characters of a short word."""
MIN_LONG_CHARS = 7
"""Minimum characters of a long word, whose candidates may be at three edits."""
MIN_CAPITAL_SHARE = 0.05
"""Minimum share of capitalized occurrences for candidates with a capital inside a sentence."""
EDIT_COST = 5.0
"""Cost of an edit in the choice of candidates, in nats of word frequency."""
INITIAL_EDIT_COST = 0.5
"""Additional cost, in edits, of another first letter, which is rarely misspelled."""
MAX_CACHED_FORMS = 200_000

# Limits of a word with inner capitals that has candidates
MAX_INNER_CAPITALS = 2
MIN_SMALL_LETTERS = 2  # other letters; one more in a capitalized word
MIN_SMALL_LETTERS_OF_TWO_EDITS = 3  # other letters, if an edit does not remove a capital

MAX_COMMON_CAPITAL_SHARE = 0.1
"""Maximum share of capitalized occurrences of a word that is usually in lower case."""
_FREQUENT_WORDS = 50_000  # words from which letters are counted

SPLIT_COST = 12.0
"""Cost of a missing space, in nats of word frequency."""
_VOWELS = frozenset("aeiouy")
_KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

UNKNOWN_LOG_FREQUENCY = -25.0
UNKNOWN_CAPITAL_SHARE = 0.3

# Origins of a candidate: the word itself, none of the listed candidates, a near word, two words
_KEEP, _NONE, _NEAR, _SPLIT = range(4)

# Columns of the features of a candidate; the first four are the one-hot origin.
_FREQUENCY = 4
_STATISTICS = slice(5, 7)  # whether it is known; its share of capitals
_CASE = slice(7, 10)  # lower case, first letter a capital, all capitals
_WORD = slice(10, 18)  # only for the word itself: see `_compute_word_features`
_EDIT_COUNT = slice(18, 22)  # one-hot: 0, 1, 2, or more edits
_IS_KNOWN_MISSPELLING = 22
_COMMON = slice(23, 29)  # similarities of candidate and word: see `_describe_edits`
_FREQUENCY_GAIN = 29
_SINGLE_EDIT = slice(30, 36)
_CASE_EDITS = slice(36, 39)
_DISTANCES = slice(39, 41)

FORM_FEATURES = 41
"""Number of features of a candidate without context; a column for each word list follows."""


class _Key(NamedTuple):
    """The position of a key on a QWERTY keyboard."""

    row: int
    column: float  # each row is shifted by half a key


def _locate_keys() -> dict[str, _Key]:
    keys: dict[str, _Key] = {}
    for row, letters in enumerate(_KEYBOARD_ROWS):
        for column, letter in enumerate(letters):
            keys[letter] = _Key(row, column + row / 2)
    return keys


_KEYS = _locate_keys()


@dataclass(frozen=True)
class Form:
    """The candidates of a word.

    The first candidate is the word itself, and the second stands for none of the others, which
    follow. A candidate has one or two words; for one word, the first and the last are the same.
    """

    texts: list[str]  # spelling of each candidate
    features: np.ndarray  # float32 [candidates, FORM_FEATURES + lists]
    hashes: np.ndarray  # uint64 [2, candidates], of the first and the last word, folded
    logs: np.ndarray  # float32 [candidates], log frequency of the first word
    last_logs: np.ndarray  # float32 [candidates], log frequency of the last word
    numbers: np.ndarray  # int64 [candidates], of the first word in the context model
    capitals: np.ndarray  # bool [candidates], whether it begins with a capital

    @property
    def first_hashes(self) -> np.ndarray:
        """Hashes of the first word of each candidate, uint64 [candidates]."""
        return self.hashes[0]

    @property
    def last_hashes(self) -> np.ndarray:
        """Hashes of the last word of each candidate, uint64 [candidates]."""
        return self.hashes[1]


class _Row(NamedTuple):
    """A candidate of a word."""

    text: str  # its spelling
    first: str  # its first and last word, folded; the same if it has one word
    last: str
    origin: int  # `_KEEP`, `_NONE`, `_NEAR` or `_SPLIT`
    distance: int = 0  # edits from the word


class Candidates:
    """Finds the candidates of words.

    Args:
        lexicon: The known words.
        hidden_misspellings: Share of the known misspellings to ignore. Training errors are drawn
            from them, so otherwise every error would be known in training.
        find_numbers: Returns the numbers of words in a context model.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        hidden_misspellings: float = 0.0,
        find_numbers: Callable[[Sequence[str]], np.ndarray] | None = None,
    ) -> None:
        self._lexicon = lexicon
        self._find_numbers = find_numbers
        self._hidden = hidden_misspellings
        self._forms: dict[tuple[str, bool], Form] = {}

        self._logs = np.log(np.maximum(lexicon.frequencies, 1e-10))
        self._known_logs = dict(zip(lexicon.words, self._logs.tolist(), strict=True))
        # The last row is for unknown words, which have the number -1.
        self._list_features = np.pad(np.log1p(lexicon.counts) / 10, ((0, 1), (0, 0)))
        shares = (lexicon.counts[:, 1] + 0.3) / (lexicon.counts[:, 0] + 1)
        self._capital_shares = dict(zip(lexicon.words, shares.tolist(), strict=True))

        self._max_word_chars = max(map(len, lexicon.words), default=0)
        self._initials = np.array([ord(word[0]) for word in lexicon.words])
        # The counted tokens may have several words, such as `yes—then`.
        self._is_word = np.array([*map(is_word, lexicon.words)], bool)

    @property
    def feature_count(self) -> int:
        """Number of features of a candidate."""
        return FORM_FEATURES + self._list_features.shape[1]

    def find(self, cores: Sequence[tuple[str, bool]]) -> list[Form]:
        """Finds the candidates of words.

        Args:
            cores: For each word, its spelled part (`find_spelled_part`), and whether it begins a
                sentence.
        """
        if len(self._forms) > MAX_CACHED_FORMS:
            self._forms.clear()

        uncached = [core for core in dict.fromkeys(cores) if core not in self._forms]
        near: list[np.ndarray] = []
        if uncached:
            near = self._lexicon.near.find([fold_word(core) for core, _ in uncached])
        for (core, is_start), near_words in zip(uncached, near, strict=True):
            self._forms[core, is_start] = self._build_form(core, is_start, near_words)
        return [self._forms[core] for core in cores]

    def find_spelled_part(self, word: str) -> Parsed:
        """Returns the part of a token that is compared with words: the rarest of its parts.

        The rest is in `before` and `after`, which no correction changes. The core is empty for a
        word in a script that the lexicon lacks.
        """
        parsed = parse_token(word)
        if self._lexicon.scripts.find_unknown(word):
            return parsed._replace(before=word, core="", after="")

        parts: list[Span] = []
        for run in find_word_runs(parsed.core):
            for start, end in self._divide_compound(parsed.core[slice(*run)]):
                parts.append(Span(run.start + start, run.start + end))
        if len(parts) > 1:
            parts = [part for part in parts if part.end - part.start > 1]
        if not parts:  # no words, or only initials (`U.S`)
            return parsed._replace(before=word, core="", after="")

        start, end = min(
            parts, key=lambda part: self.compute_log_frequency(fold_word(parsed.core[slice(*part)]))
        )
        return parsed._replace(
            before=parsed.before + parsed.core[:start],
            core=parsed.core[start:end],
            after=parsed.core[end:] + parsed.after,
        )

    def _divide_compound(self, word: str) -> list[Span]:
        """Returns the parts of an unknown compound, or the whole of any other word."""
        whole_word = Span(0, len(word))
        if self._lexicon.find_number(fold_word(word)) >= 0:
            return [whole_word]

        parts = [part for part in divide_compound(word) if part.end - part.start > 1]
        if len(parts) < 2:
            parts = [whole_word]
        return [self._cut_elision(word, part) for part in parts]

    def _cut_elision(self, word: str, part: Span) -> Span:
        """Removes an elided article from a part of a word, unless both are known as one word."""
        text = word[slice(*part)]
        key = fold_word(text)
        if self._lexicon.find_number(key) >= 0 or key in self._lexicon.misspellings:
            return part
        return Span(part.start + measure_elision(text), part.end)

    def compute_log_frequency(self, key: str) -> float:
        """Returns the natural logarithm of the frequency of a folded word."""
        return self._known_logs.get(key, UNKNOWN_LOG_FREQUENCY)

    def _compute_capital_share(self, key: str) -> float:
        """Returns the share of a folded word's occurrences with a capital inside a sentence."""
        return self._capital_shares.get(key, UNKNOWN_CAPITAL_SHARE)

    def _build_form(self, core: str, is_start: bool, near_words: np.ndarray) -> Form:
        """Builds the candidates of a word, with their features.

        Args:
            core: The spelled part of the word.
            is_start: Whether it begins a sentence.
            near_words: Numbers of the words near it, ascending.
        """
        if not core:
            return self._unspelled_form

        key = fold_word(core)
        corrections = [
            word for word in self._lexicon.misspellings.get(key, ()) if _is_spelled(word)
        ]
        if corrections and xxhash.xxh3_64_intdigest(key.encode()) < self._hidden * 2**64:
            corrections = []

        distances = self._choose_near_words(core, near_words, corrections)
        rows = self._list_candidates(core, is_start, distances)
        features = [
            self._compute_features(
                core, key, row, is_known=row.first in corrections, others=len(distances)
            )
            for row in rows
        ]
        list_features = self._list_features[[self._lexicon.find_number(row.first) for row in rows]]
        return Form(
            texts=[row.text for row in rows],
            features=np.concatenate([np.array(features), list_features], 1).astype(np.float32),
            hashes=np.stack(
                [
                    hash_words([row.first for row in rows]),
                    hash_words([row.last for row in rows]),
                ]
            ),
            logs=np.array([self.compute_log_frequency(row.first) for row in rows], np.float32),
            last_logs=np.array([self.compute_log_frequency(row.last) for row in rows], np.float32),
            numbers=self._number_words([row.first for row in rows]),
            capitals=np.array([row.text[:1].isupper() for row in rows]),
        )

    def _list_candidates(self, core: str, is_start: bool, distances: dict[str, int]) -> list[_Row]:
        """Lists the candidates of a word: near words in several cases, and two words.

        Args:
            distances: The chosen near words, with their distances in edits.
        """
        key = fold_word(core)
        rows = [_Row(core, key, key, _KEEP), _Row("", "", "", _NONE)]

        others = distances
        if self._may_replace(core, key):
            others = {key: 0, **distances}
        for other, distance in others.items():
            has_capital = self._compute_capital_share(other) > MIN_CAPITAL_SHARE
            for text in _list_cased_forms(core, other, with_capital=is_start or has_capital):
                if not _are_equivalent(text, core):
                    rows.append(_Row(text, other, other, _NEAR, distance))

        for first, second in self._find_splits(key):
            text = f"{first.capitalize() if core[0].isupper() else first} {second}"
            rows.append(_Row(_copy_apostrophes(core, text), first, second, _SPLIT, 1))
        return rows

    @cached_property
    def _unspelled_form(self) -> Form:
        """The form of a word without a spelled part, which has no candidates."""
        features = np.zeros((2, self.feature_count), np.float32)
        features[0, _KEEP] = 1
        features[1, _NONE] = 1
        return Form(
            texts=["", ""],
            features=features,
            hashes=np.zeros((2, 2), np.uint64),
            logs=np.full(2, UNKNOWN_LOG_FREQUENCY, np.float32),
            last_logs=np.full(2, UNKNOWN_LOG_FREQUENCY, np.float32),
            numbers=np.zeros(2, np.int64),
            capitals=np.zeros(2, bool),
        )

    def _number_words(self, words: Sequence[str]) -> np.ndarray:
        if self._find_numbers is None:
            return np.zeros(len(words), np.int64)
        return self._find_numbers(words)

    def _choose_near_words(
        self, core: str, near: np.ndarray, corrections: Sequence[str]
    ) -> dict[str, int]:
        """Chooses the near words that become candidates of a word.

        Args:
            near: Numbers of near words, ascending, of which the likeliest are chosen.
            corrections: Words that it is a known misspelling of, all of which are chosen.

        Returns:
            The distances in edits, by word.
        """
        words = self._lexicon.words
        key = fold_word(core)
        near = near[self._is_word[near]][:MAX_COMPARED_WORDS]

        distances, distances_with_case = process.cdist(
            [key, _lower_inner_word(core)],
            [words[number] for number in near.tolist()],
            scorer=OSA.distance,
            dtype=np.uint8,
        )
        has_other_initial = self._initials[near] != ord(key[0])
        edits = distances_with_case + INITIAL_EDIT_COST * has_other_initial
        scores = self._logs[near] - EDIT_COST * edits
        max_distance = 3 if len(key) >= MIN_LONG_CHARS else 2
        scores[(distances == 0) | (distances > max_distance)] = -np.inf

        candidates: dict[str, int] = {}
        for index in np.argsort(-scores, kind="stable")[: self._choose_max_near(key)]:
            word = words[near[index]]
            if scores[index] > -np.inf and self._may_replace(core, word):
                candidates[word] = int(distances[index])
        for word in corrections:
            if word not in candidates and self._may_replace(core, word):
                candidates[word] = OSA.distance(word, key)
        return candidates

    def _may_replace(self, core: str, other: str) -> bool:
        """Returns whether a folded word may replace a word with unusual characters.

        These words are mostly names. If few words of the lexicon have accents, a known word with
        accents is never replaced (`naïve`), and an unknown one may only lose or change them, if it
        is in lower case. The edits of a word with inner capitals must remove these, or move one to
        its start; a word of four letters may have one edit more.
        """
        if core.isascii() and core[1:].islower():
            return True

        key = fold_word(core)
        if self._has_few_accents and not key.isascii():
            is_unknown = self._lexicon.find_number(key) < 0
            return is_unknown and core.islower() and remove_accents(other) == remove_accents(key)

        if has_inner_capital(core) and not core.isupper():
            inner = _lower_inner_word(core)
            capitals = sum(map(str.isupper, inner))
            small_letters = len(inner) - capitals
            min_small_letters = MIN_SMALL_LETTERS + core[0].isupper()
            if capitals > MAX_INNER_CAPITALS or small_letters < min_small_letters:
                return False
            if other == key:
                return self._is_common(other)
            if other == key[1] + key[0] + key[2:]:  # `hTe`
                return core[1].isupper()
            max_distance = capitals + (small_letters >= MIN_SMALL_LETTERS_OF_TWO_EDITS)
            return OSA.distance(other, inner) <= max_distance
        return True

    def _is_common(self, key: str) -> bool:
        """Returns whether a folded word is known from the texts, and usually in lower case."""
        return self._compute_capital_share(key) < MAX_COMMON_CAPITAL_SHARE

    @cached_property
    def _has_few_accents(self) -> bool:
        """Whether fewer than 1% of the frequent words have non-ASCII letters, as in English."""
        words = self._lexicon.words[:_FREQUENT_WORDS]
        return sum(not word.isascii() for word in words) < 0.01 * len(words)

    def _choose_max_near(self, key: str) -> int:
        """Returns the maximum number of near words that become candidates of a folded word."""
        if len(key) <= MAX_SHORT_CHARS:
            return MAX_NEAR_OF_SHORT
        number = self._lexicon.find_number(key)
        # Columns 0 and 1 of the counts are for the texts; column 2 is the first list.
        is_listed = number >= 0 and self._lexicon.counts[number, 2:3].sum() > 0
        return MAX_NEAR_OF_LISTED if is_listed else MAX_NEAR

    def _find_splits(self, key: str) -> list[tuple[str, str]]:
        """Returns the likeliest two words that make up a word, if they are likely enough.

        If few words of the lexicon have accents, a word with accents is not divided.
        """
        if self._has_few_accents and not key.isascii():
            return []

        lowest_log = max(-24.0, self.compute_log_frequency(key) - SPLIT_COST)

        # An unknown word is below `lowest_log`. So both words are at most as long as the longest
        # known one, and the time is not quadratic in the length of the word.
        ends = range(
            max(1, len(key) - self._max_word_chars), min(len(key), self._max_word_chars + 1)
        )
        splits: list[tuple[float, tuple[str, str]]] = []
        for end in ends:
            pair = (key[:end], key[end:])
            splits.append(
                (self.compute_log_frequency(pair[0]) + self.compute_log_frequency(pair[1]), pair)
            )
        if not splits:
            return []

        log, best = max(splits)
        return [best] if log > lowest_log and all(map(is_word, best)) else []

    def _compute_features(
        self, core: str, key: str, row: _Row, *, is_known: bool, others: int
    ) -> list[float]:
        """Computes the features of a candidate without its context.

        Args:
            core: The word.
            key: The folded word.
            is_known: Whether the word is a known misspelling of the candidate.
            others: Number of chosen near words.
        """
        features = [0.0] * FORM_FEATURES
        features[row.origin] = 1.0
        if row.origin == _NONE:
            return features

        text = row.text
        log = self.compute_log_frequency(row.first)
        features[_FREQUENCY] = (log + 12) / 4
        features[_STATISTICS] = [
            log > UNKNOWN_LOG_FREQUENCY,
            self._compute_capital_share(row.first),
        ]
        features[_CASE] = [
            text.islower(),
            text[:1].isupper(),
            text.isupper() and len(text) > 1,
        ]
        if row.origin == _KEEP:
            features[_WORD] = self._compute_word_features(core, key, others)
            return features

        edits = _describe_edits(row.first, key, row.distance)
        features[_EDIT_COUNT] = edits.number
        features[_IS_KNOWN_MISSPELLING] = is_known
        features[_COMMON] = edits.common
        features[_FREQUENCY_GAIN] = (log - self.compute_log_frequency(key)) / 8
        features[_SINGLE_EDIT] = edits.single
        features[_DISTANCES] = edits.distances

        inner_distance = OSA.distance(_lower_inner_word(text), _lower_inner_word(core))
        first_letter_distance = OSA.distance(text, core) - inner_distance
        features[_CASE_EDITS] = [
            inner_distance - row.distance,
            first_letter_distance * core[0].isupper(),
            first_letter_distance * core[0].islower(),
        ]
        return features

    def _compute_word_features(self, core: str, key: str, others: int) -> list[float]:
        """Computes the features of the word itself; see `_compute_features`.

        Numbers are scaled to the order of 1, because they are inputs of a network.
        """
        rarest, mean = self._compute_rarity(key)
        has_mixed_case = not (core.islower() or core.istitle() or core.isupper())
        capital_share = sum(map(str.isupper, core)) / len(core)
        return [
            len(key) / 8,
            rarest,
            mean,
            not key.isascii(),
            others / 10,
            has_mixed_case,
            capital_share,
            len(key) == 1,
        ]

    def _compute_rarity(self, key: str) -> tuple[float, float]:
        """Computes the log-probability of the rarest letter trigram of a word, and the mean.

        The unit is 5 nats. Counts are smoothed: 0.3 is added to trigrams, and 10 to bigrams.
        """
        counts = self._letter_counts
        framed = f" {key} "
        logs = [
            math.log((counts[framed[i : i + 3]] + 0.3) / (counts[framed[i : i + 2]] + 10))
            for i in range(len(framed) - 2)
        ]
        return min(logs) / 5, sum(logs) / len(logs) / 5

    @cached_property
    def _letter_counts(self) -> Counter[str]:
        """Counts of letter bigrams and trigrams in the most frequent words."""
        counts: Counter[str] = Counter()
        for word in self._lexicon.words[:_FREQUENT_WORDS]:
            framed = f" {word} "
            for i in range(len(framed) - 2):
                counts[framed[i : i + 3]] += 1
                counts[framed[i : i + 2]] += 1
        return counts


def _list_cased_forms(core: str, key: str, *, with_capital: bool) -> list[str]:
    """Lists spellings of a candidate in the cases that may replace a word.

    Args:
        core: The word.
        key: The folded candidate.
        with_capital: Whether to include a capitalized spelling if the word has no capital.
    """
    capital = key[:1].upper() + key[1:]
    upper = [key.upper()] if 2 * sum(map(str.isupper, core)) > len(core) > 1 else []
    if core[:1].isupper():
        forms = [*upper, capital, key]
    else:
        forms = [key, *([capital] if with_capital else []), *upper]
    return [*dict.fromkeys(_copy_apostrophes(core, form) for form in forms)]


def _copy_apostrophes(word: str, candidate: str) -> str:
    """Replaces apostrophes in a candidate by typographic ones if the word has these."""
    return candidate.replace("'", "\u2019") if "\u2019" in word else candidate


def _is_spelled(phrase: str) -> bool:
    """Returns whether a phrase consists of words without punctuation."""
    return all(map(is_word, phrase.split(" ")))


def _are_equivalent(first: str, second: str) -> bool:
    """Returns whether two texts are equal after Unicode normalization."""
    if first.isascii() and second.isascii():
        return first == second
    return unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second)


def _lower_inner_word(word: str) -> str:
    """Lowers the case of the first letter of a word, or of a word in capitals.

    Other capitals inside a word remain, because they are errors.
    """
    if word.isupper():
        return fold_word(word)
    return fold_word(word[:1]) + word[1:].replace("’", "'")


class _Edits(NamedTuple):
    """Features of the edits from a candidate to a word."""

    number: list[float]  # one-hot: 0, 1, 2, or more
    common: list[float]  # similarities
    single: list[float]  # see `_describe_single_edit`
    distances: list[float]  # edit distances without swaps, and without replacements


@lru_cache(64)  # a candidate has several spellings
def _describe_edits(candidate: str, key: str, distance: int) -> _Edits:
    """Computes the features of the edits from a folded candidate to a folded word."""
    number = [0.0] * 4
    number[min(distance, 3)] = 1.0
    common = [
        (len(candidate) - len(key)) / 2,
        candidate[0] == key[0],
        candidate[-1] == key[-1],
        sorted(candidate) == sorted(key),
        _extract_consonants(candidate) == _extract_consonants(key),
        OSA.distance(remove_accents(candidate), remove_accents(key)) / 2,
    ]
    distances = [Levenshtein.distance(candidate, key) / 2, Indel.distance(candidate, key) / 2]
    return _Edits(number, common, _describe_single_edit(candidate, key), distances)


def _extract_consonants(word: str) -> str:
    """Returns the consonants of a word, without repetitions of the previous one."""
    consonants = ""
    for letter in word:
        if letter not in _VOWELS and not consonants.endswith(letter):
            consonants += letter
    return consonants


def _describe_single_edit(right: str, wrong: str) -> list[float]:
    """Computes the features of a single edit; zeros if there are several edits or none.

    They are the one-hot operation (insertion, deletion, replacement), and whether it confuses
    neighboring keys, confuses vowels, or doubles or undoubles a letter.
    """
    operations = [*Levenshtein.editops(right, wrong)]
    if len(operations) != 1:
        return [0.0] * 6

    (operation,) = operations
    position = operation.src_pos
    # An inserted or deleted letter is compared with the letter before it.
    previous = right[max(position - 1, 0)]
    old = previous if operation.tag == "insert" else right[position]
    new = previous if operation.tag == "delete" else wrong[operation.dest_pos]
    return [
        operation.tag == "insert",
        operation.tag == "delete",
        operation.tag == "replace",
        _are_neighbors(old, new),
        {old, new} <= _VOWELS,
        operation.tag != "replace" and old == new,
    ]


def _are_neighbors(first: str, second: str) -> bool:
    """Returns whether two letters are adjacent on a QWERTY keyboard."""
    if first not in _KEYS or second not in _KEYS:
        return False
    rows = abs(_KEYS[first].row - _KEYS[second].row)
    columns = abs(_KEYS[first].column - _KEYS[second].column)
    return rows <= 1 and columns <= 1
