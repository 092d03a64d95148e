"""Describes how two nested dicts differ: saved and current ones, or those of two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(name: str, other: Any, current: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the leaves in which two nested dicts differ: dotted name and both values."""
    if isinstance(other, dict) and isinstance(current, dict):
        for part in sorted({*other, *current}):
            below = f"{name}.{part}" if name else str(part)
            yield from differences(below, other.get(part, "absent"), current.get(part, "absent"))
    elif other != current:
        yield name, other, current


def differing(name: str, other: Any, current: Any, where: str, here: str = "now") -> Iterator[str]:
    """Yields a line for each leaf in which two nested dicts differ.

    Args:
        name: Dotted name of the dicts; empty at the root.
        other: The dict to compare with.
        current: The dict of this process.
        where: Where `other` comes from, in words.
        here: Where `current` comes from, in words.
    """
    for leaf, there, now in differences(name, other, current):
        yield f"  {leaf}: {there} {where}, {now} {here}"
