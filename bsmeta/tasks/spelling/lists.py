"""Lists of words with their counts: of installed packages, or files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from bsmeta.core.errors import ConfigurationError

SYMSPELLPY, WORDFREQ = "symspellpy", "wordfreq"


def fold(word: str) -> str:
    """The form of a word that is counted: in lower case, with the typewriter's apostrophe."""
    return word.lower().replace("’", "'")


def read_resource(name: str) -> str:
    """Reads a file of symspellpy."""
    return (resources.files(SYMSPELLPY) / name).read_text(encoding="utf-8-sig")


def read_word_list(name: str) -> dict[str, int]:
    """The words of a list with their counts (`fold`).

    Args:
        name: A file of lines `word count`; `symspellpy`: the English list of that package;
            `wordfreq` or `wordfreq:LANGUAGE`: the large list of that package, in words of a
            billion.

    Raises:
        ConfigurationError: If the file or the package is missing, or a line has no count.
    """
    try:
        if name.partition(":")[0] == WORDFREQ:
            return _read_wordfreq(name.partition(":")[2] or "en")
        is_package = name == SYMSPELLPY
        text = read_resource("frequency_dictionary_en_82_765.txt") if is_package else Path(
            name
        ).read_text(encoding="utf-8-sig")  # fmt: skip
    except (OSError, ImportError, LookupError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"word_lists: {name} cannot be read: {error}; expected a file of lines `word count`, "
            "or symspellpy or wordfreq with that package installed (pip install -e .[spelling])",
            ["word_lists"],
        ) from error
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        word, _, count = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not word or not count.isdecimal():
            raise ConfigurationError(
                f"word_lists: {name}, line {number:,} is {line!r}; expected a word and its count",
                ["word_lists"],
            )
        found[fold(word)] = found.get(fold(word), 0) + int(count)
    return found


def _read_wordfreq(language: str) -> dict[str, int]:
    from wordfreq import get_frequency_dict

    frequencies = get_frequency_dict(language, wordlist="large")
    return {
        fold(word): max(round(frequency * 1e9), 1)
        for word, frequency in frequencies.items()
        if not any(map(str.isdigit, word)) and any(map(str.isalpha, word))
    }
