"""Makes text of data safe to show: no character controls the terminal, and none is hidden."""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1) change a terminal's colors, cursor, title, links and clipboard.
# Overrides and isolates of the text direction display characters in a false order (CVE-2021-42574);
# direction marks (U+200E, U+200F) cannot, and ordinary Arabic and Hebrew text contains them. Lone
# surrogates cannot be encoded. `\r` is harmless only as part of a line end, before `\n`.
_UNSAFE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
_LINE_ENDS = str.maketrans(
    {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def make_printable(text: str, *, one_line: bool = False) -> str:
    r"""Replaces characters that control a terminal by their Python escapes, such as `\x1b`.

    Args:
        text: Any text; printable characters stay unchanged.
        one_line: Whether to also replace line ends and tabs.
    """
    if text.isprintable():
        return text

    escaped = _UNSAFE_CHARACTERS.sub(_escape_character, text)
    return escaped.translate(_LINE_ENDS) if one_line else escaped


def _escape_character(character: re.Match[str]) -> str:
    """Returns the Python escape of a matched character."""
    return character[0].encode("unicode_escape").decode()
