"""Documents: columns are decoded when their records are asked for, and grouped by key."""

from __future__ import annotations

import msgspec
import pytest

from bsmeta.metadata.document import Document, is_empty


def test_a_column_is_decoded_once_when_its_records_are_asked_for() -> None:
    calls = []

    def column() -> bytes:
        calls.append("read")
        return b'[{"key": "html", "type": "local", "value": "p"}]'

    document = Document("text", None, {}, {"html": column})
    assert document.has("html")
    assert calls == []
    assert [[record.value for record in document.records("html")] for _ in range(2)] == [["p"]] * 2
    assert calls == ["read"]


@pytest.mark.parametrize(
    ("column", "empty"),
    [(b"", True), (b"null", True), (b" [ ] ", True), (b"[1]", False), (b'[{"key": ""}]', False)],
)
def test_absent_columns_null_and_empty_lists_hold_no_records(column: bytes, empty: bool) -> None:
    assert is_empty(msgspec.Raw(column)) is empty
