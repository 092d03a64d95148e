"""JSON and YAML that are malformed or extreme raise the errors of their parsers, no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.parsing import (
    JSONDecoder,
    RepeatedKeyError,
    decode_json,
    decode_yaml,
    parse_json,
    parse_yaml,
)

TOO_DEEP = "nested too deeply (at most 200 levels are read)"
TOO_LARGE = "an integer that is larger than any float"

LARGEST = "1" + "0" * 308
TOO_LONG = "1" + "0" * 309
DEPTHS = [201, 3000, 200_000]


def nest_lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def nest_objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("nested", [nest_lists, nest_objects])
@pytest.mark.parametrize("decode", [parse_json, decode_json])
def test_deeply_nested_json_is_refused(
    decode: Callable[[Any], Any], nested: Callable[[int], str], depth: int
) -> None:
    for content in (nested(depth), nested(depth).encode()):
        with pytest.raises(msgspec.DecodeError) as error:
            decode(content)
        assert str(error.value) == TOO_DEEP


@pytest.mark.parametrize("nested", [nest_lists, nest_objects])
def test_json_of_200_levels_is_read(nested: Callable[[int], str]) -> None:
    assert json.dumps(parse_json(nested(200))) == json.dumps(json.loads(nested(200)))
    assert decode_json(nested(200)) == json.loads(nested(200))


def test_the_number_of_brackets_does_not_count_as_depth() -> None:
    assert parse_json(f"[{'[],' * 5000}[]]") == [[]] * 5001
    assert decode_json(f"[{'[],' * 5000}[]]".encode()) == [[]] * 5001
    assert parse_json(json.dumps("[" * 5000)) == "[" * 5000


class Row(msgspec.Struct):
    names: list[dict[str, int]]


def test_a_struct_with_many_objects_is_read() -> None:
    row = decode_json(b'{"names": [' + b'{"a": 1},' * 500 + b"{}]}", Row)
    assert len(row.names) == 501


def test_untyped_json_beyond_the_depth_of_the_parser_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        JSONDecoder(dict[str, Any]).decode(nest_objects(200_000).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": "\xff"}', "not UTF-8: invalid start byte (0xff)"),
        (b'{"a": "caf\xe9"}', "not UTF-8: unexpected end of data (0xe9)"),
        ('{"a": "\ud800"}', "not UTF-8: surrogates not allowed"),
    ],
)
def test_text_that_is_not_in_utf_8_is_refused(content: bytes | str, message: str) -> None:
    for decode in (decode_json, JSONDecoder(dict[str, str]).decode):
        with pytest.raises(msgspec.DecodeError) as error:
            decode(content)
        assert str(error.value) == message


def test_json_bytes_that_are_not_in_utf_8_are_refused() -> None:
    with pytest.raises(ValueError, match="can't decode byte 0xff"):
        parse_json(b'{"a": "\xff"}')


@pytest.mark.parametrize("number", [TOO_LONG, f"-{TOO_LONG}", "9" * 309, "1" * 4000])
@pytest.mark.parametrize(
    "template", ["{}", '{{"a": [1, {}]}}', '[[["x"]], "' + "y" * 999 + '", {}]']
)
@pytest.mark.parametrize("decode", [parse_json, decode_json])
def test_integers_too_large_for_a_float_are_refused(
    decode: Callable[[Any], Any], template: str, number: str
) -> None:
    content = template.format(number)
    for text in (content, content.encode()):
        with pytest.raises(ValueError, match=f"{TOO_LARGE}|out of range") as error:
            decode(text)
        assert isinstance(error.value, msgspec.DecodeError)


class StructOfIntegers(msgspec.Struct):
    sizes: list[int]


@dataclass
class DataclassOfIntegers:
    sizes: list[int]


@pytest.mark.parametrize("value_type", [StructOfIntegers, DataclassOfIntegers, dict[str, Any]])
def test_integers_within_objects_are_refused_as_well(value_type: Any) -> None:
    """Also where the object is in a list."""
    decode_json(f'{{"sizes": [1, {LARGEST}]}}', value_type)
    content = f'{{"sizes": [1, {TOO_LONG}]}}'
    for text, decoded_type in ((content, value_type), (f"[{content}]", list[value_type])):
        with pytest.raises(msgspec.DecodeError, match=TOO_LARGE):
            decode_json(text, decoded_type)


def test_integers_with_too_many_digits_for_python_are_refused() -> None:
    for decode in (parse_json, decode_json):
        with pytest.raises(ValueError, match="Exceeds the limit|out of range"):
            decode("1" * 5000)


def test_the_largest_integers_and_long_digits_in_texts_are_read() -> None:
    assert parse_json(LARGEST) == decode_json(LARGEST) == 10**308
    digits = json.dumps(["1" * 5000])
    assert parse_json(digits) == decode_json(digits.encode()) == ["1" * 5000]
    assert parse_json(f"0.{'1' * 5000}") == pytest.approx(0.1111111)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_parses_as_by_the_standard_library(value: Any) -> None:
    content = json.dumps(value)
    assert parse_json(content) == parse_json(content.encode()) == json.loads(content)


HALF = "half of a surrogate pair"


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"a": ["\uDC00"]}', r'{"\ud800\ud800": 1}'])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    for content in (text, text.encode()):
        with pytest.raises(msgspec.DecodeError, match=HALF):
            parse_json(content)
        with pytest.raises(yaml.YAMLError, match=HALF):
            parse_yaml(content)
        with pytest.raises(msgspec.DecodeError):
            decode_json(content)
        with pytest.raises(msgspec.DecodeError, match=HALF):
            decode_yaml(content, dict[str, Any])


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_json(r'"\ud83d\ude00 \\ud800"') == "\U0001f600 \\ud800"


@pytest.mark.parametrize("decode", [parse_json, decode_json])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "text": "b"}', 'an object has the key "text" 2 times'),
        ('[{"a": {"b": 1, "\\u0062": 1, "b": 1}}]', 'an object has the key "b" 3 times'),
        (f'{{"{"x" * 999}": 1, "{"x" * 999}": 1}}', f'the key "{"x" * 100}" 2 times'),
    ],
    ids=["plain", "escaped", "long"],
)
def test_an_object_with_a_key_twice_is_refused(
    decode: Callable[[Any], Any], content: str, message: str
) -> None:
    for text in (content, content.encode()):
        with pytest.raises(RepeatedKeyError) as error:
            decode(text)
        assert str(error.value).endswith(f"{message}; expected each key once")


def test_undeclared_values_have_each_key_once() -> None:
    with pytest.raises(RepeatedKeyError, match='the key "b" 2 times'):
        decode_json(b'{"a": {"b": 1, "b": 2}}', dict[str, msgspec.Raw])


def test_the_last_of_repeated_keys_counts_where_they_are_allowed() -> None:
    text = '{"a": 1, "a": 2}'
    assert parse_json(text, object_pairs_hook=dict) == {"a": 2}
    assert decode_json(text, allow_repeated_keys=True) == {"a": 2}


def test_the_hooks_of_the_standard_library_are_supported() -> None:
    assert parse_json('{"a": 1, "a": 2}', object_pairs_hook=list) == [("a", 1), ("a", 2)]
    assert parse_json("[NaN, 1]", parse_constant=lambda _: None) == [None, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 3000, "nested too deeply"),
        ("- " * 3000 + "a", "nested too deeply"),
        (f"a: {TOO_LONG}", TOO_LARGE),
        (f"a: 0x{'f' * 300}", TOO_LARGE),
        ("1:" * 50_000 + "1", TOO_LARGE),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("a: !!int", ""),
        (b"a: \xff", "invalid start byte"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: &a [1]\nb: [*c]", "undefined alias"),
        ("seeds: [1]\narms: {}\nseeds: [2, 3]", "found duplicate key seeds\n"),
        ("a: {b: 1, 'b': 2}", "found duplicate key b\n"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
                for before, name in pairwise("abcdefg")
            ),
            "its aliases stand for more than 1,000,000 nodes",
        ),
    ],
)
def test_malformed_yaml_is_refused(content: str | bytes, message: str) -> None:
    with pytest.raises(yaml.YAMLError) as error:
        parse_yaml(content)
    assert message in str(error.value)
    with pytest.raises(msgspec.DecodeError):
        decode_yaml(content, dict[str, Any])


def test_yaml_may_replace_the_keys_of_a_merged_mapping() -> None:
    content = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: [*b, *a], y: 4}\nd: {1: e, '1': f}"
    assert parse_yaml(content) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 3, "y": 2},
        "c": {"x": 3, "y": 4},
        "d": {1: "e", "1": "f"},
    }


@given(VALUES)
def test_yaml_parses_as_by_pyyaml(value: Any) -> None:
    content = yaml.safe_dump(value)
    assert parse_yaml(content) == yaml.safe_load(content)
    assert decode_yaml(yaml.safe_dump({"a": value}), dict[str, Any])["a"] == yaml.safe_load(content)
