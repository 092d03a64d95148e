"""Lines become documents, or bad lines."""

from __future__ import annotations

from bsmeta.data.stream.stages.decode import decode_lines
from bsmeta.data.stream.stages.items import number_lines
from bsmeta.metadata.decoding import DocumentDecoder
from tests.data.stream.stages.helpers import TITLES, describe, title_line, window_of


def test_each_line_becomes_a_document_or_a_bad_line() -> None:
    lines = [title_line("first", "A"), b'{"text": 3}', b'{"text": ', title_line("")]
    window = window_of(lines, damage="the file ends")
    assert describe(decode_lines(number_lines(window), DocumentDecoder(TITLES))) == [
        (10, "first"),
        (11, "text_not_string"),
        (12, "not_json"),
        (13, ""),
        (14, "damaged_file"),
    ]


def test_documents_have_the_records_of_the_configured_types_and_no_types_yet() -> None:
    line = b'{"text": "t", "metadata_title": [{"key": "title", "value": "A"}]}'
    (document,) = decode_lines(number_lines(window_of([line])), DocumentDecoder(TITLES))
    assert [record.value for record in document.document.records("title")] == ["A"]
    assert not document.document.has("url")
    assert document.types == ()
