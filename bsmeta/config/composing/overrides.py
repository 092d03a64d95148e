"""Parses each `key=value` of a command line, and describes the mistakes in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from hydra.core.override_parser import types as hydra_types
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException

from bsmeta.config.composing.from_file import UNSET_MARK, Expansion
from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.hydra_errors import explain_error
from bsmeta.config.composing.hydra_files import ConfigReader
from bsmeta.config.composing.misfits import COMMAND_LINE, HELP_ADVICE, Names, describe_unknown_key
from bsmeta.core.errors import Problem, find_closest, format_value, suggest_nearest
from bsmeta.core.keys import list_key_names
from bsmeta.core.parsing import YAMLLoader, parse_yaml

# Hydra's grammar accepts ~ only at the beginning of an override (where it deletes a key), and in
# quoted text. The pattern matches quoted text first, up to the end if it is not closed, so that it
# reads each character once.
_HOME = re.compile(
    r"""
    "(?:\\.|[^"\\])*+ "? | '(?:\\.|[^'\\])*+ '?
    | (?<=[=\[,]) (?P<path> ~[^\s,\[\]{}'"]* )
    """,
    re.VERBOSE,
)

_QUOTED_KEY = re.compile(r"""[{,]\s*(?:"[^"]*"|'[^']*')\s*:""")


def read_overrides(texts: Sequence[str], schema: type, reader: ConfigReader) -> list[Override]:
    """Reads overrides, and replaces each `${from_file:…}` in them by the content of its file.

    Raises:
        ConfigurationError: If a file cannot be included.
    """
    expansion = Expansion(reader.folders[0], reader.note_part)
    overrides: list[Override] = []
    for text in texts:
        expanded = expansion.expand_override(quote_mapping(quote_home(text)))
        overrides.append(Override(expanded, schema, reader))
    return overrides


def extract_key(override: str) -> str:
    """Returns the key or group of an override: `model` for `+model=gpt2` or `~model`."""
    return override.partition("=")[0].lstrip("+~")


def describe_repetitions(overrides: Sequence[str]) -> Iterator[str]:
    """Yields a line for each key that is set again, to another value, which takes effect."""
    values: dict[str, str] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.lstrip("+")
        earlier_value = values.get(name, value)
        if equals and earlier_value != value:
            yield f"{name} is given twice on the command line: {value} counts, not {earlier_value}"
        values[name] = value


def quote_home(override: str) -> str:
    """Quotes every value of an override that begins with ~, as Hydra's grammar requires."""

    def quote_path(match: re.Match[str]) -> str:
        return f"'{match['path']}'" if match["path"] else match[0]

    return _HOME.sub(quote_path, override)


def quote_mapping(override: str) -> str:
    """Rewrites a mapping with quoted keys as a quoted text of JSON; other overrides stay unchanged.

    Hydra's grammar has no quoted keys. `bsmeta.config.composing.filling` parses the text as a
    mapping again.
    """
    name, equals, value = override.partition("=")
    if not (value.startswith("{") and _QUOTED_KEY.search(value)):
        return override

    try:
        mapping = parse_yaml(value, _FlowLoader)
        if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
            return override
        text = json.dumps(mapping, ensure_ascii=False)
    except (yaml.YAMLError, TypeError, ValueError):
        return override
    return f"{name}{equals}{QuotedString(text, Quote.single).with_quotes()}"


class _FlowLoader(YAMLLoader):
    """A loader of YAML in which only true and false are booleans, as in Hydra's grammar."""


_BOOLEAN = "tag:yaml.org,2002:bool"
_FlowLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in YAMLLoader.yaml_implicit_resolvers.items()
}
_FlowLoader.add_implicit_resolver(_BOOLEAN, re.compile(r"(?i)true|false"), [*"tTfF"])


class Override:
    """An override on a command line: `key=value`, `+key=value`, `group=option` or `~key`.

    Attributes:
        text: The override as it was passed.
        name: The key or group, without `+` and `~`.
        value: The value as text; "" if there is none.
        deletes: Whether the override deletes a key or group.
        sets_key: Whether the override sets a key, and not a group or a setting of Hydra.
        problems: The mistakes in the override.
    """

    def __init__(self, text: str, schema: type, reader: ConfigReader) -> None:
        self.text = text
        self.name = extract_key(text)
        self.value = text.partition("=")[2]
        group = self.name.partition("@")[0]
        self.deletes = text.startswith("~")
        self.sets_key = not (self.deletes or group.startswith("hydra") or reader.is_group(group))
        self._schema = schema
        self._is_known_key = self.name in reader.keys
        self._options = list_group_options().get(group, [])
        self._parsed: hydra_types.Override | None = None
        self.problems = list(self._parse())

    def format_forced(self, *, quiet: bool = False) -> str:
        """Returns the text with `++`, which makes Hydra set any key, even an unknown one.

        Args:
            quiet: Whether to leave out `++` where it is not needed, because Hydra may name a folder
                after the text.
        """
        if not self.sets_key:
            return self.text

        bare_text = self.text.lstrip("+")
        needs_force = not self._is_known_key or self.value.startswith("{")
        return f"++{bare_text}" if needs_force or not quiet else bare_text

    def list_alternatives(self) -> list[str]:
        """Lists an override for each value of a sweep.

        Returns:
            Only the override itself if it is not a sweep; nothing if it is a glob of options.
        """
        if self._parsed is None or not self._parsed.is_sweep_override():
            return [self.text]
        if isinstance(self._parsed.value(), hydra_types.Glob):
            return []
        values = self._parsed.sweep_string_iterator()
        return [f"{self.text.partition('=')[0]}={value}" for value in values]

    def sets(self, path: Names) -> bool:
        """Whether the override sets a key, a section that contains it, or a part of its value."""
        assert self._parsed is not None
        return self.sets_key and find_value(self.name, self._parsed.value(), path) is not UNSET_MARK

    def explain_refusal(self, error: Exception) -> Problem:
        """Returns the problem of an override that Hydra refuses to combine with the files.

        Args:
            error: Hydra's error.
        """
        options = self._options
        if self.deletes:
            if not options and self.name not in list_key_names(self._schema):
                return describe_unknown_key(self.name, self._schema)
            expected = "a choice that the configuration has made"
            return Problem(self.text, COMMAND_LINE, "nothing to delete", expected, "drop it")

        message = explain_error(error)
        is_unlisted = "No match in the defaults list" in message
        if is_unlisted and self.value in options:
            expected = "a + before it: no configuration has it from the outset"
            return self._describe_problem(
                format_value(self.value), expected, f"+{self.name}={self.value}"
            )

        if isinstance(error, MissingConfigException):
            options = list(error.options or options)
        elif not is_unlisted:
            options = []
        if not options:
            return self._describe_problem(self.value, message, f"correct it; {HELP_ADVICE}")

        expected = f"one of {', '.join(options)}{suggest_nearest(self.value, options)}"
        plus = "+" if self.text.startswith("+") or is_unlisted else ""
        fix = f"{plus}{self.name}={find_closest(self.value, options)}"
        return self._describe_problem(format_value(self.value), expected, fix)

    def _parse(self) -> Iterator[Problem]:
        """Parses the override; yields the mistakes that Hydra refuses in any configuration."""
        name = self.name
        has_value = "=" in self.text
        if not name or not (has_value or self.deletes):
            fix = f"{name}=VALUE, or --config-name {name}, if that is meant" if name else "drop it"
            yield self._describe_problem("no key" if has_value else "no value", "key=value", fix)
            return

        try:
            self._parsed = OverridesParser.create().parse_override(self.text)
        except HydraException as error:
            reason = str(error).partition("\n")[0]
            expected = f"key=value in Hydra's grammar ({reason})"
            quoted = f"\"{name}='{self.value}'\""
            fix = f"put the value within two kinds of quotes: {quoted}; {HELP_ADVICE}"
            yield self._describe_problem(self.value, expected, fix)
            return

        if self._parsed.is_sweep_override():
            fix = f"{name}=[{self.value}], or --multirun to run with each of them"
            yield self._describe_problem(self.value, "one value, or a list in brackets", fix)
        elif self._options and not self.deletes and not self._is_known_key:
            yield from self._check_choice(self._parsed.value())

    def _check_choice(self, content: Any) -> Iterator[Problem]:
        """Yields a problem if a group is set to anything but names of options.

        Hydra would crash with a traceback.

        Args:
            content: The parsed value.
        """
        names = content if isinstance(content, list) else [content]
        if all(isinstance(option, str) for option in names):
            return

        expected = f"one of {', '.join(self._options)}: {self.name} is a group"
        plus = "+" if self.text.startswith("+") else ""
        fix = f"{plus}{self.name}={self._options[0]}"
        keys = [key for key in list_key_names(self._schema) if key.endswith(f".{self.name}")]
        if keys and isinstance(content, list):
            expected += f", and {keys[0]} a key that takes a list"
            fix = f"{keys[0]}={self.value}"
        yield self._describe_problem(self.value, expected, fix)

    def _describe_problem(self, found: str, expected: str, fix: str) -> Problem:
        """Returns a problem of this override."""
        key = self.name or format_value(self.text)
        return Problem(key, COMMAND_LINE, found or "nothing", expected, fix)


def find_value(name: str, content: Any, path: Names) -> Any:
    """Finds the value that some content has at a path.

    Args:
        name: The dotted name of the section that the content sets; "" for the whole configuration.
        content: The value of that section, or of a key.
        path: The path in the whole configuration.

    Returns:
        The value at the path, or the value that replaces a section of the path; `UNSET_MARK` if the
        content sets neither.
    """
    sections = name.split(".") if name else []
    for section in reversed(sections):
        content = {section: content}

    for part in path:
        if isinstance(content, Mapping):
            entries = {str(key): value for key, value in content.items()}
            content = entries.get(str(part), UNSET_MARK)
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
    return content
