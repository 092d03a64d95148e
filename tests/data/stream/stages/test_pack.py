"""The chunks of a window are packed into sequences, with their counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.counts import list_count_names
from bsmeta.data.stream.plan import Position
from bsmeta.data.stream.stages.cut import cut_documents
from bsmeta.data.stream.stages.encode import encode_documents
from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.stream.stages.pack import encode_types, pack_documents
from bsmeta.data.stream.window import Window
from bsmeta.data.text.chunks import PackedSequence
from bsmeta.data.text.encoding import DocumentEncoder
from tests.data.helpers import word_tokenizer
from tests.data.stream.stages.helpers import TITLES, text_document, window_of

METADATA = MetadataConfig(metadata_list=["title", "url"], max_seq_len=6, metadata_prefix_sep="")
TOKENIZER = word_tokenizer(["fox", "dog"])
WINDOW = window_of([b"", b"", b""])


def make_documents() -> list[WindowDocument]:
    """Three documents of 4, 9 and 2 tokens with their EOS."""
    texts = ["fox dog fox", "dog fox dog fox dog fox dog fox", "dog"]
    documents = [text_document(text, 10 + index) for index, text in enumerate(texts)]
    documents[1].rendered.types = ("url",)
    documents[2].rendered.types = ("title", "url")
    encoder = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=METADATA))
    encodings = encode_documents(documents, encoder, also_plain=False)
    return [*cut_documents(encodings, DataConfig(metadata_config=METADATA))]


def packed(window: Window = WINDOW, seed: int = 1, **changes: Any) -> list[PackedSequence]:
    """The sequences of the three documents, as stream 0 yields them."""
    config = DataConfig(metadata_config=METADATA, **changes)
    packed_window = pack_documents(make_documents(), window, config, seed)
    return [packed_window.make_sequence(row, 0, Position()) for row in range(len(packed_window))]


def test_sequences_hold_whole_chunks() -> None:
    sequences = packed()
    texts = {TOKENIZER.decode(sequence.ids.tolist()): sequence.documents for sequence in sequences}
    assert texts == {
        "dog fox dog fox dog fox": ("pages.jsonl:11",),
        "fox dog fox<eos>dog<eos>": ("pages.jsonl:10", "pages.jsonl:12"),
        " dog fox<eos>": ("pages.jsonl:11",),
    }


def test_unpacked_sequences_hold_one_chunk_each() -> None:
    lengths = [sequence.lengths.tolist() for sequence in packed(packing="pad")]
    assert sorted(lengths) == [[2], [3], [4], [6]]


def test_a_document_counts_in_the_sequence_of_its_first_chunk() -> None:
    names = list_count_names(METADATA.metadata_list)
    counts = dict(zip(names, sum(sequence.counts for sequence in packed()), strict=True))
    assert {name: count for name, count in counts.items() if count} == {
        "documents": 3,
        "documents_with_metadata": 2,
        "documents/title": 1,
        "documents/url": 2,
    }


def test_the_order_of_sequences_depends_on_seed_and_window() -> None:
    def order(window: Window, seed: int) -> list[str]:
        return [
            TOKENIZER.decode(sequence.ids.tolist())
            for sequence in packed(window, seed, packing="pad")
        ]

    first = order(WINDOW, 1)
    assert order(WINDOW, 1) == first
    others = [order(WINDOW, seed) for seed in range(2, 8)]
    others += [order(replace(WINDOW, epoch=epoch), 1) for epoch in range(1, 7)]
    assert all(sorted(other) == sorted(first) for other in others)
    assert any(other != first for other in others[:6])
    assert any(other != first for other in others[6:])


def test_a_window_without_documents_has_no_sequences() -> None:
    assert len(pack_documents([], WINDOW, DataConfig(metadata_config=METADATA), 1)) == 0


def test_types_are_bits_in_the_order_of_the_configuration() -> None:
    documents = [text_document("a", types=keys) for keys in ((), ("title",), ("title", "url"))]
    assert encode_types(documents, TITLES).tolist() == [0, 1, 3]
    assert encode_types(documents, TITLES).dtype == np.int32


def test_chunks_without_metadata_have_no_types() -> None:
    metadata = replace(TITLES, without_metadata_same_context=True)
    assert encode_types([text_document("a", types=("title",))], metadata).tolist() == [0]
