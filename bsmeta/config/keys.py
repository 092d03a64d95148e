"""`key(...)`: a schema field with its meaning, for `--help` and the documentation."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def key(default: Any, meaning: str, *, deepspeed: str | None = None) -> Any:
    """A dataclass field of the schema.

    Args:
        default: The default value; lists and dicts are copied for each instance.
        meaning: One line for `--help` and the reference documentation.
        deepspeed: The DeepSpeed JSON key (dotted) that must agree with this one, if there is one.
    """
    metadata = {"meaning": meaning, "deepspeed": deepspeed}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):  # a nested dataclass
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
