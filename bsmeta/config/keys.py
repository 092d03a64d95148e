"""`key(...)`: a schema field with its meaning, for `--help` and the documentation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass
from typing import Any


def key(default: Any, meaning: str, *, deepspeed: str | None = None, is_path: bool = False) -> Any:
    """A dataclass field of the schema.

    Args:
        default: The default value; lists and dicts are copied for each instance.
        meaning: One line for `--help` and the reference documentation.
        deepspeed: The DeepSpeed JSON key (dotted) that must agree with this one, if there is one.
        is_path: Whether the value names files or folders: a `~` at its beginning is expanded.
    """
    metadata = {"meaning": meaning, "deepspeed": deepspeed, "is_path": is_path}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):  # a nested dataclass
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def expand_home(section: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Expands a `~` at the beginning of every path of a configuration, in place.

    Yields:
        The dotted key and the value of those that name a user who is not known here.
    """
    for one in fields(section):
        name, value = prefix + one.name, getattr(section, one.name)
        if is_dataclass(value):
            yield from expand_home(value, f"{name}.")
        elif one.metadata.get("is_path") and value is not None:
            values = value if isinstance(value, list) else [value]
            paths = [os.path.expanduser(v) if isinstance(v, str) else v for v in values]
            yield from ((name, path) for path in paths if str(path).startswith("~"))
            setattr(section, one.name, paths if isinstance(value, list) else paths[0])
