"""Cutting documents into chunks."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.chunks import cut_alike, cut_document, pack_best_fit, pack_separately
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import small_tokenizer

ROOM = 12


def config(**changes: object) -> DataConfig:
    return DataConfig(metadata_config=MetadataConfig(max_seq_len=ROOM, **changes))


def document(runs: list[int], prefix: int = 0) -> EncodedDocument:
    """Returns a document with runs of the given numbers of tokens: positive text, negative tags."""
    run = [-1 if size > 0 else number for number, size in enumerate(runs) for _ in range(abs(size))]
    run = np.array([*run, -1], np.int32)
    kinds = (run >= 0).astype(np.uint8)
    starts = np.concatenate(([0], np.cumsum(run[:-1] < 0))).astype(np.int32)
    return EncodedDocument(
        prefix_ids=np.arange(500, 500 + prefix, dtype=np.int32),
        prefix_token_types=np.full(prefix, 7, np.uint8),
        prefix_targets=np.zeros(prefix, bool),
        ids=np.arange(len(run), dtype=np.int32),
        token_types=kinds,
        targets=kinds == 0,
        runs=run,
        lead_length=0,
        locate=lambda: (starts, starts + (run < 0)),
    )


sizes = st.integers(1, 30) | st.integers(-5, -1)


@given(st.lists(sizes, min_size=1, max_size=20), st.integers(0, ROOM // 2), st.booleans())
def test_chunks_cover_the_document_and_fit_into_a_row(
    runs: list[int], prefix: int, on_every_piece: bool
) -> None:
    encoded = document(runs, prefix)
    chunks = cut_document(
        encoded, config(prefix_on="every_piece" if on_every_piece else "first_piece")
    )
    assert [*range(len(encoded.ids))] == [
        i for chunk in chunks for i in range(chunk.start, chunk.stop)
    ]
    assert all(len(chunk) <= ROOM for chunk in chunks)
    assert all(chunk.stop - chunk.start > 1 or chunk.stop < len(encoded.ids) for chunk in chunks)
    assert [chunk.prefix_length for chunk in chunks[1:]] == [prefix * on_every_piece] * (
        len(chunks) - 1
    )
    for chunk in chunks[:-1]:  # a run of up to 5 tokens always fits
        before, after = encoded.runs[chunk.stop - 1], encoded.runs[chunk.stop]
        assert after < 0 or before != after
    for chunk in chunks:
        arrays = (chunk.ids, chunk.token_types, chunk.loss_mask, chunk.text_starts, chunk.text_ends)
        assert {len(array) for array in arrays} == {len(chunk)}


def test_a_chunk_is_as_long_as_possible() -> None:
    chunks = cut_document(document([30]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 12), (12, 24), (24, 31)]


def test_a_cut_moves_before_a_run() -> None:
    chunks = cut_document(document([9, -5, 4]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 9), (9, 19)]


def test_a_run_longer_than_a_chunk_must_be_cut() -> None:
    chunks = cut_document(document([2, -20, 2]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 2), (2, 14), (14, 25)]


def test_eos_never_forms_a_chunk_alone() -> None:
    chunks = cut_document(document([12]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 11), (11, 13)]
    chunks = cut_document(document([10, -2]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 10), (10, 13)]


def test_an_empty_document_has_no_chunk() -> None:
    assert cut_document(document([]), config()) == []


def test_the_first_text_token_is_a_target_only_after_metadata() -> None:
    without = cut_document(document([3]), config())[0]
    assert without.loss_mask.tolist() == [False, True, True, True]
    after_a_prefix = cut_document(document([3], prefix=2), config())[0]
    assert after_a_prefix.loss_mask.tolist() == [False] * 2 + [True] * 4
    alike = config(loss_on_first_text=False)
    after_a_prefix = cut_document(document([3], prefix=2), alike)[0]
    assert after_a_prefix.loss_mask.tolist() == [False] * 2 + [False, True, True, True]
    tag_first = cut_document(document([-2, 3], prefix=2), alike)[0]
    assert tag_first.loss_mask.tolist() == [False] * 4 + [False, True, True, True]
    assert tag_first.token_types.tolist() == [7, 7, 1, 1, 0, 0, 0, 0]
    assert tag_first.ids.tolist() == [500, 501, 0, 1, 2, 3, 4, 5]


def test_without_metadata_chunks_are_cut_at_the_same_text() -> None:
    """Two chunks of the text 0..14, cut with tags between."""
    chunks = cut_document(document([5, -4, 10]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 12), (12, 20)]
    alike = cut_alike(document([15]), chunks, config())
    assert [(chunk.start, chunk.stop) for chunk in alike] == [(0, 8), (8, 16)]


def test_without_metadata_eos_after_closing_tags_joins_the_text() -> None:
    """The last chunk is closing tags and EOS; without metadata, EOS joins the preceding text."""
    chunks = cut_document(document([-2, 9, -3]), config())
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 11), (11, 15)]
    assert [(chunk.start, chunk.stop) for chunk in cut_alike(document([9]), chunks, config())] == [
        (0, 10)
    ]
    full = cut_document(document([12, -3]), config())
    assert [(chunk.start, chunk.stop) for chunk in full] == [(0, 12), (12, 16)]
    alike = cut_alike(document([12]), full, config())
    assert [(chunk.start, chunk.stop) for chunk in alike] == [(0, 11), (11, 13)]


@given(st.lists(sizes, min_size=1, max_size=20), st.integers(0, ROOM // 2))
def test_without_metadata_chunks_hold_each_token_once(runs: list[int], prefix: int) -> None:
    text = sum(size for size in runs if size > 0)
    plain = document([text] if text else [])
    alike = cut_alike(plain, cut_document(document(runs, prefix), config()), config())
    expected = [*range(text + 1)] if text else []
    assert expected == [i for chunk in alike for i in range(chunk.start, chunk.stop)]
    assert all(2 <= len(chunk) <= ROOM for chunk in alike[-1:])
    assert all(len(chunk) <= ROOM for chunk in alike)


LINE = {
    "text": "8 quick dogs",
    "metadata_title": [{"key": "title", "type": "global", "value": "Dogs"}],
    "metadata_html": [
        {
            "key": "html",
            "type": "local",
            "value": "b",
            "char_start_idx": 0,
            "char_end_idx": 1,
            "html_attrs": {"attrs": [], "values": []},
        }
    ],
}


@pytest.mark.parametrize("types", [(), ("title",), ("html",), ("title", "html")])
@pytest.mark.parametrize("text", ["8 quick dogs", "\n8 dogs", "quick dogs", "😀 dogs"])
@pytest.mark.parametrize("is_target", [True, False])
def test_the_first_character_of_the_text_is_a_target_if_configured(
    types: tuple[str, ...], text: str, is_target: bool
) -> None:
    metadata = MetadataConfig(
        metadata_list=["title", "html"],
        treat_local_metadata_as_regular_text=False,
        loss_on_first_text=is_target,
    )
    config = DataConfig(metadata_config=metadata)
    document = DocumentDecoder(metadata).decode(json.dumps({**LINE, "text": text}).encode())
    rendered = Renderer(metadata).render(document, types)
    (encoded,) = DocumentEncoder(small_tokenizer(), config).encode([rendered])
    (chunk,) = cut_document(encoded, config)
    spans = list(zip(chunk.text_starts, chunk.text_ends, chunk.loss_mask, strict=True))
    first = [target for start, end, target in spans if start == 0 and end > 0]
    assert bool(first[0]) == (is_target and bool(types))
    follow = [target for start, end, target in spans if start > 0 and end > start]
    assert all(follow)
    # Nothing else of the body is a target: not what joins it to the prefix, and no tag.
    joins = [target for start, end, target in spans if end == start and start == 0]
    assert not any(joins)
    assert chunk.loss_mask[-1]  # EOS


CAPACITY = 20
lengths = st.lists(st.integers(1, CAPACITY), max_size=80)


def pack_naively(sizes: list[int], capacity: int) -> list[int]:
    """Returns the room left in each sequence by a naive best-fit decreasing."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [index for index, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=lambda index: rooms[index])] -= size
        else:
            rooms.append(capacity - size)
    return sorted(rooms)


