"""Which documents are the same, and how they are read from a shard of any quality."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bsmeta.data.stream.same_document import (
    NumberedDocument,
    UnreadableLine,
    iterate_fingerprints,
    read_documents,
)
from bsmeta.metadata.document import Document


def test_a_document_has_a_fingerprint_of_its_text_and_of_its_normalized_url() -> None:
    """These values are in the caches of users."""
    text = ("text", 5920215052985964735)
    url = ("url", 5869079098634027658)
    for address in ("https://example.org/a", "http://Example.org:80/a/#part"):
        assert list(iterate_fingerprints(Document("a text", address, {}))) == [text, url]
    assert list(iterate_fingerprints(Document("a text", None, {}))) == [text]
    assert list(iterate_fingerprints(Document("", "https://", {}))) == []


@pytest.mark.parametrize(
    "copy", ["one line\r\nand another", "\none line\nand another", "one  line and\u00a0another\n"]
)
def test_white_space_does_not_distinguish_texts(copy: str) -> None:
    original = Document("one line\nand another", None, {})
    assert [*iterate_fingerprints(Document(copy, None, {}))] == [*iterate_fingerprints(original)]


def test_documents_of_a_damaged_shard_are_read_up_to_the_damage(tmp_path: Path) -> None:
    lines = [b'{"text": "one"}', b"", b'{"text": 2}', b'{"text": "four", "metadata": 5}']
    whole = [json.dumps({"text": f"document {number}"}).encode() for number in range(3000)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([*lines, *whole]))[:5000])
    *items, last = read_documents(str(path), {})
    assert [(item.number, getattr(item, "problem", "")[:15]) for item in items[:4]] == [
        (0, ""), (2, "text_not_string"), (3, ""), (4, ""),
    ]  # fmt: skip
    documents = [item.document.text for item in items if isinstance(item, NumberedDocument)]
    assert documents[:3] == ["one", "four", "document 0"]
    assert isinstance(last, UnreadableLine)
    assert last.is_damage
    assert last.number == items[-1].number + 1 < 3000
    assert "the file ends in the middle" in last.problem


def test_columns_name_the_text_and_the_url(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a text", "meta": {"link": "https://example.org/a"}}\n')
    (item,) = read_documents(str(path), {"text": "body", "url": "meta.link"})
    assert isinstance(item, NumberedDocument)
    assert [part for part, _ in iterate_fingerprints(item.document)] == ["text", "url"]
