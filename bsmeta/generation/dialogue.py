"""The interactive mode: reads lines from standard input, a terminal or a pipe.

A line `key=value` sets a metadata type or a sampling parameter for the following prompts (`key=`
resets it); any other line is a prompt. A leading space makes any line a prompt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

from bsmeta.config.errors import ConfigurationError
from bsmeta.generation.requests import FIELDS, Request, changed

_SETTING = re.compile(r"(\w+)=(.*)")
_MAPPINGS = ("metadata", "null_metadata")

HELP = "a prompt, or key=value ({names}, and {fields}); key= takes it back; Ctrl-D ends"


class Dialogue:
    """Keeps the current settings and turns lines into requests.

    Args:
        request: The initial settings, from the command line.
        types: The metadata types of the model.
        check: Raises a `ConfigurationError` for metadata that the model cannot be given.
    """

    def __init__(
        self, request: Request, types: Iterable[str], check: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self._first = msgspec.structs.asdict(request)
        self._now = dict(self._first)
        self._types = tuple(types)
        self._check = check

    def hear(self, line: str) -> Request | None:
        """The request of a line; None if the line only changed a setting.

        Raises:
            ConfigurationError: A key is unknown, or a value is not possible.
        """
        setting = _SETTING.fullmatch(line)
        if setting is None:
            return changed(self._now, {"prompt": line.removeprefix(" ")})
        name, text = setting.groups()
        self._set(name, text)
        return None

    def _set(self, name: str, text: str) -> None:
        if name in FIELDS and name != "prompt":
            value = _value(text) if text else self._first[name]
            if name in _MAPPINGS:
                self._check(value if isinstance(value, dict) else {})
            self._now = msgspec.structs.asdict(changed(self._now, {name: value}))
        elif name in self._types:
            metadata = {key: old for key, old in self._now["metadata"].items() if key != name}
            if text:
                metadata[name] = True if text == "true" else text
            self._check(metadata)
            self._now["metadata"] = metadata
        else:
            known = ", ".join([*self._types, *(one for one in FIELDS if one != "prompt")])
            raise ConfigurationError(
                f"{name}: expected any of {known} before `=` (a blank before the line makes it a "
                "prompt)"
            )

    def requests(self, lines: Iterable[str]) -> Iterator[Request]:
        """Yield the requests of all lines; prints errors to standard error and continues."""
        for line in lines:
            try:
                request = self.hear(line.rstrip("\r\n"))
            except ConfigurationError as error:
                print(error, file=sys.stderr, flush=True)
            else:
                if request is not None:
                    yield request


def lines_of_input(types: Iterable[str]) -> Iterator[str]:
    """Yield the lines of standard input; at a terminal, prints help and a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    fields = ", ".join(one for one in FIELDS if one not in ("prompt", *_MAPPINGS))
    print(HELP.format(names=", ".join(types), fields=fields), file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            return


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{text}: not readable: {error}") from error
