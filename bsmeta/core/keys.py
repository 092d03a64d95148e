"""`key(...)`: a schema field with its metadata: meaning, accepted values, DeepSpeed counterpart.

The checks, `--help` and the documentation are derived from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Values:
    """The values that a key accepts; null is never refused if its type allows it.

    Of a list or a mapping, they are those of each entry.

    Attributes:
        choices: The only accepted values.
        at_least: The smallest accepted number.
        at_most: The largest accepted number.
        above: Exclusive lower bound; infinity is refused.
        below: Exclusive upper bound.
        finite: Infinity is refused.
    """

    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = False

    def __str__(self) -> str:
        """The values as the documentation shows them; empty if any value is accepted."""
        if self.choices:
            return " | ".join(self.choices)
        named = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        bounds = [f"{sign} {bound}" for sign, bound in named.items() if bound is not None]
        return ", ".join([*bounds, *(["finite"] if self.finite else [])])


def key(
    default: Any,
    meaning: str,
    *,
    deepspeed: str | None = None,
    deepspeed_default: str | None = None,
    is_path: bool = False,
    heading: str | None = None,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    finite: bool = False,
) -> Any:
    """A dataclass field of the schema.

    Args:
        default: The default value; lists and dicts are copied for each instance.
        meaning: One line for `--help` and the reference documentation.
        deepspeed: The DeepSpeed JSON key (dotted) that must agree with this one, if there is one.
        deepspeed_default: What DeepSpeed uses where the JSON lacks that key, if the JSON must have
            it.
        is_path: Whether the value names files or folders: a `~` at its beginning is expanded.
        heading: The heading that `--help` and the documentation show above this key and the next.
        choices, at_least, at_most, above, below, finite: The accepted values (see `Values`).
    """
    values = Values(choices, at_least, at_most, above, below, finite)
    metadata = {
        "meaning": meaning,
        "deepspeed": deepspeed,
        "deepspeed_default": deepspeed_default,
        "is_path": is_path,
        "heading": heading,
        "values": values,
    }
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):  # a nested dataclass
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def inherited(section: type, name: str, default: Any) -> Any:
    """A field of a base class, with another default."""
    described = next(field_ for field_ in fields(section) if field_.name == name)
    return field(default=default, metadata=described.metadata)


def values_of(described: Field[Any]) -> Values:
    """The values that a field of a schema accepts."""
    found: Values = described.metadata["values"]
    return found


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yields the keys of a section and of the sections in it, which lists and mappings may hold.

    Args:
        section: A dataclass of `key(...)` fields.
        prefix: Prepended to the names, such as `data_config.`.

    Yields:
        The dotted name (entries of lists by their number), the section that has the key, and its
        field there.
    """
    for field_ in fields(section):
        name, value = prefix + field_.name, getattr(section, field_.name)
        entries = [*_sections(value)]
        for place, entry in entries:
            yield from leaves(entry, f"{name}.{place}")
        if not entries:
            yield name, section, field_


def _sections(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the sections that a value is or holds, each with its place in the value."""
    if is_dataclass(value):
        yield "", value
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, list):
        entries = enumerate(value)
    elif isinstance(value, dict):
        entries = value.items()
    yield from ((f"{place}.", entry) for place, entry in entries if is_dataclass(entry))


def expand_home(section: Any) -> Iterator[tuple[str, str]]:
    """Expands a `~` at the beginning of every path of a configuration, in place.

    Yields:
        The dotted key and the value of each path that names an unknown user.
    """
    for name, owner, field_ in leaves(section):
        value = getattr(owner, field_.name)
        if field_.metadata["is_path"] and value is not None:
            values = value if isinstance(value, list) else [value]
            paths = [os.path.expanduser(v) if isinstance(v, str) else v for v in values]
            yield from ((name, path) for path in paths if str(path).startswith("~"))
            setattr(owner, field_.name, paths if isinstance(value, list) else paths[0])
