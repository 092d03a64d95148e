"""Reads saved configurations, in which nothing is resolved: they have finished values.

A run writes its resolved configuration as `config.yaml`, and an exported model has the part that
rendering needs as `metadata.yaml`. Both are shared with models, so other people may have written
them: `${oc.env:NAME}` in a path would send a secret of the reader's environment to a server.
Therefore every `${` is refused, unless a backslash marks it as text. This is OmegaConf's own
notation, so Hydra reads the same values from a saved configuration.

When OmegaConf converts values to the types of a schema, it resolves everything that looks like an
interpolation, even in a list or a default. `shield_interpolations` breaks up every `${` before, so
that OmegaConf finds nothing to resolve.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from bsmeta.core.errors import ConfigurationError, Problem, format_value, raise_problems
from bsmeta.core.parsing import parse_yaml

MAX_FILE_BYTES = 4 * 2**20
"""Maximum size of a file in bytes; a list of 25,000 shards has about 2 MB."""

MAX_NESTING = 50
"""Maximum number of nested levels; the schemas have up to 5."""

MAX_NUMBER_CHARS = 100
"""Maximum number of characters of a number, whose conversion takes quadratic time."""

_OPENING = re.compile(r"(?<!\\)(\\*+)\$\{")  # with the backslashes before it

# A character for private use, put between `$` and `{`. A text that has it there already gets one
# more, so that `unshield_interpolations` restores it.
_SHIELD = "\ue000"
_SHIELDABLE = re.compile(rf"\$(?={_SHIELD}*\{{)")
_SHIELDED = re.compile(rf"\${_SHIELD}(?={_SHIELD}*\{{)")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class _Loader(yaml.SafeLoader):
    """A loader of plain values as `yaml.safe_dump` writes them, which refuses everything else.

    It refuses aliases, for example: with them, twenty lists of two may stand for a million copies.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes and checks a node.

        Raises:
            yaml.MarkedYAMLError: If the node is not a plain value within the limits.
        """
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _make_error(event, "an alias", "the values that it stands for")
        if self._depth == MAX_NESTING:
            raise _make_error(
                event, "values that are nested too deeply", f"at most {MAX_NESTING} levels"
            )

        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1

        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        elif isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise _make_error(node, f"a value of type {node.tag}", "text (in quotes) or a number")
        elif node is not None and node.tag in _NUMBER_TAGS and len(node.value) > MAX_NUMBER_CHARS:
            expected = f"{MAX_NUMBER_CHARS} characters at most"
            raise _make_error(node, "a number that is too long", expected)
        return node


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuses a mapping with a key that is not a name, or occurs twice."""
    names = set()
    for name, _ in node.value:
        if not isinstance(name, yaml.ScalarNode):
            raise _make_error(name, "a key that is a list or a mapping", "a name")
        if (name.tag, name.value) in names:
            raise _make_error(name, f"the key {name.value!r} a second time", "each key once")
        names.add((name.tag, name.value))


def _make_error(node: Any, description: str, expected: str) -> yaml.MarkedYAMLError:
    """Returns the error for a node, or for an event of the parser, with its position."""
    problem = f"found {description}, expected {expected}"
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def read_saved(path: Path) -> dict[Any, Any]:
    """Reads the keys and values of a saved configuration, without the `defaults` for Hydra.

    Raises:
        ConfigurationError: If the file is missing, too large or not YAML of plain values, or has a
            `${…}`.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file; expected the config of a run")
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigurationError(
                f"{path}: has {size:,} bytes; expected the config of a run, at most "
                f"{MAX_FILE_BYTES:,}"
            )
        return parse_saved(path.read_bytes().decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({error}); expected the config of a run, in UTF-8"
        ) from error


def parse_saved(text: str, where: str) -> dict[Any, Any]:
    """Parses the text of a saved configuration; see `read_saved`.

    Args:
        where: The file, for messages.

    Raises:
        ConfigurationError: If the text is not YAML of plain values, or has a `${…}`.
    """
    try:
        values = parse_yaml(text, _Loader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"{where}: cannot be read ({reason}); expected the config of a run, as it was saved"
        ) from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where}: found {format_value(values)}, expected keys and values")
    values.pop("defaults", None)  # for Hydra, see `bsmeta.config.saved_runs.format_yaml`

    problems = [
        _describe_interpolation(key, value, where) for key, value in _find_interpolations(values)
    ]
    raise_problems(problems)
    return dict(change_texts(values, _unescape_interpolations))


def _find_interpolations(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the text of each value with a `${` that is not escaped.

    Args:
        key: The dotted key of the value itself.
    """
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _find_interpolations(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _find_interpolations(entry, f"{key}.{number}")
    elif isinstance(value, str):
        backslashes = [len(opening[1]) for opening in _OPENING.finditer(value)]
        if any(count % 2 == 0 for count in backslashes):
            yield key, value


def _describe_interpolation(key: str, text: str, where: str) -> Problem:
    """Returns the problem of a value with a `${` that is not escaped."""
    return Problem(
        key,
        where,
        format_value(text),
        "a finished value, because a saved configuration is never resolved",
        r"write the value itself; if ${ is part of the text, write \${",
    )


def escape_interpolations(text: str) -> str:
    r"""Escapes each `${` in a text as `\${`, which OmegaConf reads as text."""
    return _OPENING.sub(lambda opening: rf"{2 * opening[1]}\${{", text)


def _unescape_interpolations(text: str) -> str:
    """Reverts `escape_interpolations`: removes half of the backslashes before each `${`."""

    def halve_backslashes(opening: re.Match[str]) -> str:
        backslashes = opening[1]
        return f"{backslashes[: len(backslashes) // 2]}${{"

    return _OPENING.sub(halve_backslashes, text)


def shield_interpolations(value: Any) -> Any:
    """Returns a copy of nested values without any `${`; `unshield_interpolations` reverts it."""
    return change_texts(value, lambda text: _SHIELDABLE.sub(f"${_SHIELD}", text))


def unshield_interpolations(value: Any) -> Any:
    """Returns a copy of nested values in which `shield_interpolations` is reverted."""
    return change_texts(value, lambda text: _SHIELDED.sub("$", text))


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a copy of nested dataclasses, dicts and lists with every text in a value changed.

    Keys are not changed, and tuples become lists.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        changes = {name: change_texts(getattr(value, name), change) for name in names}
        return dataclasses.replace(value, **changes)
    if isinstance(value, dict):
        return {name: change_texts(entry, change) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [change_texts(entry, change) for entry in value]
    return change(value) if isinstance(value, str) else value
