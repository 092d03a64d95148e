"""Requests for text: from the command line, lines of a file, or lines of a dialogue.

In a dialogue (standard input, a terminal or a pipe), a line `key=value` sets a metadata type or a
sampling parameter for the following prompts (`key=` resets it); any other line is a prompt. A
leading space makes any line a prompt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bsmeta.config.tools import GenerateConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.problems import refuse_out_of_bounds

_SETTING = re.compile(r"(\w+)=(.*)")
_MAPPINGS = ("metadata", "null_metadata")

HELP = "a prompt, or key=value ({names}, and {fields}); key= resets it; Ctrl-D ends"


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A request for text; `GenerateConfig` documents the fields, and their bounds.

    `id` is only copied to the result.
    """

    id: str | int | None = None
    metadata: dict[str, Any] = {}
    prompt: str = ""
    null_metadata: dict[str, Any] = {}
    guidance: float = 1.0
    max_new_tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 42
    num_samples: int = 1


FIELDS = tuple(name for name in Request.__struct_fields__ if name != "id")


def request_of(config: GenerateConfig) -> Request:
    """The request of the command line."""
    return changed({name: getattr(config, name) for name in FIELDS}, {})


def changed(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Request:
    """A request with some of the defaults replaced.

    Raises:
        ConfigurationError: A field is unknown, or a value is not possible.
    """
    merged = {**defaults, **values}
    try:
        request = msgspec.convert(merged, Request)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_explained(error, merged)) from error
    refuse_out_of_bounds(GenerateConfig(**{name: getattr(request, name) for name in FIELDS}))
    return request


def _explained(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """`temperature=-1: Expected …`, from msgspec's `Expected … - at `$.temperature``."""
    message, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`")
    if name:
        return f"{name}={values.get(name)!r}: {message}"
    return f"{message}; expected any of {', '.join(Request.__struct_fields__)}"


def read_requests(path: str, defaults: Request) -> list[Request]:
    """Read the requests of a JSON Lines file; missing fields have the values of `defaults`.

    Raises:
        DataError: The file cannot be read, or lines are not valid requests; lists all such lines.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"input={path} cannot be read: {error}") from error
    base = msgspec.structs.asdict(defaults)
    requests, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = msgspec.json.decode(line, type=dict[str, Any])
            requests.append(changed(base, values))
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigurationError) as error:
            problems.append(f"{path}, line {number}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return requests


class Dialogue:
    """Keeps the current settings and turns lines into requests.

    Args:
        check: Raises a `ConfigurationError` for metadata that the model cannot be given.
    """

    def __init__(
        self, request: Request, types: Iterable[str], check: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self._first = msgspec.structs.asdict(request)
        self._now = dict(self._first)
        self._types = tuple(types)
        self._check = check

    def parse(self, line: str) -> Request | None:
        """The request of a line; None if the line only changed a setting."""
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
            known = ", ".join([*self._types, *(field for field in FIELDS if field != "prompt")])
            raise ConfigurationError(
                f"{name}: expected any of {known} before `=` (a blank before the line makes it a "
                "prompt)"
            )

    def requests(self, lines: Iterable[str]) -> Iterator[Request]:
        """Yield the requests of all lines; prints errors to standard error and continues."""
        for line in lines:
            try:
                request = self.parse(line.rstrip("\r\n"))
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
    fields = ", ".join(field for field in FIELDS if field not in ("prompt", *_MAPPINGS))
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
