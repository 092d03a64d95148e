"""Why documents are left out."""

from __future__ import annotations

from collections import Counter

import pytest

from bsmeta.data.io.lines import OVERLONG
from bsmeta.data.stream.reasons import REASONS, count_bad, list_reasons, refine_error
from bsmeta.metadata.records import BadDocument, PartialLine

NOT_JSON = BadDocument("not_json", "Input data was truncated")


def test_reasons_of_types_follow_the_common_reasons() -> None:
    assert list_reasons(["title"]) == [*REASONS]
    assert len(set(REASONS)) == len(REASONS) == 21


def test_skipped_good_documents_do_not_count_as_bad() -> None:
    skipped = Counter(not_json=2, wrong_type=1, empty_text=5, test_overlap=7)
    skipped["half_used_at_phase_switch"] = 11
    assert count_bad(skipped) == 3
    assert count_bad(Counter()) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (OVERLONG, "line_too_long: expected 268,435,456 bytes at most"),
        (b" \t", "blank_line: expected a JSON object"),
        (b"", "blank_line: expected a JSON object"),
        (
            b'\xef\xbb\xbf{"text": "a"}',
            "byte_order_mark: the line begins with a UTF-8 byte order mark",
        ),
        (
            b'{"text": "caf\xe9"}',
            "not_utf8: 'utf-8' codec can't decode byte 0xe9 in position 13: invalid continuation "
            "byte",
        ),
        (b'{"text": "cut', "not_json: Input data was truncated"),
        (memoryview(b" "), "blank_line: expected a JSON object"),
        (PartialLine(b'{"text": 1', {}), "not_json: Input data was truncated"),
    ],
)
def test_the_message_shows_why_a_line_is_not_json(line: bytes, message: str) -> None:
    assert str(refine_error(line, NOT_JSON)) == message


def test_other_errors_are_unchanged() -> None:
    error = BadDocument("wrong_type", "the detail")
    assert refine_error(b"  ", error) is error
