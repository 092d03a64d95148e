"""Candidate corrections of a word, with their features.

The candidates of a word are words within two edits, the words of which it is a known misspelling,
two words that were written as one, and all these in lower case and with a capital. What is known
about a candidate without its context is computed once for each form of a word.
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

from bsmeta.data.text.sentences import Span, joined_parts
from bsmeta.tasks.spelling.lexicon import Lexicon, Parsed, fold, hash_words, parse
from bsmeta.tasks.spelling.noise import plain
from bsmeta.tasks.spelling.word_parts import elision_length, is_word, word_runs

LOOKED_AT = 300  # near words that are compared with a word: the most frequent
MOST_NEAR, MOST_NEAR_OF_SHORT, MOST_NEAR_OF_KNOWN = 12, 32, 8
"""Near words that are candidates of a word, of a short one, and of one that a list has."""
SHORT = 3  # characters of a short word at most
LEAST_CAPITAL_SHARE = 0.05
"""Occurrences with a capital from which a candidate is also written with one, inside a sentence."""
EDIT_COST = 5.0  # cost of an edit in the choice of candidates, in nats of word frequency
LONG = 7  # characters from which words at three edits are candidates
FORMS_IN_MEMORY = 200_000

SPLIT_COST = 12.0
_VOWELS = frozenset("aeiouy")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_KEYS = {
    key: (row, column + row / 2)
    for row, keys in enumerate(_ROWS)
    for column, key in enumerate(keys)
}
_KINDS = ("insert", "delete", "replace")
_KEEP, _NONE, _NEAR, _SPLIT = range(4)

UNKNOWN = -25.0  # the logarithm of the frequency of an unknown word
UNKNOWN_CAPITAL_SHARE = 0.3
FORM_FEATURES = 41
"""What is known about a candidate without its context; a column for each list follows."""


@dataclass(frozen=True)
class Form:
    """A form of a word, and its candidates.

    The first candidate is the word itself, and the second stands for all that are not among them.
    """

    texts: list[str]  # how each candidate is written
    features: np.ndarray  # float32 [candidates, FORM_FEATURES + lists]
    hashes: np.ndarray  # as they are counted, of the first and the last of two words: [2, ...]
    logs: np.ndarray  # the logarithm of the frequency of each, float32
    capitals: np.ndarray  # whether each begins with a capital


class _Row(NamedTuple):
    """A candidate."""

    text: str  # how it is written
    first: str  # its words as they are counted; of one word, both are the same
    last: str
    kind: int  # where it is from
    distance: int = 0  # its edits


class Candidates:
    """Finds the candidates of words; a share of the known misspellings is hidden in training, where
    the errors are drawn from them.
    """

    def __init__(self, lexicon: Lexicon, hidden_misspellings: float = 0.0) -> None:
        self._lexicon = lexicon
        self._hidden = hidden_misspellings
        self._forms: dict[tuple[str, bool], Form] = {}
        self._logs = np.log(np.maximum(lexicon.frequencies, 1e-10))
        self._listed = np.pad(np.log1p(lexicon.counts) / 10, ((0, 1), (0, 0)))  # the last: unknown
        self._longest = max(map(len, lexicon.words), default=0)
        self._initials = np.array([ord(word[0]) for word in lexicon.words])
        # Tokens of the counted texts may be more than a word, such as `yes—then`.
        self._is_word = np.array([*map(is_word, lexicon.words)], bool)
        self._known_logs = dict(zip(lexicon.words, self._logs.tolist(), strict=True))
        shares = (lexicon.counts[:, 1] + 0.3) / (lexicon.counts[:, 0] + 1)
        self._capital_shares = dict(zip(lexicon.words, shares.tolist(), strict=True))

    @property
    def width(self) -> int:
        """Number of features of a candidate."""
        return FORM_FEATURES + self._listed.shape[1]

    def find(self, cores: Sequence[tuple[str, bool]]) -> list[Form]:
        """The candidates of spelled parts of words (`spelled_part`); with each part, whether a
        sentence begins with it.
        """
        if len(self._forms) > FORMS_IN_MEMORY:
            self._forms.clear()
        new = [core for core in dict.fromkeys(cores) if core not in self._forms]
        near = self._lexicon.near.find([fold(core) for core, _ in new]) if new else []
        for form, numbers in zip(new, near, strict=True):
            self._forms[form] = self._form(*form, numbers)
        return [self._forms[core] for core in cores]

    def spelled_part(self, word: str) -> Parsed:
        """The part of a token that is compared with words: of several parts, the rarest.

        All else is in `before` and `after`, which no correction changes.
        """
        parsed = parse(word)
        parts = [
            Span(run.start + start, run.start + end)
            for run in word_runs(parsed.core)
            for start, end in self._parts_of(parsed.core[slice(*run)])
        ]
        if len(parts) > 1:
            parts = [part for part in parts if part.end - part.start > 1]
        if not parts:  # nothing is spelled, or only initials (`U.S`)
            return parsed._replace(before=word, core="", after="")

        start, end = min(parts, key=lambda part: self.log(fold(parsed.core[slice(*part)])))
        before, after = parsed.before + parsed.core[:start], parsed.core[end:] + parsed.after
        return parsed._replace(before=before, core=parsed.core[start:end], after=after)

    def _parts_of(self, word: str) -> list[Span]:
        """The places of the parts of an unknown compound; of any other word, the whole."""
        whole = Span(0, len(word))
        if self._lexicon.number(fold(word)) >= 0:
            return [whole]
        parts = [part for part in joined_parts(word) if part.end - part.start > 1]
        if len(parts) < 2:
            parts = [whole]
        return [self._without_elision(word, part) for part in parts]

    def _without_elision(self, word: str, part: Span) -> Span:
        """The place of a part of a word without its elided article, unless it is listed with it."""
        text = word[slice(*part)]
        key = fold(text)
        if self._lexicon.number(key) >= 0 or key in self._lexicon.misspellings:
            return part
        return Span(part.start + elision_length(text), part.end)

    def log(self, key: str) -> float:
        """The logarithm of the frequency of a word."""
        return self._known_logs.get(key, UNKNOWN)

    def _capital_share(self, key: str) -> float:
        """The share of the occurrences of a word that have a capital which no sentence explains."""
        return self._capital_shares.get(key, UNKNOWN_CAPITAL_SHARE)

    def _form(self, core: str, is_start: bool, near: np.ndarray) -> Form:
        if not core:
            return self._not_spelled
        key = fold(core)
        known = [word for word in self._lexicon.misspellings.get(key, ()) if _is_spelled(word)]
        if known and xxhash.xxh3_64_intdigest(key.encode()) < self._hidden * 2**64:
            known = []
        chosen = self._choose(core, near, known)
        rows = [_Row(core, key, key, _KEEP), _Row("", "", "", _NONE)]
        for other, distance in {key: 0, **chosen}.items():
            has_capital = self._capital_share(other) > LEAST_CAPITAL_SHARE
            texts = _cased(core, other, with_capital=is_start or has_capital)
            rows += [
                _Row(text, other, other, _NEAR, distance)
                for text in texts
                if not _are_equivalent(text, core)
            ]
        for first, second in self._splits(key):
            text = f"{first.capitalize() if core[0].isupper() else first} {second}"
            rows.append(_Row(_with_apostrophes_of(core, text), first, second, _SPLIT, 1))
        features = [
            self._features(core, key, row, is_known=row.first in known, others=len(chosen))
            for row in rows
        ]
        listed = self._listed[[self._lexicon.number(row.first) for row in rows]]
        return Form(
            [row.text for row in rows],
            np.concatenate([np.array(features), listed], 1).astype(np.float32),
            np.stack(
                [hash_words([row.first for row in rows]), hash_words([row.last for row in rows])]
            ),
            np.array([self.log(row.first) for row in rows], np.float32),
            np.array([row.text[:1].isupper() for row in rows]),
        )

    @cached_property
    def _not_spelled(self) -> Form:
        """The rows of a word that is not spelled."""
        features = np.zeros((2, self.width), np.float32)
        features[[0, 1], [_KEEP, _NONE]] = 1
        logs = np.full(2, UNKNOWN, np.float32)
        return Form(["", ""], features, np.zeros((2, 2), np.uint64), logs, np.zeros(2, bool))

    def _choose(self, core: str, near: np.ndarray, known: Sequence[str]) -> dict[str, int]:
        """The words that are candidates of a word, with their distances: some of those near it, and
        all of which it is a known misspelling.
        """
        words, key = self._lexicon.words, fold(core)
        near = near[self._is_word[near]][:LOOKED_AT]
        limit = 3 if len(key) >= LONG else 2
        distances, with_case = process.cdist(
            [key, _inner_case(core)], [words[number] for number in near.tolist()],
            scorer=OSA.distance, dtype=np.uint8,
        )  # fmt: skip
        cost = with_case + 0.5 * (self._initials[near] != ord(key[0]))
        scores = self._logs[near] - EDIT_COST * cost
        scores[(distances == 0) | (distances > limit)] = -np.inf
        own, most = self._lexicon.number(key), MOST_NEAR
        if len(key) <= SHORT:
            most = MOST_NEAR_OF_SHORT
        elif own >= 0 and self._lexicon.counts[own, 2:3].sum() > 0:
            most = MOST_NEAR_OF_KNOWN
        best = np.argsort(-scores, kind="stable")[:most]
        found = {
            words[near[place]]: int(distances[place]) for place in best if scores[place] > -np.inf
        }
        return found | {word: OSA.distance(word, key) for word in known if word not in found}

    def _splits(self, key: str) -> list[tuple[str, str]]:
        """The likeliest two words that are written as one, if they are likelier than the word."""
        least = max(-24.0, self.log(key) - SPLIT_COST)
        # Both must be known, as an unknown one is rarer than `least`; so neither is longer than
        # every known word, and the time does not grow with the square of the word's length.
        places = range(max(1, len(key) - self._longest), min(len(key), self._longest + 1))
        pairs = [(key[:place], key[place:]) for place in places]
        found = [(self.log(first) + self.log(second), (first, second)) for first, second in pairs]
        return [
            pair
            for both, pair in sorted(found, reverse=True)[:1]
            if both > least and all(map(is_word, pair))
        ]

    def _features(
        self, core: str, key: str, row: _Row, *, is_known: bool, others: int
    ) -> list[float]:
        """The features of a candidate without its context.

        Args:
            core, key: The word as it is written, and as it is counted.
            others: The number of near words.
        """
        text, other, _, kind, distance = row
        found = [0.0] * FORM_FEATURES
        found[kind] = 1.0
        if kind == _NONE:
            return found
        log = self.log(other)
        found[4] = (log + 12) / 4
        found[5:7] = [log > UNKNOWN, self._capital_share(other)]
        found[7:10] = [text.islower(), text[:1].isupper(), text.isupper() and len(text) > 1]
        if kind == _KEEP:
            rarest, mean = self._rarity(key)
            found[10:18] = [
                len(key) / 8, rarest, mean, not key.isascii(), others / 10,
                not (core.islower() or core.istitle() or core.isupper()),
                sum(map(str.isupper, core)) / len(core), len(key) == 1,
            ]  # fmt: skip
            return found
        found[18:22], found[23:29], found[30:36], found[39:41] = _edit_features(
            other, key, distance
        )
        found[22] = is_known
        found[29] = (log - self.log(key)) / 8
        with_inner = OSA.distance(_inner_case(text), _inner_case(core))
        unexplained = OSA.distance(text, core) - with_inner
        found[36:39] = [
            with_inner - distance,
            unexplained * core[0].isupper(),
            unexplained * core[0].islower(),
        ]
        return found

    def _rarity(self, key: str) -> tuple[float, float]:
        """How rare the rarest triple of letters of a word is, and the mean, in nats / 5."""
        counts = self._letters
        framed = f" {key} "
        logs = [
            math.log((counts[framed[at : at + 3]] + 0.3) / (counts[framed[at : at + 2]] + 10))
            for at in range(len(framed) - 2)
        ]
        return min(logs) / 5, sum(logs) / len(logs) / 5

    @cached_property
    def _letters(self) -> Counter[str]:
        """How often letters follow each other in the known words: pairs, and triples."""
        counts: Counter[str] = Counter()
        for word in self._lexicon.words[:50_000]:
            framed = f" {word} "
            for at in range(len(framed) - 2):
                counts[framed[at : at + 3]] += 1
                counts[framed[at : at + 2]] += 1
        return counts


def _cased(core: str, key: str, *, with_capital: bool) -> list[str]:
    """How a candidate, in lower case (`key`), may be written in place of a word; perhaps with a
    capital where the word has none.
    """
    capital = key[:1].upper() + key[1:]
    upper = [key.upper()] if 2 * sum(map(str.isupper, core)) > len(core) > 1 else []
    if core[:1].isupper():
        forms = [*upper, capital, key]
    else:
        forms = [key, *([capital] if with_capital else []), *upper]
    return [*dict.fromkeys(_with_apostrophes_of(core, form) for form in forms)]


def _with_apostrophes_of(word: str, candidate: str) -> str:
    """A candidate, counted with typewriter apostrophes, with typographic ones if the word has."""
    return candidate.replace("'", "\u2019") if "\u2019" in word else candidate


def _is_spelled(phrase: str) -> bool:
    """Whether a phrase consists of words, without punctuation between them."""
    return all(map(is_word, phrase.split(" ")))


def _are_equivalent(one: str, other: str) -> bool:
    """Whether two texts are the same characters, composed or not."""
    if one.isascii() and other.isascii():
        return one == other
    return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)


def _inner_case(word: str) -> str:
    """A word with the case of its letters after the first, unless all are capitals: a capital
    inside a word is one that an error has put there.
    """
    if word.isupper():
        return fold(word)
    return fold(word[:1]) + word[1:].replace("’", "'")


@lru_cache(64)  # a candidate is written in several ways
def _edit_features(other: str, key: str, distance: int) -> tuple[list[float], ...]:
    """What the edits from a candidate to the word are like: their number; what stays the same; a
    single edit; distances with other edits.
    """
    number = [0.0] * 4
    number[min(distance, 3)] = 1.0
    same = [
        (len(other) - len(key)) / 2, other[0] == key[0], other[-1] == key[-1],
        sorted(other) == sorted(key), _skeleton(other) == _skeleton(key),
        OSA.distance(plain(other), plain(key)) / 2,
    ]  # fmt: skip
    distances = [Levenshtein.distance(other, key) / 2, Indel.distance(other, key) / 2]
    return number, same, _single_edit(other, key), distances


def _skeleton(word: str) -> str:
    """The consonants of a word, doubled ones once."""
    found = ""
    for letter in word:
        if letter not in _VOWELS and not found.endswith(letter):
            found += letter
    return found


def _single_edit(right: str, wrong: str) -> list[float]:
    """The kind of a single edit (insertion, deletion, replacement), whether it is a slip to a
    neighboring key, one of vowels, or of a doubled letter; zeros for other edits.
    """
    operations = [*Levenshtein.editops(right, wrong)]
    if len(operations) != 1:
        return [0.0] * 6
    (operation,) = operations
    at, became = operation.src_pos, operation.dest_pos
    old = right[at] if operation.tag != "insert" else right[max(at - 1, 0)]
    new = wrong[became] if operation.tag != "delete" else right[max(at - 1, 0)]
    is_doubled = operation.tag != "replace" and old == new
    return [
        *(operation.tag == kind for kind in _KINDS),
        _are_neighbors(old, new), {old, new} <= _VOWELS, is_doubled,
    ]  # fmt: skip


def _are_neighbors(one: str, other: str) -> bool:
    """Whether two letters are adjacent on a QWERTY keyboard."""
    if one not in _KEYS or other not in _KEYS:
        return False
    (row, column), (other_row, other_column) = _KEYS[one], _KEYS[other]
    return abs(row - other_row) <= 1 and abs(column - other_column) <= 1
