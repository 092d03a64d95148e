"""Decides by its script whether a list of words can judge a word.

A list of English words has nothing to compare a Thai word with; yet each would count as unknown,
and short ones would be within two edits of `a`. Such words are left alone.

The script of a letter is the first part of its name (Unicode Standard, section 4.8): `LATIN`,
`CYRILLIC`, `CJK`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

LEAST_SHARE = 0.01
"""Share of the words of a list that must be in a script for words of that script to be judged."""

_NO_SCRIPTS = {"MODIFIER", "FEMININE", "MASCULINE", "MICRO", "KELVIN", "ANGSTROM", "OHM", ""}
"""Beginnings of names of letters that stand beside the letters of any script."""


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
        words: The list; the script of a word is that of its first letter. An empty one judges
            all words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        initials = Counter(word[:1] for word in words)
        counts: Counter[str] = Counter()
        for initial, count in initials.items():
            counts[find_script(initial)] += count
        del counts[""]

        least = LEAST_SHARE * counts.total()
        self._scripts = {script for script, count in counts.items() if count >= least}

    def find_unknown(self, word: str) -> str:
        """Returns the script of most letters of a word if the list does not have it; otherwise "".

        A few letters of another script do not count: `α-helix` is a word of English.
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
