"""Candidate corrections of a word, with their features.

The candidates of a word are words within two edits, words of which it is a known misspelling, two
words that were written as one, and all these in lower case and with a capital. The features that do
not depend on the context are computed once for each form of a word.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
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
from bsmeta.tasks.spelling.word_parts import find_word_runs, is_word, measure_elision

LOOKED_AT = 300  # near words that are compared with a word: the most frequent

# Limits on the near words that are candidates.
MOST_NEAR = 12
MOST_NEAR_OF_SHORT = 32  # of a short word
MOST_NEAR_OF_KNOWN = 8  # of a word that is in a list

SHORT = 3  # a short word has at most this number of characters
LEAST_CAPITAL_SHARE = 0.05
"""Share of capitalized occurrences above which a candidate is also offered with a capital inside a
sentence.
"""
EDIT_COST = 5.0  # cost of an edit in the choice of candidates, in nats of word frequency
LONG = 7  # from this number of characters, words at three edits are candidates
FORMS_IN_MEMORY = 200_000

SPLIT_COST = 12.0
_VOWELS = frozenset("aeiouy")
_KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

UNKNOWN = -25.0  # the logarithm of the frequency of an unknown word
UNKNOWN_CAPITAL_SHARE = 0.3

# Origins of a candidate: the word itself, all that are not listed, a near word, two words.
_KEEP, _NONE, _NEAR, _SPLIT = range(4)

# Columns of the features of a candidate. The first four say where it is from.
_FREQUENCY = 4
_STATISTICS = slice(5, 7)  # whether it is known; its share of capitals
_CASE = slice(7, 10)  # lower case, first letter a capital, all capitals
_WORD = slice(10, 18)  # of the word itself only: see `_compute_word_features`
_EDIT_COUNT = slice(18, 22)  # 0, 1, 2, or more edits
_IS_KNOWN_MISSPELLING = 22
_COMMON = slice(23, 29)  # properties that the candidate and the word have in common
_FREQUENCY_GAIN = 29
_SINGLE_EDIT = slice(30, 36)
_CASE_EDITS = slice(36, 39)
_DISTANCES = slice(39, 41)

FORM_FEATURES = 41
"""Number of features of a candidate without its context; a column for each list follows."""


class _Key(NamedTuple):
    """The position of a key on a QWERTY keyboard."""

    row: int
    column: float  # every row is shifted by half a key


def _locate_keys() -> dict[str, _Key]:
    keys: dict[str, _Key] = {}
    for row, letters in enumerate(_KEYBOARD_ROWS):
        for column, letter in enumerate(letters):
            keys[letter] = _Key(row, column + row / 2)
    return keys


_KEYS = _locate_keys()


@dataclass(frozen=True)
class Form:
    """A form of a word, and its candidates.

    The first candidate is the word itself, and the second stands for all that are not listed; the
    others follow. A candidate may have two words, of which the first and the last are counted; of
    one word, both are the same.
    """

    texts: list[str]  # how each candidate is written
    features: np.ndarray  # float32 [candidates, FORM_FEATURES + lists]
    hashes: np.ndarray  # uint64 [2, candidates], of the first and the last word as counted
    logs: np.ndarray  # float32 [candidates], the logarithm of the frequency of the first word
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
    """A candidate."""

    text: str  # how it is written
    first: str  # its words in their counted form; of one word, both are the same
    last: str
    origin: int
    distance: int = 0  # in edits


class Candidates:
    """Finds the candidates of words.

    Args:
        lexicon: The known words.
        hidden_misspellings: Share of the known misspellings to ignore. In training, errors are
            drawn from them, so that otherwise every error would be known.
    """

    def __init__(self, lexicon: Lexicon, hidden_misspellings: float = 0.0) -> None:
        self._lexicon = lexicon
        self._hidden = hidden_misspellings
        self._forms: dict[tuple[str, bool], Form] = {}

        self._logs = np.log(np.maximum(lexicon.frequencies, 1e-10))
        self._known_logs = dict(zip(lexicon.words, self._logs.tolist(), strict=True))
        # The last row is for unknown words, whose number is -1.
        self._list_features = np.pad(np.log1p(lexicon.counts) / 10, ((0, 1), (0, 0)))
        shares = (lexicon.counts[:, 1] + 0.3) / (lexicon.counts[:, 0] + 1)
        self._capital_shares = dict(zip(lexicon.words, shares.tolist(), strict=True))

        self._longest = max(map(len, lexicon.words), default=0)
        self._initials = np.array([ord(word[0]) for word in lexicon.words])
        # Tokens of the counted texts may be more than a word, such as `yes—then`.
        self._is_word = np.array([*map(is_word, lexicon.words)], bool)

    @property
    def width(self) -> int:
        """Number of features of a candidate."""
        return FORM_FEATURES + self._list_features.shape[1]

    def find(self, cores: Sequence[tuple[str, bool]]) -> list[Form]:
        """Finds the candidates of words.

        Args:
            cores: For each word, its spelled part (`find_spelled_part`), and whether it begins a
                sentence.
        """
        if len(self._forms) > FORMS_IN_MEMORY:
            self._forms.clear()

        new = [core for core in dict.fromkeys(cores) if core not in self._forms]
        near = self._lexicon.near.find([fold_word(core) for core, _ in new]) if new else []
        for (core, is_start), near_words in zip(new, near, strict=True):
            self._forms[core, is_start] = self._build_form(core, is_start, near_words)
        return [self._forms[core] for core in cores]

    def find_spelled_part(self, word: str) -> Parsed:
        """Returns the part of a token that is compared with words: of several parts, the rarest.

        All else is in `before` and `after`, which no correction changes. A word in a script that
        the lexicon does not have is not compared.
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
        if not parts:  # nothing is spelled, or only initials (`U.S`)
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
        """Returns the parts of an unknown compound; the whole of any other word."""
        whole_word = Span(0, len(word))
        if self._lexicon.number(fold_word(word)) >= 0:
            return [whole_word]

        parts = [part for part in divide_compound(word) if part.end - part.start > 1]
        if len(parts) < 2:
            parts = [whole_word]
        return [self._cut_elision(word, part) for part in parts]

    def _cut_elision(self, word: str, part: Span) -> Span:
        """Cuts the elided article from a part of a word, unless it is listed with the article."""
        text = word[slice(*part)]
        key = fold_word(text)
        if self._lexicon.number(key) >= 0 or key in self._lexicon.misspellings:
            return part
        return Span(part.start + measure_elision(text), part.end)

    def compute_log_frequency(self, key: str) -> float:
        """Returns the logarithm of the frequency of a word."""
        return self._known_logs.get(key, UNKNOWN)

    def _compute_capital_share(self, key: str) -> float:
        """Returns the share of a word's occurrences with a capital inside a sentence."""
        return self._capital_shares.get(key, UNKNOWN_CAPITAL_SHARE)

    def _build_form(self, core: str, is_start: bool, near_words: np.ndarray) -> Form:
        if not core:
            return self._unspelled_form

        key = fold_word(core)
        corrections = [
            word for word in self._lexicon.misspellings.get(key, ()) if _is_spelled(word)
        ]
        if corrections and xxhash.xxh3_64_intdigest(key.encode()) < self._hidden * 2**64:
            corrections = []

        distances = self._choose(core, near_words, corrections)
        rows = self._list_candidate_rows(core, is_start, distances)
        features = [
            self._compute_features(
                core, key, row, is_known=row.first in corrections, others=len(distances)
            )
            for row in rows
        ]
        list_features = self._list_features[[self._lexicon.number(row.first) for row in rows]]
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
            capitals=np.array([row.text[:1].isupper() for row in rows]),
        )

    def _list_candidate_rows(
        self, core: str, is_start: bool, distances: dict[str, int]
    ) -> list[_Row]:
        """Lists the candidates of a word, from the near words with their distances."""
        key = fold_word(core)
        rows = [_Row(core, key, key, _KEEP), _Row("", "", "", _NONE)]

        for other, distance in {key: 0, **distances}.items():
            has_capital = self._compute_capital_share(other) > LEAST_CAPITAL_SHARE
            for text in _list_cased_forms(core, other, with_capital=is_start or has_capital):
                if not _are_equivalent(text, core):
                    rows.append(_Row(text, other, other, _NEAR, distance))

        for first, second in self._find_splits(key):
            text = f"{first.capitalize() if core[0].isupper() else first} {second}"
            rows.append(_Row(_copy_apostrophes(core, text), first, second, _SPLIT, 1))
        return rows

    @cached_property
    def _unspelled_form(self) -> Form:
        """The form of a word that is not spelled."""
        features = np.zeros((2, self.width), np.float32)
        features[0, _KEEP] = 1
        features[1, _NONE] = 1
        return Form(
            texts=["", ""],
            features=features,
            hashes=np.zeros((2, 2), np.uint64),
            logs=np.full(2, UNKNOWN, np.float32),
            capitals=np.zeros(2, bool),
        )

    def _choose(self, core: str, near: np.ndarray, corrections: Sequence[str]) -> dict[str, int]:
        """Chooses the words that are candidates of a word.

        Args:
            near: The numbers of near words, of which the likeliest are chosen.
            corrections: The words of which it is a known misspelling, all of which are chosen.

        Returns:
            The words, with their distances in edits.
        """
        words = self._lexicon.words
        key = fold_word(core)
        near = near[self._is_word[near]][:LOOKED_AT]

        distances, distances_with_case = process.cdist(
            [key, _lower_inner_word(core)],
            [words[number] for number in near.tolist()],
            scorer=OSA.distance,
            dtype=np.uint8,
        )
        cost = distances_with_case + 0.5 * (self._initials[near] != ord(key[0]))
        scores = self._logs[near] - EDIT_COST * cost
        limit = 3 if len(key) >= LONG else 2
        scores[(distances == 0) | (distances > limit)] = -np.inf

        number = self._lexicon.number(key)
        count = MOST_NEAR
        if len(key) <= SHORT:
            count = MOST_NEAR_OF_SHORT
        elif number >= 0 and self._lexicon.counts[number, 2:3].sum() > 0:
            count = MOST_NEAR_OF_KNOWN

        candidates: dict[str, int] = {}
        for index in np.argsort(-scores, kind="stable")[:count]:
            if scores[index] > -np.inf:
                candidates[words[near[index]]] = int(distances[index])
        for word in corrections:
            if word not in candidates:
                candidates[word] = OSA.distance(word, key)
        return candidates

    def _find_splits(self, key: str) -> list[tuple[str, str]]:
        """Returns the likeliest two words that are written as one, if they are likelier than it."""
        lowest_log = max(-24.0, self.compute_log_frequency(key) - SPLIT_COST)

        # Both words must be known, as an unknown one is below `lowest_log`; so neither is longer
        # than every known word, and the time does not grow with the square of the word's length.
        ends = range(max(1, len(key) - self._longest), min(len(key), self._longest + 1))
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
            core: The word as it is written.
            key: The word in its counted form.
            is_known: Whether the word is a known misspelling of the candidate.
            others: The number of near words.
        """
        features = [0.0] * FORM_FEATURES
        features[row.origin] = 1.0
        if row.origin == _NONE:
            return features

        text = row.text
        log = self.compute_log_frequency(row.first)
        features[_FREQUENCY] = (log + 12) / 4
        features[_STATISTICS] = [log > UNKNOWN, self._compute_capital_share(row.first)]
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
        """Computes the features of the word itself; see `_compute_features`."""
        rarest, mean = self._compute_rarity(key)
        return [
            len(key) / 8,
            rarest,
            mean,
            not key.isascii(),
            others / 10,
            not (core.islower() or core.istitle() or core.isupper()),
            sum(map(str.isupper, core)) / len(core),
            len(key) == 1,
        ]

    def _compute_rarity(self, key: str) -> tuple[float, float]:
        """Returns the log-probability of the rarest triple of letters of a word, and the mean.

        The unit is 5 nats.
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
        """How often pairs and triples of letters occur in the known words."""
        counts: Counter[str] = Counter()
        for word in self._lexicon.words[:50_000]:
            framed = f" {word} "
            for i in range(len(framed) - 2):
                counts[framed[i : i + 3]] += 1
                counts[framed[i : i + 2]] += 1
        return counts


