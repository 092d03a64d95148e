"""Decodes JSON objects that other programs wrote, such as the lines of a data set.

Some programs write JSON that the standard does not allow. Python and pandas write NaN and infinity
as numbers. A program that cuts a text by its UTF-16 units writes half of a surrogate pair, as an
escape or in three bytes. Both are common in columns that this package does not use, and there they
must not cost the document. This module repairs them: NaN and infinity become null, as in a Parquet
file, and half a pair becomes U+FFFD, the replacement character. In a value that the type of a
`ForeignDecoder` declares, half a pair is an error, as is NaN unless the value may be null.

Well-formed content takes the same time as with `JSONDecoder`: repairs begin only after its error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any, Generic, overload

import msgspec

from bsmeta.core.parsing import (
    HALF_A_PAIR,
    Content,
    ExtremeContentError,
    JSONDecoder,
    Value,
    decode_json,
)

Columns = dict[str, msgspec.Raw]
"""The columns of an object by name, undecoded."""

_REPLACEMENT = "\ufffd"
_OTHER_REPLACEMENT = "\ufffc"
"""If an object decodes to another value with this one, a declared value has half a pair."""

NOT_UTF8 = "a text that is not in UTF-8"

_CONSTANT = re.compile(rb"NaN|-?Infinity")
# Everything before a constant outside of strings. A string without its closing quote ends with the
# content.
_NO_CONSTANT = re.compile(
    rb'(?:[^"NI-]++|"[^"\\]*+(?:\\.?+[^"\\]*+)*+"?+|(?!NaN|-?Infinity)[NI-])*+', re.DOTALL
)
# Half a pair as an escape or in its three bytes. The first two alternatives consume an escaped
# backslash and a whole pair, so that the others match in neither.
_HALF_PAIR = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<escape>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<bytes>\xed[\xa0-\xbf][\x80-\xbf])"
)
_COLUMNS = JSONDecoder(Columns)


class ForeignDecoder(Generic[Value]):
    """Decodes objects into one type; values that the type does not declare may be non-standard.

    Args:
        value_type: The type of the objects, such as a `msgspec.Struct`.
    """

    @overload
    def __init__(self: ForeignDecoder[Value], value_type: type[Value]) -> None: ...

    @overload
    def __init__(self: ForeignDecoder[Any], value_type: Any) -> None: ...

    def __init__(self, value_type: Any) -> None:
        self._decoder: JSONDecoder[Value] = JSONDecoder(value_type)

    def decode(self, content: Content) -> Value:
        """Decodes an object.

        Raises:
            msgspec.DecodeError: If the object is malformed, or a declared value has half a
                surrogate pair, or NaN although it must not be null.
            msgspec.ValidationError: If the object has another type (a subclass of `DecodeError`).
        """
        try:
            return self._decoder.decode(content)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            try:
                return self._decode_repaired(_encode_content(content))
            except ExtremeContentError:
                raise
            except msgspec.DecodeError:
                raise error from None

    def _decode_repaired(self, content: bytes) -> Value:
        """Repairs an object, and decodes it.

        Raises:
            msgspec.DecodeError: If the repaired object cannot be decoded either.
            ExtremeContentError: If a declared value has half a surrogate pair.
        """
        content = _replace_constants(content)
        repaired = _replace_halves(content, _REPLACEMENT)
        value = self._decoder.decode(repaired)
        if repaired != content:
            other_value = self._decoder.decode(_replace_halves(content, _OTHER_REPLACEMENT))
            if value != other_value:
                raise ExtremeContentError(HALF_A_PAIR)
        return value


def split_columns(content: Content) -> Columns:
    """Splits an object into its columns, undecoded but repaired: each is standard JSON in UTF-8.

    NaN and infinity become null; half a surrogate pair and bytes that are not UTF-8 become U+FFFD.

    Raises:
        msgspec.DecodeError: If the content is malformed or no object.
    """
    encoded = _encode_content(content)
    try:
        # msgspec does not check the encoding of the columns that it leaves undecoded.
        encoded.decode()
        return _COLUMNS.decode(encoded)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _COLUMNS.decode(repair_json(encoded))


def decode_values(content: Content, used: Collection[str] = ()) -> dict[str, Any]:
    """Decodes an object, repaired as in `split_columns`.

    A number with a fraction or exponent beyond the range of floats, such as 1e400, stays
    `msgspec.Raw`.

    Args:
        used: Names of columns that must be in UTF-8, and not have half a surrogate pair.

    Raises:
        msgspec.DecodeError: If the content is malformed, no object or nested too deeply, or has an
            integer beyond the range of floats, or such a text in a used column.
    """
    try:
        return decode_json(content, dict[str, Any], allow_repeated_keys=True)
    except msgspec.DecodeError:
        encoded = _replace_constants(_encode_content(content))
        values = _decode_values(_replace_halves(encoded, _REPLACEMENT))
        other_values = _decode_values(_replace_halves(encoded, _OTHER_REPLACEMENT))
        if any(values.get(name) != other_values.get(name) for name in used):
            raise ExtremeContentError(HALF_A_PAIR) from None

        # Without its invalid bytes, a text that is not in UTF-8 is another one.
        shorter_values = _decode_values(_replace_halves(encoded, _REPLACEMENT), errors="ignore")
        if any(values.get(name) != shorter_values.get(name) for name in used):
            raise ExtremeContentError(NOT_UTF8) from None
        return values


def _decode_values(content: bytes, errors: str = "replace") -> dict[str, Any]:
    """Decodes an object without NaN, infinity and half pairs; see `decode_values`.

    Args:
        errors: The treatment of bytes that are not UTF-8, as of `bytes.decode`.
    """
    valid_utf8 = content.decode(errors=errors).encode()
    return decode_json(
        valid_utf8, dict[str, Any], float_hook=_decode_float, allow_repeated_keys=True
    )


def _decode_float(digits: str) -> float | msgspec.Raw:
    """Converts digits to a float; returns them undecoded if the number is beyond its range."""
    number = float(digits)
    return number if math.isfinite(number) else msgspec.Raw(digits.encode())


def repair_json(content: bytes) -> bytes:
    """Replaces everything that standard JSON in UTF-8 does not allow, as `split_columns` does."""
    repaired = _replace_halves(_replace_constants(content), _REPLACEMENT)
    return repaired.decode(errors="replace").encode()


def _encode_content(content: Content) -> bytes:
    """Returns JSON as bytes; half of a surrogate pair in a `str` becomes three bytes."""
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)


def _replace_constants(content: bytes) -> bytes:
    """Replaces NaN and infinity outside of strings by null."""
    if b"NaN" not in content and b"Infinity" not in content:
        return content

    chunks: list[bytes] = []
    begin = 0
    while before := _NO_CONSTANT.match(content, begin):
        chunks.append(before[0])
        constant = _CONSTANT.match(content, before.end())
        if constant is None:  # at the end of the content
            break
        chunks.append(b"null")
        begin = constant.end()
    return b"".join(chunks)


def _replace_halves(content: bytes, replacement: str) -> bytes:
    """Replaces each half of a surrogate pair, whether it is an escape or three bytes."""
    if not any(start in content for start in (b"\\ud", b"\\uD", b"\xed")):
        return content

    as_escape = rb"\u%04x" % ord(replacement)
    as_bytes = replacement.encode()

    def replace(match: re.Match[bytes]) -> bytes:
        if match["escape"] is not None:
            return as_escape
        return match[0] if match["bytes"] is None else as_bytes

    return _HALF_PAIR.sub(replace, content)
