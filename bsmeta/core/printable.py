"""Makes text of data safe to show: nothing in it acts on a terminal, and everything is visible."""

from __future__ import annotations

import re

# Terminals act on control characters (C0, DEL, C1): colors, cursor, title, links, the clipboard.
# Overrides and isolates of the text direction show characters in another order than they have (CVE-
# 2021-42574); marks of direction (U+200E, U+200F), which ordinary Arabic and Hebrew text contains,
# cannot. Lone surrogates cannot be encoded. `\r` only ends a line, before `\n`.
_ACTING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
_LINE_ENDS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\u2028": "\\u2028",
                            "\u2029": "\\u2029"})  # fmt: skip


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Replaces characters that act on a terminal by their escapes in Python, such as `\x1b`.

    Args:
        text: Any text; what is printable stays as it is.
        one_line: Also replaces line ends and tabs, which otherwise stay.
    """
    if text.isprintable():
        return text
    shown = _ACTING.sub(_escape, text)
    return shown.translate(_LINE_ENDS) if one_line else shown


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()
