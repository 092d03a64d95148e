"""Misspells the words of a clean text: the training data of all spelling tasks.

The draws about a sample depend only on (seed, epoch, sample), so noise is the same for every
number of processes and after a resume, and differs between epochs.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import xxhash

from bsmeta.data.text.sentences import ABBREVIATIONS, core
from bsmeta.tasks.spelling.misspellings import (
    CharacterNoise,
    Draws,
    Misspellings,
    single_words,
    with_accent,
    with_case_of,
)

Method = Literal["artificial", "realistic", "mixed"]

_SPACES = re.compile(r"(\s+)")
# URLs, e-mail addresses, host and file names, identifiers.
_NAME = re.compile(r"://|^www\.|@|\w\.\w{2,}|[\\/_]")


@dataclass(frozen=True)
class Noise:
    """How words are misspelt.

    Attributes:
        method: `artificial`: random edits of characters; `realistic`: known misspellings, or
            character noise for a word that has none; `mixed`: either, by `artificial_share`.
        misspellings: Known misspellings of words (not used by `artificial`).
        characters: Character noise for words without known misspellings; None: they stay.
        word_probability: Probability that a word is edited.
        artificial_share: Share of artificial edits where `method` is `mixed`.
        edit_probability: p of the geometric distribution of the number of edits of a word.
        lost_case: Probability that a misspelled word is in lower case (realistic edits).
        accent_share: Share of the realistic errors in which a letter gets an accent.
        slip_share: Share of the realistic errors that are slips: random edits in lower case.
        slip_probability: p of the geometric distribution of the number of edits of a slip.
        clean_share: Share of the samples that are not edited.
        keep_word_count: Whether the number of words (separated by whitespace) must not change:
            misspellings that contain spaces are then not used.
        letters: The letters that artificial edits insert.
    """

    method: Method = "mixed"
    misspellings: Misspellings = field(default_factory=dict, repr=False)
    characters: CharacterNoise | None = field(default=None, repr=False)
    word_probability: float = 0.2
    artificial_share: float = 0.2
    edit_probability: float = 0.8
    lost_case: float = 0.0
    accent_share: float = 0.0
    slip_share: float = 0.0
    slip_probability: float = 0.55
    clean_share: float = 0.0
    keep_word_count: bool = True
    letters: str = string.ascii_letters

    def corrupt(self, text: str, *, seed: int, epoch: int, sample: int | str) -> str:
        """Misspells words of a text.

        Args:
            text: The clean text.
            seed: The seed of the run.
            epoch: The epoch; each has other noise.
            sample: What identifies the sample in the data set.

        Returns:
            The text with the same whitespace, and other words.
        """
        draws = Draws(seed, epoch, sample)
        if draws.uniform() < self.clean_share:
            return text
        parts = _SPACES.split(text)
        words = range(0, len(parts), 2)
        for number in np.flatnonzero(draws.uniforms(len(words)) < self.word_probability).tolist():
            parts[2 * number] = self._edit(parts[2 * number], draws)
        return "".join(parts)

    def _edit(self, word: str, draws: Draws) -> str:
        """Misspells one word, without the punctuation around it."""
        span = core(word)
        if span is None or not is_editable(word):
            return word
        edited = self._edit_core(word[span.start : span.end], draws)
        return word[: span.start] + edited + word[span.end :]

    def _edit_core(self, word: str, draws: Draws) -> str:
        if self.method == "artificial" or (
            self.method == "mixed" and draws.uniform() < self.artificial_share
        ):
            return artificial_edits(
                word, draws.geometric(self.edit_probability), draws, letters=self.letters
            )
        edited = self._realistic(word, draws)
        is_lost = self.lost_case > 0 and draws.uniform() < self.lost_case
        return edited.lower() if is_lost and edited != word else edited

    def _realistic(self, word: str, draws: Draws) -> str:
        """An accent, a slip, or a misspelling, by their shares."""
        others = self.accent_share + self.slip_share
        drawn = draws.uniform() if others > 0 else 1.0
        if drawn < self.accent_share:
            return with_accent(word, draws)
        if drawn < others:
            count = draws.geometric(self.slip_probability)
            slipped = artificial_edits(word.lower(), count, draws, letters=self._small_letters)
            return with_case_of(word, slipped)
        return self._misspell(word, draws)

    @cached_property
    def _small_letters(self) -> str:
        return "".join(dict.fromkeys(self.letters.lower()))

    def _misspell(self, word: str, draws: Draws) -> str:
        """A known misspelling of a word, or one like those of other words."""
        known = self._usable.get(word) or self._usable.get(word.lower())
        if known:
            return with_case_of(word, known[draws.below(len(known))])
        return self.characters.edit(word, draws) if self.characters else word

    @cached_property
    def misspellings_hash(self) -> str:
        """Identifies the map of misspellings, whose file or package may change."""
        return xxhash.xxh3_64_hexdigest(repr(sorted(self.misspellings.items())).encode())

    @cached_property
    def _usable(self) -> Misspellings:
        return single_words(self.misspellings) if self.keep_word_count else self.misspellings


def is_editable(word: str) -> bool:
    """Whether a word is spelled: not one without letters, a number, URL, address, file name,
    identifier, or abbreviation with its full stop (`Mr.`).
    """
    span = core(word)
    if span is None or any(map(str.isdigit, word)) or _NAME.search(word):
        return False
    has_stop = word[span.end : span.end + 1] == "."
    return not (has_stop and word[span.start : span.end].lower() in ABBREVIATIONS)


def word_labels(corrupt: str, correct: str) -> list[int]:
    """Per word of two texts of equal length in words: 1 if they differ, otherwise 0."""
    pairs = zip(corrupt.split(), correct.split(), strict=True)
    return [int(wrong != right) for wrong, right in pairs]


def artificial_edits(word: str, count: int, draws: Draws, *, letters: str) -> str:
    """Makes random edits: each inserts, deletes, swaps or replaces a letter.

    No position is edited twice; characters that are not letters stay, and at least one letter
    remains. Edits for which no position is left are not made.
    """
    characters = list(word)
    free = list(map(str.isalpha, word))
    for _ in range(count):
        places = {name: found for name, found in _places(characters, free).items() if found}
        if not places:
            break
        operation = list(places)[draws.below(len(places))]
        at = places[operation][draws.below(len(places[operation]))]
        if operation == "insert":
            characters.insert(at, letters[draws.below(len(letters))])
            free.insert(at, False)
        elif operation == "delete":
            del characters[at], free[at]
        elif operation == "swap":
            characters[at : at + 2] = characters[at + 1], characters[at]
            free[at : at + 2] = False, False
        else:
            others = letters.replace(characters[at], "") or letters
            characters[at] = others[draws.below(len(others))]
            free[at] = False
    return "".join(characters)


def _places(characters: list[str], free: list[bool]) -> dict[str, list[int]]:
    """Where a word can be edited by each operation."""
    last = len(free) - 1
    untouched = [at for at, is_free in enumerate(free) if is_free]
    gaps = [
        at for at in range(len(free) + 1) if (at == 0 or free[at - 1]) and (at > last or free[at])
    ]
    swaps = [
        at
        for at in untouched
        if at < last and free[at + 1] and characters[at] != characters[at + 1]
    ]
    deletable = untouched if sum(map(str.isalpha, characters)) > 1 else []
    return {"insert": gaps, "delete": deletable, "swap": swaps, "replace": untouched}
