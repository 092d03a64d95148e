"""Lines become documents, in both forms of the data; what is wrong with a line is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config, global_record, html, local

KEYS = ["html", "title", "website_description", "datasource", "length", "entity", "mood"]


def decode(keys: list[str] = KEYS, **line: Any) -> Document:
    return DocumentDecoder(config(keys)).decode(json.dumps(line).encode())


def list_values(document: Document, keys: list[str] = KEYS) -> dict[str, list[Any]]:
    return {
        key: [record.value for record in document.records(key)] for key in keys if document.has(key)
    }


def test_columns_are_read_by_the_keys_of_their_records() -> None:
    document = decode(
        text="Text.",
        url="https://a.b",
        metadata_html=[html("b", 0, 4, 0, 0)],
        metadata_title=[global_record("title", "T")],
        metadata_website_desc=[{"type": "global", "value": "D"}],
        metadata_generation_datasource=[{"type": "global", "value": "S"}],
        metadata_generation_length_text=[{"value": "5"}],
        metadata_generation_length_sentence=[local("length", "4", 0, 4)],
        metadata_entity=[],
        metadata_mood=None,
        metadata_url=[global_record("url", "not asked for")],
        html="<b>",
    )
    assert (document.text, document.url) == ("Text.", "https://a.b")
    assert list_values(document) == {
        "html": ["b"],
        "title": ["T"],
        "website_description": ["D"],
        "datasource": ["S"],
        "length": ["5", "4"],
    }


def test_a_single_list_of_metadata_is_split_by_key() -> None:
    records = [
        global_record("title", "T"),
        html("b", 0, 4, 0, 0),
        global_record("title", "U"),
        global_record("x", "X"),
    ]
    document = decode(text="Text.", metadata=records, metadata_mood=[global_record("mood", "lost")])
    assert list_values(document) == {"html": ["b"], "title": ["T", "U"]}


def test_a_record_takes_its_key_from_the_column_and_its_type_from_its_positions() -> None:
    document = decode(text="Text.", metadata_mood=[{"value": 1}, {"value": 2, "char_start_idx": 0}])
    assert [record.is_local() for record in document.records("mood")] == [False, True]


def test_a_record_may_be_in_a_column_of_another_name() -> None:
    document = decode(text="", metadata_mood=[global_record("title", "T")])
    assert list_values(document) == {"title": ["T"]}


def test_only_named_columns_are_read() -> None:
    settings = config(KEYS, metadata_column_list=["mood_swing", "website_desc"])
    columns = {
        "metadata_html": "not even records",
        "metadata_title": [global_record("title", "T")],
        "metadata_website_desc": [global_record("website_description", "D")],
        "metadata_mood_swing": [global_record("mood", "M")],
    }
    line = json.dumps({"text": "", **columns}).encode()
    assert list_values(DocumentDecoder(settings).decode(line)) == {
        "website_description": ["D"],
        "mood": ["M"],
    }


def test_a_column_may_have_any_name() -> None:
    keys = ["gefühl-1", "a b"]
    document = decode(keys, text="", **{"metadata_gefühl-1": [{"value": "g"}]})
    assert list_values(document, keys) == {"gefühl-1": ["g"]}


@pytest.mark.parametrize("raw", [b"[]", b"null", b"[ \n]"])
def test_an_empty_column_is_no_metadata(raw: bytes) -> None:
    document = DocumentDecoder(config(KEYS)).decode(b'{"text":"", "metadata_html":' + raw + b"}")
    assert not document.has("html")
    assert not document.records("html")


def test_fields_of_other_types_may_be_null() -> None:
    absent = ("char_start_idx", "char_end_idx", "relative_start_pos", "html_attrs")
    document = decode(text="", metadata=[global_record("title", "T") | dict.fromkeys(absent)])
    assert list_values(document) == {"title": ["T"]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b'{"text": "a"', "not_json"),
        (b'{"text": "a", "metadata_html": [1,}', "not_json"),
        (b'{"text": "\xff"}', "not_json"),
        (b'{"text": "\\ud800"}', "not_json"),
        (b'{"text": "a", "x": ' + b"[" * 100_000, "not_json"),
        (b"[]", "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "missing_text"),
        (b'{"metadata_title": []}', "missing_text"),
        (b'{"text": null}', "text_not_string"),
        (b'{"text": 1}', "text_not_string"),
        (b'{"text": "a", "url": 1}', "wrong_type"),
        (b'{"text": "a", "metadata": {}}', "wrong_type"),
        (b'{"text": "a", "metadata": [{"value": "v"}]}', "wrong_type"),
        (b'{"text": "a", "metadata": [{"value": true}]}', "wrong_type"),
        (b'{"text": "a", "metadata_title": [{"value": null}]}', "wrong_type"),
        (b'{"text": "a", "metadata_title": [{"key": "title"}]}', "wrong_type"),
        (b'{"text": "a", "metadata_title": [{"value": "", "type": "worldly"}]}', "wrong_type"),
        (b'{"text": "a", "metadata_title": [{"value": "", "char_start_idx": 1.5}]}', "wrong_type"),
    ],
)
def test_a_bad_line_raises_bad_document_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadDocument) as caught:
        DocumentDecoder(config(KEYS)).decode(line)
    assert caught.value.reason == reason
    assert caught.value.detail


@pytest.mark.parametrize("column", [b"1", b"{}", b'"a long string, no list"', b"[1]", b'["\xff"]'])
def test_a_column_without_records_raises_bad_document(column: bytes) -> None:
    line = b'{"text": "a", "metadata_html": ' + column + b"}"
    document = DocumentDecoder(config(["html"])).decode(line)
    with pytest.raises(BadDocument) as caught:
        document.records("html")
    assert caught.value.reason in ("wrong_type", "not_json")


def test_keys_and_columns_may_be_repeated() -> None:
    settings = config(["mood", "mood"], metadata_column_list=["x", "mood", "x"])
    document = DocumentDecoder(settings).decode(b'{"text": "", "metadata_mood": [{"value": 1}]}')
    assert list_values(document, ["mood"]) == {"mood": [1]}


def test_long_columns_are_checked_when_they_are_rendered() -> None:
    settings = config(["html", "title"])
    line = b'{"text": "a", "metadata_html": [{"value": "b", "char_start_idx": "0"}]}'
    document = DocumentDecoder(settings).decode(line)
    assert Renderer(settings).render(document, ("title",)).body == "a"
    for _ in range(2):  # asked again, it is refused again
        with pytest.raises(BadDocument) as caught:
            Renderer(settings).render(document, ("html",))
        assert caught.value.reason == "wrong_type"
    assert "metadata_html" in caught.value.detail
    assert "$[0].char_start_idx" in caught.value.detail
