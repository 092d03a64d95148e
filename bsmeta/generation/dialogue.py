"""The interactive mode: lines from standard input, from a person or from a pipe.

A line `key=value` changes a metadata type or a way to draw for what follows (`key=` takes it back);
any other line is a prompt. A blank at its beginning makes any line a prompt.
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
    """What has been set so far.

    Args:
        request: Where it begins: what the command line says.
        types: The metadata types of the model.
        check: Raises a `ConfigurationError` for metadata that cannot be given.
    """

    def __init__(
        self, request: Request, types: Iterable[str], check: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self._first = msgspec.structs.asdict(request)
        self._now = dict(self._first)
        self._types = tuple(types)
        self._check = check

    def hear(self, line: str) -> Request | None:
        """The request that a line makes; None where it only changed something.

        Raises:
            ConfigurationError: It names no such key, or a value that is not possible.
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
        """The requests of all lines; says what is wrong with one on standard error, and goes on."""
        for line in lines:
            try:
                request = self.hear(line.rstrip("\r\n"))
            except ConfigurationError as error:
                print(error, file=sys.stderr, flush=True)
            else:
                if request is not None:
                    yield request


def lines_of_input(types: Iterable[str]) -> Iterator[str]:
    """Standard input; a person at a terminal is told what can be written, and asked for it."""
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
