"""What is shown of a window: labels of chunks, numbers of documents, and padding."""

from __future__ import annotations

from bsmeta.metadata.rendering import Rendered
from bsmeta.tasks.causal_lm.explaining.windows import (
    ExplainedDocument,
    ExplainedWindow,
    PackedChunk,
)


def test_a_label_counts_chunks_only_if_there_are_several() -> None:
    assert PackedChunk(number=17, index=0, count=1, length=40, budgeted_length=40).label == "17: 40"
    assert (
        PackedChunk(number=17, index=1, count=3, length=256, budgeted_length=9).label
        == "17 (2/3): 256"
    )


def test_padding_is_counted_in_the_same_tokens_as_the_sequence_length() -> None:
    whole = PackedChunk(number=5, index=0, count=1, length=30, budgeted_length=20)
    other = PackedChunk(number=6, index=0, count=1, length=15, budgeted_length=10)
    document = ExplainedDocument("a.jsonl.gz:5", Rendered("a", body="a"), [], [0], (), ())
    window = ExplainedWindow(
        shard="a.jsonl.gz", first=5, last=6, count=2, documents=[document],
        sequences=[[whole, other], [other]], capacity=32, by_text=True,
    )  # fmt: skip
    assert [window.count_padding(0), window.count_padding(1)] == [2, 22]
    assert window.shown_numbers == {5}
