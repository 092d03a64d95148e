"""Documents become tokens, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.stream.stages import encode
from bsmeta.data.stream.stages.encode import batch_documents, encode_documents
from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.stream.stages.render import DocumentRenderer
from bsmeta.data.text.encoding import DocumentEncoder
from tests.data.helpers import small_tokenizer
from tests.data.stream.stages.helpers import read, skipping, text_document, title_line

LIMIT = 10


@pytest.fixture(autouse=True)
def _a_low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "ENCODING_BATCH_CHARS", LIMIT)


def sizes_of(lengths: list[int]) -> list[list[int]]:
    """Characters of the documents in each batch."""
    batches = batch_documents(text_document("x" * length) for length in lengths)
    return [[len(document.rendered.body) for document in batch] for batch in batches]


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([], []),
        ([4, 6, 1], [[4, 6], [1]]),
        ([11, 1], [[11], [1]]),
        ([1, 11, 1], [[1], [11], [1]]),
        ([0, 0, 10, 0], [[0, 0, 10, 0]]),
    ],
)
def test_batches_are_filled_up_to_the_limit(lengths: list[int], batches: list[list[int]]) -> None:
    assert sizes_of(lengths) == batches


@given(st.lists(st.integers(0, 15)))
def test_all_documents_are_in_batches_in_order(lengths: list[int]) -> None:
    batches = sizes_of(lengths)
    assert [length for batch in batches for length in batch] == lengths
    assert all(sum(batch) <= LIMIT or len([n for n in batch if n]) == 1 for batch in batches)


def test_text_tokens_are_the_same_with_and_without_metadata() -> None:
    tokenizer = small_tokenizer()
    config = skipping()
    document = DocumentRenderer(config).render(read(title_line("a dog", "12"), types=["title"]))
    encoder = DocumentEncoder(tokenizer, config)
    (encoding,) = encode_documents([document], encoder, also_plain=True)
    assert encoding.document is document
    assert tokenizer.decode(encoding.encoded.prefix_ids.tolist()) == "Title: 12 |||"
    assert tokenizer.decode(encoding.encoded.ids.tolist()) == " a dog<eos>"
    assert encoding.plain is not None
    assert encoding.plain.prefix_ids.tolist() == []
    assert encoding.plain.ids.tolist() == encoding.encoded.ids.tolist()


def test_a_batch_is_encoded_as_soon_as_it_is_full() -> None:
    encoder = DocumentEncoder(small_tokenizer(), skipping())
    taken: list[int] = []

    def documents() -> Iterator[WindowDocument]:
        for number in range(4):
            taken.append(number)
            yield text_document("x" * 5, number)

    encodings = encode_documents(documents(), encoder, also_plain=False)
    first = next(encodings)
    assert (first.document.number, first.plain) == (0, None)
    assert taken == [0, 1, 2]
