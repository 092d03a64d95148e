"""Mappings of Bootleg's entity folders: JSON objects, and from release 1.1 on also marisa tries.

NAME.json   {key: value}
NAME/       a folder of tries: `record_trie.marisa` has for each key pairs of numbers, the first
            one in `vocabulary_trie.marisa`, the second a score; or, with
            `key_vocabulary_trie.marisa` and `value_vocabulary_trie.marisa`, both names;
            or `vocabulary_trie.marisa` with the number of each key in `itoexti.npy`
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.json_lines import Problems

RECORDS, VOCABULARY, NUMBERS = "record_trie.marisa", "vocabulary_trie.marisa", "itoexti.npy"
NONE = -1
"""The number that fills up the pairs of a key."""


def locate(folder: Path, name: str) -> Path | None:
    """The mapping of a name in a folder, as a trie or as JSON; None if there is neither."""
    paths = (folder / name, folder / f"{name}.json")
    return next((path for path in paths if path.exists()), None)


class MappingFile:
    """A mapping that has been read, and the problems of its keys.

    Args:
        path: A JSON file, or a folder of tries.
        form: The type of the content.

    Attributes:
        path: The same.
        content: The mapping. The value of a key in a record trie is a list of `(name, score)`; with
            two vocabularies, `{first name: [second name, …]}`.

    Raises:
        DataError: If it cannot be read, or is of another form.
    """

    def __init__(self, path: Path, form: Any) -> None:
        self.path = path
        self._problems = Problems(path)
        self._repeated: list[str] = []
        self._raw = ""
        try:
            found = _read_tries(path) if path.is_dir() else self._read_json()
            self.content = msgspec.convert(found, form)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise DataError(f"{path}: not what was expected: {error}") from error
        for key in self._repeated:
            self.add(key, f"{key!r} is there twice", occurrence=2)

    def add(self, key: str, reason: str, occurrence: int = 1) -> None:
        """Adds a problem of a key."""
        place = -1
        for _ in range(occurrence):
            quoted = (json.dumps(key, ensure_ascii=False), json.dumps(key))
            place = max(self._raw.find(text, place + 1) for text in quoted)
        self._problems.add(
            self._raw.count("\n", 0, max(place, 0)) + 1 if self._raw else None, reason
        )

    def close(self) -> None:
        """Raises the problems, if there are any."""
        self._problems.close()

    def _read_json(self) -> Any:
        self._raw = self.path.read_text(encoding="utf-8")
        return json.loads(self._raw, object_pairs_hook=self._object)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            self._repeated += [key for key in found if keys.count(key) > 1]
        return found


def _read_tries(folder: Path) -> dict[str, Any]:
    """The content of a folder of tries.

    Raises:
        DataError: If they cannot be read, or the library that reads them is not installed.
    """
    try:
        import marisa_trie
    except ImportError as error:
        raise DataError(
            f"{folder} holds marisa tries, and the library that reads them is not installed: "
            "pip install -e .[bootleg]"
        ) from error

    def vocabulary(name: str) -> Any:
        return marisa_trie.Trie().load(str(folder / name))

    try:
        if not (folder / RECORDS).exists():
            names, numbers = vocabulary(VOCABULARY), np.load(folder / NUMBERS)
            return {key: int(numbers[number]) for key, number in names.items()}
        most = int(json.loads((folder / "max_value.json").read_text()))
        has_scores = (folder / VOCABULARY).exists()
        records = marisa_trie.RecordTrie("<" + ("lf" if has_scores else "ll") * most)
        pairs = (
            (key, _pairs(values)) for key, values in records.load(str(folder / RECORDS)).items()
        )
        if has_scores:
            names = vocabulary(VOCABULARY)
            return {key: [(names.restore_key(n), score) for n, score in own] for key, own in pairs}
        first, second = (vocabulary(f"{part}_{VOCABULARY}") for part in ("key", "value"))
        return {
            key: _grouped((first.restore_key(one), second.restore_key(two)) for one, two in own)
            for key, own in pairs
        }
    except (RuntimeError, LookupError, EOFError, TypeError) as error:  # marisa's are RuntimeErrors
        raise DataError(
            f"{folder}: its tries cannot be read ({error}); copy the folder again"
        ) from error


def _pairs(values: tuple[Any, ...]) -> Iterable[tuple[int, Any]]:
    pairs = zip(values[::2], values[1::2], strict=True)
    return [pair for pair in pairs if pair[0] != NONE]


def _grouped(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for first, second in pairs:
        groups[first].append(second)
    return dict(groups)
