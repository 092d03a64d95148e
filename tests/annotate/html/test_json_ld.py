"""JSON-LD as pages have it: with line breaks in strings, in comments, damaged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.annotate.html.json_ld import decode_json_ld

DATE = {"datePublished": "2019-11-20"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"datePublished": "2019-11-20"}', [DATE]),
        ('[{"a": {"datePublished": "2019-11-20"}}]', [[{"a": DATE}]]),
        ('{"text": "one\ntwo\r\n\tthree", "date": "2019"}',
         [{"text": "one two   three", "date": "2019"}]),
        ('\n{"datePublished":\n"2019-11-20\n"}\n', [{"datePublished": "2019-11-20 "}]),
        ('<!-- {"datePublished": "2019-11-20"} -->', [DATE]),
        ('//<![CDATA[\n{"datePublished": "2019-11-20"}\n//]]>\n', [DATE]),
        ('/* <![CDATA[ */{"datePublished": "2019-11-20"}/* ]]> */', [DATE]),
        ('{"datePublished": "2019-11-20"};\n', [DATE]),
        # No JSON: what is certain is rescued.
        ('{"name": "a "quoted" word", "datePublished": "2019-11-20",}', [{"name": "a "}, DATE]),
        ('{"datePublished": "2019-11-20"}{"name": "a"}', [DATE, {"name": "a"}]),
        ('{"@id": "x", "datePublished" :\n"2019-11-20", "articleBody": "cut o', [DATE]),
        ('{"datePublished": "2019-11-20", "name": "\\\'"}', [DATE]),
        ("{not json}", []),
        ("", []),
        ("null", [None]),
    ],
)  # fmt: skip
def test_json_ld_is_decoded_leniently(text: str, values: list[Any]) -> None:
    assert decode_json_ld(text) == values


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 300 + "1" + "}" * 300, "1" * 400])
def test_extreme_json_is_not_decoded(text: str) -> None:
    assert decode_json_ld(text) == []


@given(st.text(), st.characters(max_codepoint=0x1F))
def test_any_control_character_is_accepted_in_a_string(text: str, control: str) -> None:
    name = "".join(letter for letter in text if letter.isalnum())
    assert decode_json_ld(f'{{"name": "{name}{control}{name}"}}') == [{"name": f"{name} {name}"}]


@given(st.text())
def test_any_text_is_decoded_or_ignored_without_an_error(text: str) -> None:
    assert isinstance(decode_json_ld(text), list)
