"""Decodes the JSON-LD of pages leniently, because much of it is not valid JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bsmeta.core.parsing import decode_json

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
# Comment and CDATA marks, which hide a script from old browsers and from XML parsers.
_ENVELOPE_START = re.compile(r"\s*+(?:(?:/[/*]\s*+)?(?:<!--|<!\[CDATA\[)(?:\s*+\*/)?)")
_ENVELOPE_END = re.compile(r"(?:/[/*]\s*+)?(?:-->|\]\]>)(?:\s*+\*/)?\s*+\Z|;\s*+\Z")
_MAX_ENDING_CHARS = 40
_MEMBER = re.compile(r'"(\w{1,40}+)"\s*+:\s*+"([^"\\]{0,200}+)"')


def decode_json_ld(text: str) -> list[Any]:
    """Decodes a block of JSON-LD: a list of its value, or of its string members if it is invalid.

    Strings may contain line breaks and other control characters, which become spaces, and the block
    may be in a comment or CDATA section. If the block is invalid for another reason (a superfluous
    quotation mark or comma, several values), the list has a dictionary for each member whose value
    is a plain string.
    """
    try:
        return [decode_json(text, allow_repeated_keys=True)]
    except msgspec.DecodeError:
        pass

    text = _CONTROL_CHARACTER.sub(" ", _remove_envelope(text))
    try:
        return [decode_json(text, allow_repeated_keys=True)]
    except msgspec.DecodeError:
        return [{match[1]: match[2]} for match in _MEMBER.finditer(text)]


def _remove_envelope(text: str) -> str:
    """Removes comment and CDATA marks around a block, and a semicolon after it."""
    envelope_start = _ENVELOPE_START.match(text)
    if envelope_start is not None:
        text = text[envelope_start.end() :]

    search_start = max(len(text.rstrip()) - _MAX_ENDING_CHARS, 0)
    envelope_end = _ENVELOPE_END.search(text, search_start)
    return text if envelope_end is None else text[: envelope_end.start()]
