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
        kind: `value`: the value, in buckets if `scale` or `bounds` is set; `address`: a part of an
            address; `date`: year and month of a date in ISO 8601; `constant`: the same text for
            every document; `code`: the template cannot render the type, because that takes code.
        parts: The literal texts and fields of a record.
        parts_of_year: The same for a date without a month.
        part: The rendered part of an address: `full`, `host` or `path`.
        scale: The integers n and k of the factor n * 10^k; floor(factor * value) is rendered.
        bounds: Numerator and denominator of each bound of the buckets, ascending.
        labels: The texts of the buckets, one more than `bounds`.
        text: The text of a constant.
        reason: Why the template cannot render the type, if `kind` is `code`.
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
    """Splits a template such as `URL: {value}` into its literal texts and fields.

    Raises:
        ValueError: If the braces of the template are not balanced.
    """
    return tuple(
        (literal, field or "") for literal, field, _, _ in string.Formatter().parse(template)
    )
