"""The words of a text as the small detector reads them: their bytes, and how frequent they are.

The counts are those of the training text, and of a word list. While training, the occurrences in
the sample itself are left out, or every correct word would be known, and unknown words would seem
to be wrong more often than they are in other texts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from bsmeta.config.errors import ConfigurationError, DataError

COUNTS = 12
"""Sizes of a count that the detector distinguishes: 0, 1, 2-3, 4-7, …"""
FEATURES = 3
"""Counts of a word: as it is written, without case, and in the word list."""
FILE = "words.json"
_COMPOUND = re.compile(r"[-–—/'.]+")
_FIRST, _LAST = 1, 2  # marks of a word's ends; 0 is padding, and byte b is b + 3
SYMBOLS = 256 + 3


def bare(word: str) -> str:
    """A word without the punctuation around it, and without a possessive s."""
    start, end = 0, len(word)
    while start < end and not word[start].isalnum():
        start += 1
    while end > start and not word[end - 1].isalnum():
        end -= 1
    found = word[start:end].replace("’", "'")
    return found[:-2] if found.endswith(("'s", "'S")) else found


class WordCounts:
    """How often each word occurs in the training text, and in a list.

    Args:
        text: The count of each word as written, without the punctuation around it.
        listed: The count of each word of the list, in lower case.
    """

    def __init__(self, text: Mapping[str, int], listed: Mapping[str, int]) -> None:
        self._text = dict(text)
        self._listed = dict(listed)
        self._lower: Counter[str] = Counter()
        for word, count in self._text.items():
            self._lower[word.lower()] += count

    @classmethod
    def of(cls, texts: Iterable[str], listed: Mapping[str, int]) -> WordCounts:
        """Counts the words of the training texts."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(map(bare, text.split()))
        del counts[""]
        return cls(counts, listed)

    def features(
        self, words: Sequence[str], own: Sequence[str] = (), *, hides_text: bool = False
    ) -> list[list[int]]:
        """The size of each word's counts, [words][FEATURES].

        Args:
            words: The words of a text.
            own: The words of the training text that must not count: the correct words of the
                sample itself.
            hides_text: Whether only the list counts.
        """
        cores = [bare(word) for word in words]
        exact: Counter[str] = Counter(map(bare, own))
        lower: Counter[str] = Counter()
        for word, count in exact.items():
            lower[word.lower()] += count
        found = []
        for word in cores:
            small = word.lower()
            found.append([
                0 if hides_text else _size(self._text.get(word, 0) - exact[word]),
                0 if hides_text else _size(self._lower.get(small, 0) - lower[small]),
                min((self._listed_count(small).bit_length() + 2) // 3, COUNTS - 1),
            ])  # fmt: skip
        return found

    def _listed_count(self, word: str) -> int:
        """The count of a word in the list; of a compound, that of its rarest part."""
        if word in self._listed:
            return self._listed[word]
        parts = [part for part in _COMPOUND.split(word) if len(part) > 1]
        return min((self._listed.get(part, 0) for part in parts), default=0)

    def write(self, folder: Path) -> None:
        """Writes the counts beside a model."""
        content = {"text": self._text, "listed": self._listed}
        (folder / FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> WordCounts:
        """Reads the counts beside a model.

        Raises:
            DataError: If the file is missing or damaged.
        """
        try:
            content = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(content["text"], content["listed"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{folder / FILE} cannot be read: {error}; copy the model again"
            ) from error


def _size(count: int) -> int:
    return min(max(count, 0).bit_length(), COUNTS - 1)


def word_list(name: str | None) -> dict[str, int]:
    """The words of a list with their counts, in lower case.

    Args:
        name: A file of lines `word count`; `symspellpy`: the English list of that package; None:
            no list.

    Raises:
        ConfigurationError: If the file or the package is missing, or a line has no count.
    """
    if name is None:
        return {}
    try:
        if name == "symspellpy":
            file = resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        else:
            lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ModuleNotFoundError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"word_list={name}: cannot be read: {error}; expected a file of lines `word count`, or "
            "symspellpy with that package installed (pip install -e .[spelling])",
            ["word_list"],
        ) from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        word, _, count = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not word or not count.isdecimal():
            raise ConfigurationError(
                f"word_list={name}: line {number:,} is {line!r}; expected a word and its count",
                ["word_list"],
            )
        found[word.lower()] = found.get(word.lower(), 0) + int(count)
    return found


def symbols(word: str, length: int) -> list[int]:
    """The bytes of a word between two marks; of a word of more than `length`, the ends."""
    content = word.encode()
    if len(content) > length:
        half = length // 2
        content = content[: length - half] + content[-half:]
    return [_FIRST, *(byte + 3 for byte in content), _LAST]


def form_tensors(
    texts: Sequence[Sequence[str]], features: Sequence[Sequence[Sequence[int]]], length: int
) -> dict[str, torch.Tensor]:
    """The inputs of the small detector.

    Args:
        texts: The words of each text; at least one word in all.
        features: Their counts (`WordCounts.features`).
        length: Bytes of a word that are read.

    Returns:
        `forms` (int64 [distinct words + 1, symbols]; the first is padding), `words` (int64 [texts,
        words], the form of each word; 0: padding) and `counts` (int64 [texts, words, FEATURES]).
    """
    numbers: dict[str, int] = {}
    longest = max(map(len, texts))
    words = np.zeros((len(texts), longest), np.int64)
    counts = np.zeros((len(texts), longest, FEATURES), np.int64)
    for row, text in enumerate(texts):
        words[row, : len(text)] = [numbers.setdefault(word, len(numbers) + 1) for word in text]
        counts[row, : len(text)] = features[row]
    spelled = [symbols(word, length) for word in numbers]
    forms = np.zeros((len(spelled) + 1, max(map(len, spelled))), np.int64)
    for row, form in enumerate(spelled, start=1):
        forms[row, : len(form)] = form
    return {
        name: torch.from_numpy(array)
        for name, array in (("forms", forms), ("words", words), ("counts", counts))
    }