def _list_cased_forms(core: str, key: str, *, with_capital: bool) -> list[str]:
    """Lists the ways to write a candidate in place of a word.

    Args:
        core: The word.
        key: The candidate in lower case.
        with_capital: Whether to include a capital where the word has none.
    """
    capital = key[:1].upper() + key[1:]
    upper = [key.upper()] if 2 * sum(map(str.isupper, core)) > len(core) > 1 else []
    if core[:1].isupper():
        forms = [*upper, capital, key]
    else:
        forms = [key, *([capital] if with_capital else []), *upper]
    return [*dict.fromkeys(_copy_apostrophes(core, form) for form in forms)]


def _copy_apostrophes(word: str, candidate: str) -> str:
    """Writes typographic apostrophes in a candidate if the word has them."""
    return candidate.replace("'", "\u2019") if "\u2019" in word else candidate


def _is_spelled(phrase: str) -> bool:
    """Whether a phrase consists of words, without punctuation between them."""
    return all(map(is_word, phrase.split(" ")))


def _are_equivalent(first: str, second: str) -> bool:
    """Whether two texts are the same characters, composed or not."""
    if first.isascii() and second.isascii():
        return first == second
    return unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second)


def _lower_inner_word(word: str) -> str:
    """Returns a word with its first letter in lower case, and all of it if all are capitals.

    Other capitals inside a word are errors, so they remain.
    """
    if word.isupper():
        return fold_word(word)
    return fold_word(word[:1]) + word[1:].replace("’", "'")


class _Edits(NamedTuple):
    """Features of the edits from a candidate to a word."""

    number: list[float]  # one-hot: 0, 1, 2, or more
    common: list[float]  # properties that both have in common
    single: list[float]  # see `_describe_single_edit`
    distances: list[float]  # without swaps, and without replacements


@lru_cache(64)  # a candidate is written in several ways
def _describe_edits(candidate: str, key: str, distance: int) -> _Edits:
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
    """Returns the consonants of a word, doubled ones once."""
    consonants = ""
    for letter in word:
        if letter not in _VOWELS and not consonants.endswith(letter):
            consonants += letter
    return consonants


def _describe_single_edit(right: str, wrong: str) -> list[float]:
    """Computes the features of a single edit; zeros if there are several or none.

    They are its operation (insertion, deletion, replacement), and whether it is a slip to a
    neighboring key, an exchange of vowels, or a doubled letter.
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
    """Whether two letters are adjacent on a QWERTY keyboard."""
    if first not in _KEYS or second not in _KEYS:
        return False
    rows = abs(_KEYS[first].row - _KEYS[second].row)
    columns = abs(_KEYS[first].column - _KEYS[second].column)
    return rows <= 1 and columns <= 1
