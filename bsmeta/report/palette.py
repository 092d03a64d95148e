"""The colors of reports, each for light and for dark pages.

A page defines a CSS variable for each color (`page.py`). Figures are drawn in the light colors,
which `figures.py` then replaces with the variables.

The contrast of text and its background is at least 4.5 (WCAG 2.1, level AA), for every text color
on every background. The series follow Okabe and Ito (2008), whose colors stay distinct under every
common kind of color blindness; colors that would be faint on white are darkened.
"""

from __future__ import annotations

import colorsys

_TEXT_COLORS = {
    "ink": ("#1f2328", "#e6e8eb"),
    "muted": ("#525a64", "#b0b8c1"),
}
_BACKGROUNDS = {
    "page": ("#ffffff", "#15191e"),
    "raised": ("#f5f7f9", "#1e242b"),
    "chunk": ("#dfe2e6", "#2b3139"),
}
_HIGHLIGHTS = {
    "content": ("#c7e5dd", "#1e4139"),
    "mention": ("#efe4c8", "#43391f"),
    "highlight": ("#b4dec6", "#234a36"),
}
_GRAPHICS = {
    "grid": ("#dde1e6", "#353b43"),
    "good": ("#0b6bb0", "#62b0f0"),
    "bad": ("#c2500a", "#ff9a5c"),
    "series-1": ("#24292e", "#f0f2f4"),
    "series-2": ("#0072b2", "#58b0f2"),
    "series-3": ("#d55e00", "#ff8f4d"),
    "series-4": ("#008a63", "#3ccfa0"),
    "series-5": ("#b3589a", "#e79ad0"),
    "series-6": ("#a87700", "#ecbb3c"),
    "series-7": ("#3d9ad6", "#a5dcff"),
    "series-8": ("#7b2d43", "#f2839f"),
    "series-9": ("#6b7300", "#cdd45c"),
    "series-10": ("#6d6a8f", "#b9b4e8"),
}
_COLORS = {**_TEXT_COLORS, **_BACKGROUNDS, **_HIGHLIGHTS, **_GRAPHICS}

LIGHT = {name: light for name, (light, _) in _COLORS.items()}
"""The colors of a light page, by the names of their variables."""

DARK = {name: dark for name, (_, dark) in _COLORS.items()}
"""The colors of a dark page, by the names of their variables."""

INK = LIGHT["ink"]
MUTED = LIGHT["muted"]
GRID = LIGHT["grid"]
GOOD = LIGHT["good"]
BAD = LIGHT["bad"]
SERIES = [color for name, color in LIGHT.items() if name.startswith("series-")]

_GOLDEN_ANGLE = 137.5  # degrees; spreads any number of hues
_FIRST_HUE = 70
_HUE_SHARE = 0.18  # of a hue in the background of a metadata type; more makes muted text faint


def list_type_colors(count: int) -> dict[str, tuple[str, str]]:
    """Computes background colors for `count` metadata types, on light and on dark pages.

    Returns:
        Both colors, by the name of their variable: `type-1`, `type-2`, …
    """
    colors = {}
    for number in range(1, count + 1):
        hue = (number * _GOLDEN_ANGLE + _FIRST_HUE) % 360 / 360
        red, green, blue = colorsys.hls_to_rgb(hue, 0.5, 0.75)
        light, dark = (
            _mix_colors((red, green, blue), _parse_color(background))
            for background in _BACKGROUNDS["raised"]
        )
        colors[f"type-{number}"] = (light, dark)
    return colors


def _parse_color(color: str) -> tuple[float, float, float]:
    """Returns red, green and blue of `#rrggbb`, from 0 to 1."""
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red / 255, green / 255, blue / 255


def _mix_colors(hue: tuple[float, float, float], background: tuple[float, float, float]) -> str:
    """Returns the background with a share of the hue, as `#rrggbb`."""
    mixed = bytes(
        round(255 * (_HUE_SHARE * hue_channel + (1 - _HUE_SHARE) * background_channel))
        for hue_channel, background_channel in zip(hue, background, strict=True)
    )
    return f"#{mixed.hex()}"
