"""The order of tags at the same position, and the valid positions of tags."""

from __future__ import annotations

import pytest

from bsmeta.metadata.records import BadDocument
from tests.metadata.helpers import chunks, config, html, local, render

APPLE = "An apple is an edible fruit produced by an apple tree (Malus domestica)."


def body(keys: list[str], text: str, *records: dict) -> str:
    return render(config(keys), text, *records).body


def test_closing_tags_precede_empty_elements_and_opening_tags() -> None:
    text = body(
        ["html"],
        "abc",
        html("i", 0, 1, 0, 0),
        html("br", 1, 1, 1, 2),
        html("b", 1, 3, 3, 0),
    )
    assert text == "<i>a</i><br></br><b>bc</b>"


def test_relative_positions_alone_decide_within_a_type() -> None:
    expected = (
        "An <b>apple [[Malus domestica]]</b> is an edible fruit produced by an <a></a>"
        "<b class:level1><b class:level2><i class:level3><a></a>apple</i> tree</b></b>"
        " (Malus domestica)."
    )
    records = (
        html("b", 3, 8, 0, 0),
        local("entity", "Malus domestica", 3, 8),
        html("a", 43, 43, 0, 1),
        html("a", 43, 43, 6, 7),
        html("b", 43, 53, 4, 0, **{"class": "level2"}),
        html("b", 43, 53, 3, 1, **{"class": "level1"}),
        html("i", 43, 48, 5, 0, **{"class": "level3"}),
    )
    assert body(["url", "html", "entity"], APPLE, *records) == expected
    assert body(["entity", "html"], APPLE, *reversed(records)) == expected


def test_relative_positions_win_over_nesting() -> None:
    text = body(["html"], "ab", html("i", 1, 2, 0, 0), html("b", 0, 1, 0, 1))
    assert text == "<b>a<i></b>b</i>"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["html", "mood"], "<i></i><b>[mood: m]ab[/mood: m]</b>"),
        (["mood", "html"], "<i></i><b>[mood: m]ab[/mood: m]</b>"),
    ],
)
def test_html_lies_outside_the_types_without_relative_positions(
    keys: list[str], expected: str
) -> None:
    records = (
        local("mood", "m", 0, 2),
        html("i", 0, 0, 0, 1),
        html("b", 0, 2, 2, 0),
    )
    assert body(keys, "ab", *records) == expected


def test_the_first_type_of_the_list_is_the_innermost() -> None:
    records = (local("one", 1, 0, 2), local("two", 2, 0, 2))
    nested = "[two: 2][one: 1]ab[/one: 1][/two: 2]"
    assert body(["one", "two"], "ab", *records) == nested
    assert body(["one", "two"], "ab", *reversed(records)) == nested
    assert body(["two", "one"], "ab", *records) == "[one: 1][two: 2]ab[/two: 2][/one: 1]"


def test_types_at_the_same_position_render_in_the_order_of_the_list() -> None:
    records = (
        html("p", 0, 2, 0, 0),
        local("entity_paragraph", "X", 0, 2, 0, 0),
        local("entity_paragraph", "Y", 0, 2, 1, 1),
    )
    assert body(["html", "entity_paragraph"], "ab", *records) == " |X| |Y|<p>ab</p>"
    assert body(["entity_paragraph", "html"], "ab", *records) == "<p> |X| |Y|ab</p>"


def test_records_without_relative_positions_nest_by_length() -> None:
    records = (local("x", "inner", 0, 1), local("x", "outer", 0, 3), local("x", "same", 0, 1))
    assert body(["x"], "abc", *records) == (
        "[x: outer][x: same][x: inner]a[/x: inner][/x: same]bc[/x: outer]"
    )


def test_crossing_tags_are_kept() -> None:
    text = body(["html"], "abcd", html("i", 0, 3, 0, 0), html("b", 1, 4, 0, 0))
    assert text == "<i>a<b>bc</i>d</b>"


def test_equal_relative_positions_are_ordered_by_nesting() -> None:
    text = body(
        ["html"],
        "abcd",
        html("i", 0, 2, 0, 0),
        html("b", 0, 4, 0, 0),  # the same position and relative position, but longer: outside
        html("br", 2, 2, 0, 0),
        html("u", 2, 4, 0, 0),
        html("s", 2, 4, 0, 0),  # the same span: inside the one before
    )
    assert text == "<b><i>ab</i><br></br><u><s>cd</s></u></b>"


def test_relative_positions_count_only_if_every_record_of_the_type_has_them() -> None:
    text = body(["html"], "abc", html("i", 0, 1, 5, 0), html("b", 0, 3))
    assert text == "<b><i>a</i>bc</b>"


def test_negative_and_large_relative_positions_order_tags() -> None:
    records = (html("i", 0, 1, 2**40, 0), html("b", 0, 1, -5, 7), html("u", 0, 1, 0, 3))
    assert body(["html"], "a", *records) == "<b><u><i>a</i></u></b>"


def test_tags_may_be_at_both_ends_and_on_empty_text() -> None:
    assert body(["html"], "ab", html("b", 0, 2, 0, 0), html("i", 2, 2, 1, 2)) == "<b>ab</b><i></i>"
    rendered = render(
        config(["html", "entity"]), "", html("b", 0, 0, 0, 1), local("entity", "E", 0, 0)
    )
    assert rendered.body == "<b></b> [[E]]"
    assert chunks(rendered) == ["<b>", "</b>", " [[E]]"]


def test_positions_are_characters_of_any_script() -> None:
    text = "a\U0001f600é\u0301漢\r\n\0z"
    rendered = render(config(["html"]), text, html("b", 1, 2, 0, 0), html("i", 4, 5, 0, 0))
    assert rendered.body == "a<b>\U0001f600</b>é\u0301<i>漢</i>\r\n\0z"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (html("b", 0, 4, 0, 0), "position_beyond_text"),
        (html("b", 9, 9, 0, 0), "position_beyond_text"),
        (html("b", 0, 2**70, 0, 0), "position_beyond_text"),
        (html("b", -1, 2, 0, 0), "negative_position"),
        (html("b", -(2**70), 2, 0, 0), "negative_position"),
        (html("b", 2, 1, 0, 0), "end_before_start"),
        (html("b", 0, 1, 0, 0) | {"char_end_idx": None}, "missing_position"),
        ({"key": "html", "type": "local", "value": "b"}, "missing_position"),
        (html("b", 0, 1, 0, 2**70), "relative_position_too_large"),
        (
            html("b", 0, 1, 0, 0) | {"html_attrs": {"attrs": ["id"], "values": []}},
            "html_attributes_mismatch",
        ),
    ],
)
def test_a_bad_position_raises_bad_document_with_the_reason(record: dict, reason: str) -> None:
    good = html("i", 0, 3, 1, 1)
    with pytest.raises(BadDocument) as caught:
        render(config(["html"]), "abc", good, record)
    assert caught.value.reason == reason
    assert caught.value.detail
