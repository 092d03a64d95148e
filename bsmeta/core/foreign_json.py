"""Decodes JSON objects that other programs wrote, such as the lines of a data set.

Some writers make what the standard does not have. Python and pandas write NaN and infinity as
numbers. A program that cuts a text by its UTF-16 units writes half of a surrogate pair, as an
escape or in three bytes. Both are common in columns that nobody reads here, and there they must not
cost the document. NaN and infinity are read as null, like those of a Parquet file, and half a pair
as U+FFFD, the replacement character. `ForeignDecoder` does this only in values that its type does
not declare: half a pair in a value that is used is an error, as is NaN unless null may stand there.

Well-formed content takes the same time as with `JSONDecoder`: all this begins with its error.
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
"""If an object decodes to something else with this one, half a pair is in a declared value."""

_CONSTANT = re.compile(rb"NaN|-?Infinity")
# Everything up to a constant outside of strings. A string whose closing quote is missing ends with
# the content.
_NO_CONSTANT = re.compile(
    rb'(?:[^"NI-]++|"[^"\\]*+(?:\\.?+[^"\\]*+)*+"?+|(?!NaN|-?Infinity)[NI-])*+', re.DOTALL
)
# Half a pair as an escape or in its three bytes; before it, an escaped backslash and a whole pair.
_HALF = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<escape>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<bytes>\xed[\xa0-\xbf][\x80-\xbf])"
)
_COLUMNS = JSONDecoder(Columns)


class ForeignDecoder(Generic[Value]):
    """Decodes objects into one type, and accepts any value that the type does not declare."""

    @overload
    def __init__(self: ForeignDecoder[Value], value_type: type[Value]) -> None: ...

    @overload
    def __init__(self: ForeignDecoder[Any], value_type: Any) -> None: ...

    def __init__(self, value_type: Any) -> None:
        self._decoder: JSONDecoder[Value] = JSONDecoder(value_type)

    def decode(self, content: Content) -> Value:
        """Decodes an object.

        Raises:
            msgspec.DecodeError: If it is malformed, or a declared value has half a surrogate pair,
                or NaN where null is none of its types.
            msgspec.ValidationError: If it has another type (a subclass of `DecodeError`).
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
        """Decodes an object after its repair.

        Raises:
            msgspec.DecodeError: If that does not help.
            ExtremeContentError: If a declared value has half a surrogate pair.
        """
        content = _replace_constants(content)
        repaired = _replace_halves(content, _REPLACEMENT)
        decoded = self._decoder.decode(repaired)
        if repaired != content:
            other = self._decoder.decode(_replace_halves(content, _OTHER_REPLACEMENT))
            if decoded != other:
                raise ExtremeContentError(HALF_A_PAIR)
        return decoded


def split_columns(content: Content) -> Columns:
    """Splits an object into its columns, undecoded; each is standard JSON in UTF-8.

    Bytes that are not UTF-8 are replaced, too.

    Raises:
        msgspec.DecodeError: If it is malformed or no object.
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
    """Decodes an object; a number beyond the range of floats, such as 1e400, stays `msgspec.Raw`.

    The rest is as in `split_columns`.

    Args:
        used: Names of columns that must not have half a surrogate pair.

    Raises:
        msgspec.DecodeError: If it is malformed, no object or nested too deeply, or has an integer
            beyond the range of floats, or half a surrogate pair in a column that is used.
    """
    try:
        return decode_json(content, dict[str, Any])
    except msgspec.DecodeError:
        encoded = _replace_constants(_encode_content(content))
        values = _decode_values(_replace_halves(encoded, _REPLACEMENT))
        others = _decode_values(_replace_halves(encoded, _OTHER_REPLACEMENT))
        if any(values.get(name) != others.get(name) for name in used):
            raise ExtremeContentError(HALF_A_PAIR) from None
        return values


def _decode_values(content: bytes) -> dict[str, Any]:
    standard = content.decode(errors="replace").encode()
    return decode_json(standard, dict[str, Any], float_hook=_decode_float)


def _decode_float(digits: str) -> float | msgspec.Raw:
    number = float(digits)
    return number if math.isfinite(number) else msgspec.Raw(digits.encode())


def repair_json(content: bytes) -> bytes:
    """Replaces all that standard JSON in UTF-8 does not have: see `split_columns`."""
    repaired = _replace_halves(_replace_constants(content), _REPLACEMENT)
    return repaired.decode(errors="replace").encode()


def _encode_content(content: Content) -> bytes:
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)


def _replace_constants(content: bytes) -> bytes:
    """Replaces NaN and infinity outside of strings by null."""
    if b"NaN" not in content and b"Infinity" not in content:
        return content

    parts: list[bytes] = []
    begin = 0
    while before := _NO_CONSTANT.match(content, begin):
        parts.append(before[0])
        constant = _CONSTANT.match(content, before.end())
        if constant is None:  # the end
            break
        parts.append(b"null")
        begin = constant.end()
    return b"".join(parts)


def _replace_halves(content: bytes, replacement: str) -> bytes:
    """Replaces lone surrogates, whether escaped or written as three bytes."""
    if not any(start in content for start in (b"\\ud", b"\\uD", b"\xed")):
        return content

    as_escape = rb"\u%04x" % ord(replacement)
    as_bytes = replacement.encode()

    def replace(match: re.Match[bytes]) -> bytes:
        if match["escape"] is not None:
            return as_escape
        return match[0] if match["bytes"] is None else as_bytes

    return _HALF.sub(replace, content)
