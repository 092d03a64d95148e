"""A composed configuration as it was written, with every `${…}` and the sources of its values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bsmeta.config.composing.from_file import NO_VALUE, UNSET_MARK
from bsmeta.config.composing.interpolation import find_texts
from bsmeta.core.errors import MISSING, Problem, look_up

_KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_BRACE = re.compile(r"\$\{|[{}]")
_SELECT_PREFIX = "oc.select:"


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A configuration as it was written, before any `${…}` was resolved.

    Attributes:
        values: The keys and values.
        files: The files that were read, in this order.
        overridden: The keys that the command line sets.
        problems: The mistakes in the files and on the command line.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    overridden: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def is_read(self, name: str) -> bool:
        """Whether a `${…}` of the configuration reads a key, or a key below it."""
        return any(f"{key}.".startswith(f"{name}.") for key in self._collect_read_keys())

    def list_unread_keys(self, name: str, checked: Collection[str] = ()) -> list[str]:
        """Lists the keys below a key that no `${…}` of the configuration reads.

        If nothing in a section is read, only the section is listed. If no `${…}` reads any part of
        the key, as in the configuration that a run has saved, only the keys that the command line
        sets are listed.

        Args:
            name: The dotted key.
            checked: Keys that the program itself reads.
        """
        read_keys = {key for key in self._collect_read_keys() if f"{key}.".startswith(f"{name}.")}
        if not read_keys:
            return [key for key in self.overridden if key.startswith(f"{name}.")]
        return list(_find_unread(self.values[name], name, read_keys.union(checked)))

    def _collect_read_keys(self) -> set[str]:
        """Returns the keys that the `${…}` of the configuration read."""
        read_keys: set[str] = set()
        for text in find_texts(self.values):
            read_keys.update(self._find_keys_in(text))
        return read_keys

    def _find_keys_in(self, text: str) -> Iterator[str]:
        """Yields the keys that the `${…}` of a text read.

        The fallback of an `oc.select` counts only if its key has no value.
        """
        for body in _find_interpolations(text):
            arguments = body.removeprefix(_SELECT_PREFIX)
            is_select = arguments != body
            name, _, fallback = (part.strip() for part in arguments.partition(","))
            if not _KEY.fullmatch(name) or (fallback and not is_select):
                yield from self._find_keys_in(body)  # the arguments of another resolver
            elif is_select and look_up(self.values, name) in (MISSING, UNSET_MARK, NO_VALUE):
                yield from self._find_keys_in(fallback)
            else:
                yield name


EMPTY_COMPOSITION = Composition()
"""The composition of a configuration that was built in Python."""


def _find_interpolations(text: str) -> Iterator[str]:
    """Yields the content of each outermost `${…}` of a text."""
    start = 0
    depth = 0
    for brace in _BRACE.finditer(text):
        if depth == 0:
            if brace[0] != "${":
                continue  # a brace outside of any interpolation
            start = brace.end()

        depth += -1 if brace[0] == "}" else 1
        if depth == 0:
            yield text[start : brace.start()]


def _find_unread(value: Any, name: str, read_keys: set[str]) -> Iterator[str]:
    """Yields the unread keys of a value; a section in which nothing is read is one key.

    Args:
        name: The dotted key of the value.
    """
    if name in read_keys:
        return
    if not any(key.startswith(f"{name}.") for key in read_keys):
        yield name
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _find_unread(entry, f"{name}.{key}", read_keys)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, (dict, list)):  # a list of plain values is read as a whole
                yield from _find_unread(entry, f"{name}.{index}", read_keys)
