"""Decodes the JSON-LD of pages leniently, because much of it is not valid JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bsmeta.core.parsing import decode_json

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Comment and CDATA marks that hide a script from old browsers and from XML parsers
_ENVELOPE_START = re.compile(r"\s*+(?:(?:/[/*]\s*+)?(?:<!--|<!\[CDATA\[)(?:\s*+\*/)?)")
_ENVELOPE_END = re.compile(r"(?:/[/*]\s*+)?(?:-->|\]\]>)(?:\s*+\*/)?\s*+\Z|;\s*+\Z")
_MAX_ENDING_CHARS = 40
_MEMBER = re.compile(r'"(\w{1,40}+)"\s*+:\s*+"([^"\\]{0,200}+)"')


def decode_json_ld(text: str) -> list[Any]:
    """Returns the value of a block of JSON-LD, in a list; of invalid JSON, its string members.

    Strings may contain line breaks and other control characters, which become spaces, and the block
    may be in a comment or CDATA section. A block that is invalid for another reason (a quotation
    mark or comma too many, several values) yields a dictionary for each member whose value is a
    plain string.
    """
    try:
        return [decode_json(text)]
    except msgspec.DecodeError:
        pass

    text = _CONTROL.sub(" ", _remove_envelope(text))
    try:
        return [decode_json(text)]
    except msgspec.DecodeError:
        return [{match[1]: match[2]} for match in _MEMBER.finditer(text)]


def _remove_envelope(text: str) -> str:
    """Removes comment and CDATA marks around a block, and a semicolon after it."""
    beginning = _ENVELOPE_START.match(text)
    if beginning is not None:
        text = text[beginning.end() :]
    end_start = max(len(text.rstrip()) - _MAX_ENDING_CHARS, 0)
    end = _ENVELOPE_END.search(text, end_start)
    return text if end is None else text[: end.start()]
