"""The contrast of two colors, and the lowest that can be read."""

from __future__ import annotations

import re

LOWEST_CONTRAST = 4.5
"""Of text and its background (WCAG 2.1, level AA)."""


def luminance(color: str) -> float:
    """Returns the relative luminance of a CSS color `rgb(r, g, b)` or `#rrggbb`."""
    numbers = [int(part, 16) for part in re.findall("[0-9a-f]{2}", color[1:7])]
    if not color.startswith("#"):
        numbers = [int(part) for part in re.findall(r"\d+", color)][:3]
    linear = [n / 3294.6 if n <= 10 else ((n / 255 + 0.055) / 1.055) ** 2.4 for n in numbers]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Returns the contrast of two colors, 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
