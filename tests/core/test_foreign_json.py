"""Objects that other programs wrote: what is used must be right, what is carried is not judged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bsmeta.core.foreign_json import ForeignDecoder, decode_values, split_columns
from bsmeta.core.parsing import ExtremeContentError


class Line(msgspec.Struct):
    text: str
    score: float | None = None
    column: msgspec.Raw = msgspec.Raw(b"null")


LINES = ForeignDecoder(Line)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (rb'{"text": "NaN \" NaN", "x": [NaN, -Infinity, "\\"]}', Line('NaN " NaN')),
        (rb'{"text": "a", "score": NaN}', Line("a", None)),
        (rb'{"text": "\ud83d\ude00 \\ud83d", "x": "\ud83d"}', Line("😀 \\ud83d")),
        (rb'{"text": "a", "\udc00": {"\udc00": "\udc00\ud83d"}}', Line("a")),
        (b'{"text": "a", "x": "\xed\xa0\xbd\xff"}', Line("a")),
        (rb'{"x": 1e999, "text": "a", "column": [NaN]}', Line("a", None, msgspec.Raw(b"[null]"))),
        ('{"text": "a", "x": "\ud83d"}', Line("a")),
        (memoryview(rb'{"x": NaN, "text": "a"}'), Line("a")),
    ],
)  # fmt: skip
def test_invalid_values_are_accepted_in_undeclared_fields(content: bytes | str, line: Line) -> None:
    assert LINES.decode(content) == line


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (rb'{"text": "a\ud83d"}', ExtremeContentError, "half of a surrogate pair"),
        (rb'{"text": "a", "column": ["\ud83d"]}', ExtremeContentError, "half of a surrogate pair"),
        (b'{"text": "a\xed\xa0\xbd"}', ExtremeContentError, "half of a surrogate pair"),
        (rb'{"text": NaN}', msgspec.DecodeError, "JSON is malformed: invalid character"),
        (b'{"text": "a", "x": NaN', msgspec.DecodeError, "JSON is malformed: invalid character"),
        (b'{"text": "a", "x": -NaN}', msgspec.DecodeError, "JSON is malformed"),
        (b'{"text": "a", "x": 1NaN}', msgspec.DecodeError, "JSON is malformed"),
        (b'{"text": "a", NaN: 1}', msgspec.DecodeError, "JSON is malformed"),
        (b'{"text": "a", "x": \\ud83d}', msgspec.DecodeError, "JSON is malformed"),
        (b'{"text": "\xff"}', msgspec.DecodeError, "not UTF-8"),
        (b'{"text": 1, "x": NaN}', msgspec.ValidationError, "Expected `str`, got `int`"),
    ],
)
def test_invalid_values_are_refused_in_declared_fields(
    content: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LINES.decode(content)


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (b'{"a": NaN, "b": 1e400}', {"a": b"null", "b": b"1e400"}),
        (rb'{"a": "\ud83d \ud83d\ude00"}', {"a": rb'"\ufffd \ud83d\ude00"'}),
        (b'{"a": "\xed\xa0\xbd caf\xe9"}', {"a": '"� caf�"'.encode()}),
        (rb'{"\ud83d": [Infinity]}', {"�": b"[null]"}),
    ],
)
def test_columns_are_split_into_standard_json(content: bytes, columns: dict[str, bytes]) -> None:
    assert {name: bytes(value) for name, value in split_columns(content).items()} == columns


def test_numbers_too_large_for_python_round_trip() -> None:
    values = decode_values('{"a": [1.5, 1e400], "b": {"c": -1e999, "d": NaN}, "e": "\\ud83d"}')
    assert msgspec.json.encode(values) == (
        '{"a":[1.5,1e400],"b":{"c":-1e999,"d":null},"e":"�"}'.encode()
    )


def test_half_surrogate_pairs_are_refused_only_in_used_columns() -> None:
    content = r'{"text": "a", "more": "\ud83d"}'
    assert decode_values(content, ["text"]) == {"text": "a", "more": "�"}
    with pytest.raises(ExtremeContentError, match="half of a surrogate pair"):
        decode_values(content, ["text", "more"])


def test_texts_that_are_not_utf8_are_refused_only_in_used_columns() -> None:
    content = b'{"text": "a", "more": "caf\xe9"}'
    assert decode_values(content, ["text"]) == {"text": "a", "more": "caf\ufffd"}
    with pytest.raises(ExtremeContentError, match="a text that is not in UTF-8"):
        decode_values(content, ["text", "more"])
    assert decode_values('{"more": "caf\ufffd"}', ["more"]) == {"more": "caf\ufffd"}
    assert decode_values('{"x": NaN, "more": "caf\ufffd"}', ["more"])["more"] == "caf\ufffd"


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": ' + "1" * 400 + "}", '{"a": ' + "[" * 999])
def test_values_that_are_no_object_or_too_large_are_refused(content: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_values(content)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=9,
)


def normalize(value: Any) -> Any:
    """Returns the value expected after reading: null for NaN, half surrogate pairs replaced."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [normalize(item) for item in value]
    if isinstance(value, dict):
        return {normalize(name): normalize(item) for name, item in value.items()}
    return value


@example({"a": "\ud83d", "b": [float("nan"), "NaN"], "c\\": "\\ud83d\udc00"})
@given(st.dictionaries(st.text(st.characters()), ANYTHING, max_size=4))
def test_json_written_by_python_is_read(columns: dict[str, Any]) -> None:
    content = json.dumps(columns).encode()
    expected = normalize(json.loads(content))
    assert decode_values(content) == expected
    split = {name: json.loads(bytes(value)) for name, value in split_columns(content).items()}
    assert split == expected
    line = content[:-1] + (b", " if columns else b"") + b'"text": "a"}'
    assert LINES.decode(b'{"text": "b", "rest": ' + content + b"}") == Line("b")
    assert json.loads(line)["text"] == "a"