@given(lengths)
def test_every_item_is_packed_once_and_no_row_overflows(sizes: list[int]) -> None:
    packed = pack_best_fit(sizes, CAPACITY)
    assert sorted(chunk for sequence in packed for chunk in sequence) == list(range(len(sizes)))
    assert all(sum(sizes[chunk] for chunk in sequence) <= CAPACITY for sequence in packed)


@given(lengths)
def test_sequences_are_as_full_as_by_a_naive_implementation(sizes: list[int]) -> None:
    rooms = [
        CAPACITY - sum(sizes[i] for i in sequence) for sequence in pack_best_fit(sizes, CAPACITY)
    ]
    assert sorted(rooms) == pack_naively(sizes, CAPACITY)


def test_items_fill_the_row_with_the_least_room_left() -> None:
    assert pack_best_fit([3, 10, 7, 2, 6, 1], 10) == [[1], [2, 0], [4, 3, 5]]
    assert pack_best_fit([], 10) == []
    assert pack_separately([3, 10], 10) == [[0], [1]]


def test_documents_of_many_lengths_fill_the_rows_almost_completely() -> None:
    generator = random.Random(0)
    sizes = [1 + int(1024 * generator.random() ** 2) for _ in range(2000)]
    assert sum(sizes) / (1024 * len(pack_best_fit(sizes, 1024))) > 0.995
