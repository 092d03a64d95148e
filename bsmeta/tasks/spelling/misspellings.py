"""Maps from a word to its misspellings: from a JSON file, or inverted from codespell's dictionary.

codespell's dictionary (CC BY-SA 3.0) is read from the installed package and never copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from bsmeta.core.errors import DataError

CODESPELL = "codespell"
Misspellings = Mapping[str, tuple[str, ...]]


def load_misspellings(source: str) -> Misspellings:
    """Reads a map from words to their misspellings.

    Args:
        source: `codespell`, or the path of a JSON file: {"word": ["misspelling", ...], ...}.

    Raises:
        DataError: If codespell is not installed, or the file is not such a map.
    """
    return _read_codespell() if source == CODESPELL else _read_json(Path(source))


def invert_dictionary(lines: Iterable[str]) -> Misspellings:
    """Inverts lines of codespell's form to correction -> misspellings.

    A line is `wrong->right`, `wrong->right, other,` or `wrong->right, why it is not certain`: what
    follows the last comma is a reason, which may be empty. A correction of several words is left
    out, because a text is edited word by word.

    Raises:
        DataError: If a line is none of these.
    """
    found: dict[str, dict[str, None]] = {}
    for number, line in enumerate(lines, start=1):
        wrong, arrow, data = line.strip().partition("->")
        if not line.strip():
            continue
        if not (arrow and wrong and data):
            raise DataError(
                f"line {number} of the misspellings is {line.strip()!r}; expected `wrong->right`"
            )
        corrections = data.rpartition(",")[0] if "," in data else data
        for correction in (part.strip() for part in corrections.split(",")):
            if correction and not any(map(str.isspace, correction)):
                found.setdefault(correction, {})[wrong] = None
    return _tuples(found)


def single_words(misspellings: Misspellings) -> Misspellings:
    """The map without the misspellings that contain spaces."""
    single = (
        (word, [wrong for wrong in known if not any(map(str.isspace, wrong))])
        for word, known in misspellings.items()
    )
    return _tuples({word: known for word, known in single if known})


def _read_codespell() -> Misspellings:
    try:
        dictionary = resources.files("codespell_lib") / "data" / "dictionary.txt"
    except ModuleNotFoundError as error:
        raise DataError(
            f"misspellings: {CODESPELL} is not installed; install it (pip install codespell, or "
            "the extra `spelling`), or name a JSON file: word -> list of misspellings"
        ) from error
    return invert_dictionary(dictionary.read_text(encoding="utf-8").splitlines())


def _read_json(path: Path) -> Misspellings:
    expected = 'expected {"word": ["misspelling", ...], ...}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"misspellings: {path} cannot be read ({error.strerror}); expected `{CODESPELL}` or "
            "the path of a JSON file"
        ) from error
    except ValueError as error:
        raise DataError(f"misspellings: {path} is not JSON ({error}); {expected}") from error
    if not isinstance(content, dict):
        raise DataError(f"misspellings: {path} holds a {type(content).__name__}; {expected}")
    for word, known in content.items():
        if not (isinstance(known, list) and all(isinstance(wrong, str) for wrong in known)):
            raise DataError(f"misspellings: {path}: {word!r} has {known!r}; {expected}")
    return _tuples({word: filter(None, known) for word, known in content.items()})


def _tuples(found: Mapping[str, Iterable[str]]) -> Misspellings:
    return {word: tuple(known) for word, known in found.items()}
