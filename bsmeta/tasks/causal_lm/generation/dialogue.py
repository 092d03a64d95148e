"""The dialogue of an interactive session: lines of standard input that become requests.

A line `key=value` sets a metadata type or a sampling parameter for the following prompts (`key=`
resets it); any other line is a prompt. A leading space makes any line a prompt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import yaml

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.parsing import parse_yaml
from bsmeta.tasks.causal_lm.generation.contexts import check_metadata
from bsmeta.tasks.causal_lm.generation.requests import FIELDS, Request, replace_defaults

HELP = "a prompt, or key=value ({names}, and {fields}); key= resets it; Ctrl-D ends"

_SETTING = re.compile(r"(\w+)=(.*)")
_MAPPINGS = ("metadata", "null_metadata")
"""Fields of a request that hold a mapping."""


class Dialogue:
    """Keeps the current settings of an interactive session, and turns lines into requests."""

    def __init__(self, request: Request, config: MetadataConfig) -> None:
        self._defaults = msgspec.structs.asdict(request)
        self._settings = dict(self._defaults)
        self._config = config

    def parse(self, line: str) -> Request | None:
        """Returns the request of a line; None if the line only changes a setting.

        Raises:
            ConfigurationError: If the setting is unknown or its value is invalid.
        """
        setting = _SETTING.fullmatch(line)
        if setting is None:
            return replace_defaults(self._settings, {"prompt": line.removeprefix(" ")})

        name, text = setting.groups()
        types = self._config.metadata_list
        fields = [field for field in FIELDS if field != "prompt"]
        if name in fields:
            self._set_field(name, text)
        elif name in types:
            self._set_metadata(name, text)
        else:
            raise ConfigurationError(
                f"{name}: expected any of {', '.join([*types, *fields])} before `=` (a blank "
                "before the line makes it a prompt)"
            )
        return None

    def _set_field(self, name: str, text: str) -> None:
        """Sets a field of the requests; an empty text resets it."""
        value = _parse_value(text) if text else self._defaults[name]
        if name in _MAPPINGS:
            check_metadata(value if isinstance(value, dict) else {}, self._config)
        self._settings = msgspec.structs.asdict(replace_defaults(self._settings, {name: value}))

    def _set_metadata(self, name: str, text: str) -> None:
        """Sets a metadata type of the requests; an empty text removes it."""
        metadata = {key: value for key, value in self._settings["metadata"].items() if key != name}
        if text:
            metadata[name] = True if text == "true" else text
        check_metadata(metadata, self._config)
        self._settings["metadata"] = metadata

    def iterate_requests(self, lines: Iterable[str]) -> Iterator[Request]:
        """Yields the requests of all lines; prints errors to standard error and continues."""
        for line in lines:
            try:
                request = self.parse(line.rstrip("\r\n"))
            except ConfigurationError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            if request is not None:
                yield request


def read_input_lines(types: Iterable[str]) -> Iterator[str]:
    """Yields the lines of standard input; at a terminal, prints help and a prompt."""
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


def _parse_value(text: str) -> Any:
    """Parses a value in YAML, as on the command line."""
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{text}: not readable: {error}") from error
