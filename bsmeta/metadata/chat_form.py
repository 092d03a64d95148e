"""The form of a metadata type in a chat template, which renders its records without bsmeta.

A type declares its form (`MetadataType.chat_form`), `chat_template.j2` interprets it, and
`chat_template.py` writes the forms of a configuration into it.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

Part = tuple[str, str]
"""A literal text, and the field after it: `value`, `key`, `year`, `month`, or "" for none."""


@dataclass(frozen=True, kw_only=True)
class ChatForm:
    """How a chat template renders the values of a type.

    Attributes:
        kind: `value`: the value, perhaps in buckets; `address`: a part of an address; `date`: year
            and month of a date in ISO 8601; `constant`: the same text for every document; `code`:
            impossible, because it takes code.
        parts: The rendered record.
        parts_of_year: The rendered record of a date without a month.
        part: Of an address: `full`, `host` or `path`.
        scale: The numbers n and k of a scale n * 10^k, of which the whole multiples are rendered.
        bounds: Numerator and denominator of each bound of the buckets, ascending.
        labels: The texts of the buckets, one more than bounds.
        text: The text of a constant.
        reason: Why a form is impossible.
    """

    kind: str
    parts: tuple[Part, ...] = ()
    parts_of_year: tuple[Part, ...] = ()
    part: str = ""
    scale: tuple[int, int] | tuple[()] = ()
    bounds: tuple[tuple[int, int], ...] = ()
    labels: tuple[str, ...] = ()
    text: str = ""
    reason: str = ""


def split_template(template: str) -> tuple[Part, ...]:
    """Splits a template such as `URL: {value}` into its literal texts and fields."""
    return tuple(
        (literal, field or "") for literal, field, _, _ in string.Formatter().parse(template)
    )
