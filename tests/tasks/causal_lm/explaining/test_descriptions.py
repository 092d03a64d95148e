"""Descriptions of a document and of the packing of its window, shown in all views."""

from __future__ import annotations

import pytest

from bsmeta.metadata.rendering import Rendered
from bsmeta.tasks.causal_lm.explaining.descriptions import (
    describe_packing,
    format_count,
    select_sequences,
)
from bsmeta.tasks.causal_lm.explaining.windows import (
    ExplainedDocument,
    ExplainedWindow,
    PackedChunk,
)


def make_window(sequences: list[int], count: int = 4, *, by_text: bool = False) -> ExplainedWindow:
    """Five sequences of one chunk; the shown document has chunks in `sequences`."""
    chunks = [PackedChunk(number, 0, 1, 12, 12) for number in range(3, 8)]
    document = ExplainedDocument("a.jsonl.gz:3", Rendered("a", body="a"), [], sequences, (), ())
    return ExplainedWindow(
        shard="a.jsonl.gz", first=3, last=6, count=count, documents=[document],
        sequences=[[chunk] for chunk in chunks], capacity=16, by_text=by_text,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sequences", "limit", "selected"),
    [
        ([0], 2, [0, 1]),
        ([1, 4], 2, [0, 1, 4]),
        ([2, 3, 4], 2, [0, 1, 2, 3]),
        ([4], 9, [0, 1, 2, 3, 4]),
    ],
)
def test_the_first_sequences_and_those_of_shown_documents_are_selected(
    sequences: list[int], limit: int, selected: list[int]
) -> None:
    assert select_sequences(make_window(sequences), limit) == selected


def test_the_packing_shows_the_fill_of_sequences() -> None:
    assert describe_packing(make_window([0])) == (
        "documents 3 to 6 of a.jsonl.gz are one window: 5 chunks in 5 sequences of 16 tokens, "
        "75.0% full"
    )


def test_the_packing_of_a_shared_shard_names_the_other_streams() -> None:
    assert describe_packing(make_window([0], count=2, by_text=True)) == (
        "2 of documents 3 to 6 of a.jsonl.gz (the others are in windows of other streams) are one "
        "window: 5 chunks in 5 sequences of 16 tokens of text, 75.0% full"
    )


def test_a_number_is_followed_by_its_noun_in_singular_or_plural() -> None:
    assert format_count(1, "chunk") == "1 chunk"
    assert format_count(0, "chunk") == "0 chunks"
    assert format_count(2000, "token") == "2,000 tokens"
