"""The scripts of a list of words. Words in other scripts are not judged by the list.

A list of English words has nothing to compare a Thai word with; yet each would count as unknown,
and short ones would be within two edits of `a`.

The script of a letter is the first part of its name (Unicode Standard, section 4.8): `LATIN`,
`CYRILLIC`, `CJK`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

MIN_SHARE = 0.01
"""Minimum share of the words of a list for a script to be one of its scripts."""

_NO_SCRIPTS = {"MODIFIER", "FEMININE", "MASCULINE", "MICRO", "KELVIN", "ANGSTROM", "OHM", ""}
"""First parts of the names of letters that belong to no single script."""


@lru_cache(maxsize=1 << 16)
def find_script(character: str) -> str:
    """Returns the script of a letter; "" for other characters."""
    if not character.isalpha():
        return ""
    name, _, rest = unicodedata.name(character, "").partition(" ")
    if name in ("FULLWIDTH", "HALFWIDTH"):
        name = rest.partition(" ")[0]
    return "" if name in _NO_SCRIPTS else name


class WordScripts:
    """The scripts of a list of words.

    Args:
        words: The list, whose scripts are the scripts of the first letters. With an empty list, no
            script is unknown.
    """

    def __init__(self, words: Iterable[str]) -> None:
        initials = Counter(word[:1] for word in words)
        counts: Counter[str] = Counter()
        for initial, count in initials.items():
            counts[find_script(initial)] += count
        del counts[""]

        min_count = MIN_SHARE * counts.total()
        self._scripts = {script for script, count in counts.items() if count >= min_count}

    def find_unknown(self, word: str) -> str:
        """Returns the script of a word if the list lacks it; otherwise "".

        More than half of the letters must be in scripts that the list lacks; the most frequent of
        these is returned. So `α-helix` is a word of English.
        """
        if not self._scripts or (word.isascii() and "LATIN" in self._scripts):
            return ""

        scripts = Counter(filter(None, map(find_script, word)))
        if not scripts:
            return ""
        others = Counter({name: n for name, n in scripts.items() if name not in self._scripts})
        if 2 * others.total() <= scripts.total():
            return ""
        return others.most_common(1)[0][0]
