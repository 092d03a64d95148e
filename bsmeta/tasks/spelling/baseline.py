"""The baselines that a model must beat: a dictionary, and changing nothing.

The dictionary is that of symspellpy (82,765 English words with their frequencies, MIT license), or
any list of words with counts. A word that it lacks is an error; its correction is the most frequent
of the nearest words, at an edit distance of at most 2 (a swap of neighbors is one edit).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import reporting
from bsmeta.tasks.spelling.characters import with_case_of
from bsmeta.tasks.spelling.noise import is_editable
from bsmeta.tasks.spelling.text import core, words

if TYPE_CHECKING:
    from symspellpy import SymSpell

CHANGE_NOTHING = "change nothing"
DICTIONARY = "dictionary"
MOST_EDITS = 2

_PARTS = re.compile(r"([-–—/'’.]+)")
_POSSESSIVE = re.compile(r"['’]s?$", re.IGNORECASE)

Judge = Callable[[Sequence[str]], list[Any]]
"""Lines → per line: the flags of its words, one flag in a list, or the corrected line."""


class Dictionary:
    """Detects and corrects misspellings with a list of words.

    Args:
        word_list: A file of lines `word count`; None: the English words of symspellpy.

    Raises:
        ConfigurationError: If symspellpy is not installed, or the file cannot be read.
    """

    def __init__(self, word_list: str | None = None) -> None:
        self._speller = _load_speller(word_list)
        self.correct_word = lru_cache(2**18)(self._correct_word)

    def flags(self, text: str) -> list[int]:
        """Per word of a text: 1 if it is not in the dictionary, otherwise 0."""
        return [int(not self.knows(text[start:end])) for start, end in words(text)]

    def correct(self, text: str) -> str:
        """The text with every word that is not in the dictionary replaced by the nearest."""
        parts, at = [], 0
        for start, end in words(text):
            parts += [text[at:start], self.correct_word(text[start:end])]
            at = end
        return "".join([*parts, text[at:]])

    def knows(self, word: str) -> bool:
        """Whether a word (or each part of a compound) is right, or is none: a number, a URL."""
        span = core(word)
        if span is None or not is_editable(word):
            return True
        return all(map(self._knows_part, self._parts(word[span.start : span.end])))

    def _parts(self, word: str) -> list[str]:
        """The word itself if the dictionary has it, otherwise what its compound consists of."""
        if self._knows_part(word):
            return [word]
        return _PARTS.split(_POSSESSIVE.sub("", word))[::2]

    def _knows_part(self, part: str) -> bool:
        lower = part.lower().replace("’", "'")
        return len(part) < 2 or lower in self._speller.words

    def _correct_word(self, word: str) -> str:
        span = core(word)
        if span is None or self.knows(word):
            return word
        nearest = self._nearest(word[span.start : span.end])
        return word[: span.start] + nearest + word[span.end :]

    def _nearest(self, word: str) -> str:
        from symspellpy import Verbosity

        found = self._speller.lookup(word.lower(), Verbosity.TOP, MOST_EDITS)
        return with_case_of(word, found[0].term) if found else word


def baselines(task: str, word_list: str | None = None) -> dict[str, Judge]:
    """The baselines of a task, by name.

    Args:
        task: `sed_words`, `sed_sequence` or `sec`.
        word_list: The words of the dictionary (see `Dictionary`).

    Raises:
        ConfigurationError: If symspellpy is not installed, or the file cannot be read.
    """
    dictionary = Dictionary(word_list)

    def of_lines(judge_line: Callable[[str], Any]) -> Judge:
        return lambda lines: list(map(judge_line, reporting(lines)))

    judges: dict[str, dict[str, Callable[[str], Any]]] = {
        "sed_words": {
            DICTIONARY: dictionary.flags,
            CHANGE_NOTHING: lambda line: [0] * len(line.split()),
        },
        "sed_sequence": {
            DICTIONARY: lambda line: [int(any(dictionary.flags(line)))],
            CHANGE_NOTHING: lambda line: [0],
        },
        "sec": {DICTIONARY: dictionary.correct, CHANGE_NOTHING: str},
    }
    return {name: of_lines(judge_line) for name, judge_line in judges[task].items()}


@cache
def _load_speller(word_list: str | None) -> SymSpell:
    """Reads the words, which takes seconds: once per process."""
    try:
        from symspellpy import SymSpell
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the dictionary baseline needs symspellpy, which is not installed; install it (pip "
            "install symspellpy, or the extra `spelling`)"
        ) from error
    speller = SymSpell(MOST_EDITS)
    package = resources.files("symspellpy")
    file = word_list or str(package / "frequency_dictionary_en_82_765.txt")
    if not speller.load_dictionary(file, 0, 1, encoding="utf-8-sig") or not speller.words:
        raise ConfigurationError(
            f"dictionary: {file} is missing, or has no line with a word and its count; expected "
            "lines `word count`",
            ["dictionary"],
        )
    return speller
