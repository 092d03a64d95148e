"""Puts nested values on one level, as trackers and lines on the screen need them."""

from __future__ import annotations

from typing import Any


def flatten_values(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flattens nested values to pairs of a path, such as `parts/url`, and a value."""
    items: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            items += flatten_values(value, f"{prefix}{name}/")
        else:
            items.append((prefix + name, value))
    return items
