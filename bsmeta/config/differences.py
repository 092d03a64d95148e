"""In what two nested dicts differ, in words: saved and present ones, or those of two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differing(name: str, other: Any, current: Any, where: str, here: str = "now") -> Iterator[str]:
    """Lines that name the leaves in which two nested dicts differ.

    Args:
        name: Dotted name of the dicts; empty at the root.
        other: One of them.
        current: The one that this process has.
        where: Where `other` stands, in words.
        here: Where `current` stands.
    """
    if isinstance(other, dict) and isinstance(current, dict):
        for part in sorted({*other, *current}):
            below = f"{name}.{part}" if name else str(part)
            pair = other.get(part, "absent"), current.get(part, "absent")
            yield from differing(below, *pair, where, here)
    elif other != current:
        yield f"  {name}: {other} {where}, {current} {here}"
