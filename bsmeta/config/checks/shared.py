"""Values that are in both Hydra and the DeepSpeed JSON, and how the two are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bsmeta.config.checks.problems import MISSING, Problem, show

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A key of the JSON whose value Hydra owns.

    Attributes:
        key: The key in the JSON, dotted.
        owner: The Hydra key (or the calculation) that determines the value, as shown in messages.
        value: The value according to Hydra.
        default: What DeepSpeed uses if the key is missing; None: a missing key is no problem.
        override: Returns the override that makes Hydra agree with a value of the JSON; None: there
            is none.
    """

    key: str
    owner: str
    value: Any
    default: str | None = None
    override: Callable[[Any], str] | None = None


def override_of(name: str) -> Callable[[Any], str]:
    """Returns a function that formats a value as `name=value` for the command line."""
    return lambda value: f"{name}={show(value)}"


def look_up(document: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or MISSING."""
    node: Any = document
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return MISSING
        node = node[name]
    return node


def compare(document: Mapping[str, Any], shared: Shared, file: str) -> Iterator[Problem]:
    """Yields a problem unless the JSON has `"auto"` or Hydra's value, in Hydra's type."""
    found = look_up(document, shared.key)
    expected = f'"auto" or {show(shared.value)} ({shared.owner})'
    write = f'write "auto" for {shared.key} in {file}'
    if found is MISSING:
        if shared.default is not None:
            missing = f"no such key (DeepSpeed would silently take {shared.default})"
            yield Problem(shared.key, file, missing, expected, write)
        return
    if found == AUTO or same(found, shared.value):
        return
    if shared.override is not None and same_type(found, shared.value):
        write += f", or pass {shared.override(found)}"
    yield Problem(shared.key, file, show(found), expected, write)


def same(found: Any, value: Any) -> bool:
    """Whether value and type agree: `"8"`, `8.0` and `true` are not 8; an int may equal a float."""
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(same, found, value))
    return same_type(found, value) and bool(found == value)


def same_type(found: Any, value: Any) -> bool:
    """Whether `found` has the type of `value`; an int is also accepted for a float."""
    if isinstance(value, float):
        return isinstance(found, (int, float)) and not isinstance(found, bool)
    return type(found) is type(value)
