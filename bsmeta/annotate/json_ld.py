"""Decodes JSON-LD of pages, as leniently as its readers: much of it is not quite JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bsmeta.core.parsing import decode_json

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Marks that hide a script from old browsers and from XML parsers
_ENVELOPE = re.compile(r"\s*+(?:(?:/[/*]\s*+)?(?:<!--|<!\[CDATA\[)(?:\s*+\*/)?)")
_ENVELOPE_END = re.compile(r"(?:/[/*]\s*+)?(?:-->|\]\]>)(?:\s*+\*/)?\s*+\Z|;\s*+\Z")
_MAX_ENDING_CHARS = 40  # characters
_MEMBER = re.compile(r'"(\w{1,40}+)"\s*+:\s*+"([^"\\]{0,200}+)"')


def decode_json_ld(text: str) -> list[Any]:
    """Returns the values of a block of JSON-LD: one, or all that can be rescued.

    Strings may contain line breaks and other control characters, which become spaces, and the block
    may be in a comment or CDATA section. Of a block that is no JSON for another reason (a quotation
    mark or comma too many, several values), the members whose value is a plain string are rescued,
    each as an object of its own.
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
    beginning = _ENVELOPE.match(text)
    if beginning is not None:
        text = text[beginning.end() :]
    end_start = max(len(text.rstrip()) - _MAX_ENDING_CHARS, 0)
    end = _ENVELOPE_END.search(text, end_start)
    return text if end is None else text[: end.start()]
