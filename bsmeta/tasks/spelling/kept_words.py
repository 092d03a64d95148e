"""Words that are never flagged or changed: the key `keep_words`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import xxhash

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import refuse_special_file
from bsmeta.data.text.sentences import divide_compound, find_word_core
from bsmeta.tasks.spelling.config import is_word_file
from bsmeta.tasks.spelling.lexicon import remove_possessive


class KeptWords:
    """A list of words. An entry in lower case stands for the word in every case.

    Args:
        entries: Words, and names of files of words (`is_word_file`).

    Raises:
        ConfigurationError: If a file cannot be read.
        DataError: If a file is a pipe, a socket or a device.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        words: list[str] = []
        for entry in entries:
            words += _read_words(entry) if is_word_file(entry) else [entry]
        self._words = frozenset(words)

    def __bool__(self) -> bool:
        return bool(self._words)

    def __contains__(self, token: str) -> bool:
        """Returns whether a token is a word of the list, or a compound with such a part.

        Punctuation around the token, and a possessive s, are ignored.
        """
        if not self._words:
            return False
        if self._is_listed(token):
            return True

        span = find_word_core(token)
        if span is None:
            return False
        core = token[span.start : span.end]
        parts = [core[part.start : part.end] for part in divide_compound(core)]
        return any(self._is_listed(word) for word in (core, *parts))

    def _is_listed(self, word: str) -> bool:
        forms = (word, remove_possessive(word))
        return any(form in self._words or form.lower() in self._words for form in forms)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the words: a file of the same name may have others."""
        return xxhash.xxh3_64_hexdigest("\n".join(sorted(self._words)).encode())


def _read_words(name: str) -> list[str]:
    """Reads the words of a file, which white space separates."""
    file = Path(name).expanduser()
    refuse_special_file(file)
    try:
        return file.read_text(encoding="utf-8-sig").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"keep_words: {name} cannot be read: {error}; expected a file of a word per line, in "
            "UTF-8",
            ["keep_words"],
        ) from error
