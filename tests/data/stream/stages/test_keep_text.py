"""The text of rejected documents."""

from __future__ import annotations

import json
from collections import Counter

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.stages.guard import Guard
from bsmeta.data.stream.stages.keep_text import keep_text
from bsmeta.data.stream.stages.render import DocumentRenderer
from bsmeta.metadata.decoding import DocumentDecoder
from tests.data.stream.stages.helpers import (
    SHARD,
    bad,
    describe,
    skipping,
    text_document,
    title_line,
)

WRONG_TITLE = b'{"text": "its text", "metadata_title": 3}'
ITEMS = [
    text_document("good"),
    bad("wrong_type", WRONG_TITLE, 11),
    bad("not_json", b"{", 12),
    bad("damaged_file", b"", 13),
    bad("wrong_type", title_line(""), 14),
    bad("document_too_long", json.dumps({"text": "x" * 101}).encode(), 15),
]


def kept(decoder: DocumentDecoder | None) -> tuple[list[tuple[int, str]], Counter[str]]:
    """The documents after the stage, and what it skipped."""
    skipped: Counter[str] = Counter()
    config = skipping(max_document_chars=100)
    guard = Guard(config, SHARD, None, skipped)
    return describe(keep_text(ITEMS, decoder, guard, DocumentRenderer(config))), skipped


def test_rejected_documents_are_dropped() -> None:
    assert kept(None) == ([(10, "good")], {})


def test_a_text_is_kept_if_only_its_metadata_is_bad() -> None:
    text_decoder = DocumentDecoder(MetadataConfig(metadata_list=[]))
    assert kept(text_decoder) == ([(10, "good"), (11, "its text")], {"empty_text": 1})
