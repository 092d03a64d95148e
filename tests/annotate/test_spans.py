"""Annotators of places in the text: the records that each makes, letter by letter."""

from __future__ import annotations

import msgspec
import pytest

from bsmeta.annotate.inputs.sources import InputRecord
from tests.annotate.helpers import WORDS, annotated, page


def test_the_length_of_a_text_is_recorded() -> None:
    record = InputRecord(text="Paris is the beautiful place to visit")
    assert annotated(record, "length") == {
        "metadata_generation_length_text": [{"key": "length", "type": "global", "value": "37"}]
    }


@pytest.mark.parametrize(
    ("splitter", "sentences"),
    [
        ("full_stops", ["Dr", ". Smith paid 3", ".5 e", ".g", ". euros", ". Why? He said so"]),
        ("rules", ["Dr. Smith paid 3.5 e.g. euros.", "Why?", "He said so.", "And left"]),
    ],
)
def test_the_length_of_each_sentence_is_recorded(splitter: str, sentences: list[str]) -> None:
    text = "Dr. Smith paid 3.5 e.g. euros. Why? He said so. And left"
    settings = {"length_of": ["sentence"], "sentence_splitter": splitter}
    made = annotated(InputRecord(text=text), "length", **settings)
    records = made["metadata_generation_length_sentence"]
    spans = [(record["char_start_idx"], record["char_end_idx"]) for record in records]
    assert [text[start:end] for start, end in spans] == sentences
    # As published: a full stop at the beginning is in the span, but does not count.
    assert [record["value"] for record in records] == [
        str(len(sentence.removeprefix("."))) for sentence in sentences
    ]
    assert {record["type"] for record in records} == {"local"}


def test_html_columns_hold_tags_title_head_and_footer() -> None:
    record = page(f"<p id=x>{WORDS}<br>end</p><footer>F</footer>", "<title>T</title>")
    made = annotated(record, "html")
    assert made["html_title"] == ["<title>T</title>"]
    assert made["html_head"] == ["<head><title>T</title></head>"]
    assert made["html_footer"] == ["<footer>F</footer>"]
    assert [tag.value for tag in made["metadata_html"]] == ["p", "body"]  # as they end


def paragraphs(text: str, tags: list[tuple[str, int, int]]) -> list[tuple[str, str]]:
    """Returns marker and text of each paragraph of a shard's row with these tags."""
    columns = [
        f'{{"value": "{tag}", "char_start_idx": {start}, "char_end_idx": {end}, '
        f'"relative_start_pos": 0, "relative_end_pos": {place}}}'
        for place, (tag, start, end) in enumerate(tags)
    ]
    record = InputRecord(text=text)
    record.columns["metadata_html"] = msgspec.Raw(f"[{', '.join(columns)}]".encode())
    made = annotated(record, "paragraph", paragraph_values=True)["metadata_paragraph"]
    assert "".join(record["value"] for record in made) == text
    for record in made:
        assert text[record["char_start_idx"] : record["char_end_idx"]] == record["value"]
    return [(record["marker"], record["value"]) for record in made]


def test_paragraphs_end_at_the_ends_of_blocks() -> None:
    text = "A title\nwith a remainder\n"
    assert paragraphs(text, [("h1", 0, 7)]) == [
        ("h1", "A title"),
        ("remainder", "\nwith a remainder\n"),
    ]
    assert paragraphs("one\ntwo\n", [("p", 0, 4), ("p", 4, 8), ("b", 0, 2)]) == [
        ("p", "one\n"),
        ("p", "two\n"),
    ]


def test_paragraphs_are_split_after_blank_lines() -> None:
    text = "mail@example.org\n\n\nCookie Policy |\n"
    assert paragraphs(text, [("div", 0, 17), ("div", 17, len(text))]) == [
        ("div", "mail@example.org\n"),
        ("div+lf", "\n\n"),
        ("div+lf", "Cookie Policy |\n"),
    ]
    assert paragraphs("a\n\nb", []) == [("remainder+lf", "a\n\n"), ("remainder+lf", "b")]


def test_the_innermost_block_marks_a_paragraph() -> None:
    assert paragraphs("item", [("li", 0, 4), ("ul", 0, 4)]) == [("li", "item")]


def test_values_of_paragraphs_are_numbers_by_default() -> None:
    made = annotated(InputRecord(text="one\n\ntwo"), "paragraph")["metadata_paragraph"]
    assert made[1] == {
        "key": "paragraph", "type": "local", "value": "2", "char_start_idx": 5, "char_end_idx": 8,
        "marker": "remainder+lf",
    }  # fmt: skip
