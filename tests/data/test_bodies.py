"""Bodies whose text is encoded apart from its tags, and chunks of which only the text counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.chunks import (
    Chunk,
    count_fitting_tokens,
    cut_document,
    cut_metadata,
    find_fair_limit,
)
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.data.text.tokens import TextTokenizer, Tokens, count_tokens_before
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import small_tokenizer, word_tokenizer

WORDS = word_tokenizer(["the", "quick", "brown", "fox", "b", "i", "<", ">", "/", "url", ":", "|||"])
LOCAL = {"treat_local_metadata_as_regular_text": False, "random_sample_metadata": False}


def tag(name: str, start: int, end: int) -> Record:
    return Record(name, "html", "local", start, end)


def encode_text(
    text: str,
    tags: list[Record],
    url: str = "",
    tokenizer: PreTrainedTokenizerBase = WORDS,
    **changes: object,
) -> EncodedDocument:
    metadata = replace(
        MetadataConfig(metadata_list=["html", "url"], **{**LOCAL, **changes}),
        add_local_metadata_special_tokens_in_prefix=False,
    )
    records = {"html": tags, "url": [Record(url, "url", "global")] if url else []}
    document = Document(text, None, {key: own for key, own in records.items() if own})
    rendered = Renderer(metadata).render(document, ("html", "url"))
    config = DataConfig(metadata_config=metadata, row_budget="text")
    (encoded_document,) = DocumentEncoder(tokenizer, config).encode([rendered])
    return encoded_document


def read(document: EncodedDocument) -> list[str]:
    return [WORDS.decode([number]) for number in document.ids]


def test_a_tag_inside_a_token_moves_to_its_beginning_and_order_is_kept() -> None:
    """`the <b>quick</b> <i>fox</i>`: a word and the space before it are one token."""
    encoded_document = encode_text("the quick fox", [tag("b", 4, 9), tag("i", 10, 13)])
    assert read(encoded_document) == [
        "the", "<", "b", ">", " quick", "<", "/", "b", ">", "<", "i", ">", " fox",
        "<", "/", "i", ">", "<eos>",
    ]  # fmt: skip
    assert encoded_document.token_types.tolist() == [0, 1, 1, 1, 0, *[1] * 7, 0, *[1] * 4, 0]
    assert encoded_document.runs.tolist() == [
        -1, 0, 0, 0, -1, 1, 1, 1, 1, 2, 2, 2, -1, 3, 3, 3, 3, -1
    ]  # fmt: skip
    assert encoded_document.targets.tolist() == (encoded_document.token_types == 0).tolist()
    assert encoded_document.text_starts.tolist() == [0, 3, 3, 3, 3, *[9] * 7, 9, *[13] * 5]
    assert encoded_document.text_ends.tolist() == [3, 3, 3, 3, 9, *[9] * 7, 13, *[13] * 5]


def test_a_tag_inside_a_word_moves_before_it() -> None:
    encoded_document = encode_text("the quick", [tag("b", 6, 8)])
    assert "".join(read(encoded_document)) == "the<b></b> quick<eos>"


def test_the_separator_after_a_prefix_has_separate_tokens() -> None:
    encoded_document = encode_text("the quick", [], url="fox")
    assert WORDS.decode(encoded_document.prefix_ids) == "url: fox |||"
    assert read(encoded_document) == [" ", "the", " quick", "<eos>"]
    assert encoded_document.lead_length == 1
    assert encoded_document.targets.tolist() == [False, True, True, True]
    assert encoded_document.is_text.tolist() == [False, True, True, True]
    assert encoded_document.text_ends.tolist() == [0, 3, 9, 9]


def test_a_tag_does_not_divide_a_character() -> None:
    (tokens,) = TextTokenizer(small_tokenizer()).encode(["x😁y"])
    assert len(tokens.ids) == 5  # three of the emoji
    assert count_tokens_before(tokens, np.array([0, 1, 2, 3])).tolist() == [0, 1, 4, 5]
    shared = np.array([[0, 2], [1, 3], [3, 4]], np.int32)  # the first two share a character
    tokens = Tokens(np.arange(3, dtype=np.int32), "abcd", characters=(shared[:, 0], shared[:, 1]))
    assert count_tokens_before(tokens, np.array([0, 1, 2, 3, 4])).tolist() == [0, 0, 0, 2, 3]


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=6)


@given(st.text(min_size=1, max_size=30), spans, st.sampled_from(["", "a url"]))
def test_text_tokens_are_the_same_with_and_without_metadata(
    text: str, spans_of_tags: list[tuple[int, int]], url: str
) -> None:
    tags = [tag("b", min(at, len(text)), min(at + size, len(text))) for at, size in spans_of_tags]
    tokenizer = small_tokenizer()
    plain = encode_text(text, [], tokenizer=tokenizer)
    encoded_document = encode_text(text, tags, url, tokenizer=tokenizer)
    assert encoded_document.ids[encoded_document.is_text].tolist() == plain.ids.tolist()
    assert (
        encoded_document.text_starts[encoded_document.is_text].tolist()
        == plain.text_starts.tolist()
    )
    assert encoded_document.text_ends[encoded_document.is_text].tolist() == plain.text_ends.tolist()
    assert encoded_document.targets.tolist() == encoded_document.is_text.tolist()
    tags_alone = encoded_document.token_types > 0
    inserted = tokenizer.decode(encoded_document.ids[tags_alone])
    assert inserted.count("<b>") == inserted.count("</b>") == len(tags)


def cut_into_chunks(**changes: object) -> list[list[str]]:
    text = "the quick brown fox the quick brown fox"
    encoded_document = encode_text(text, [tag("b", 4, 9), tag("i", 16, 39)], "fox", max_seq_len=7)
    metadata = MetadataConfig(metadata_list=["html", "url"], max_seq_len=7, **LOCAL)
    chunks = cut_document(
        encoded_document, DataConfig(metadata_config=metadata, row_budget="text", **changes)
    )
    assert all(chunk.metadata_length <= changes.get("row_metadata_budget", 7) for chunk in chunks)
    return [[WORDS.decode([number]) for number in chunk.ids] for chunk in chunks]


def test_only_text_counts_for_the_length_of_a_chunk() -> None:
    """Chunks have seven tokens of text, besides prefixes (cut to three tokens) and tags."""
    prefix = ["url", ":", " |||"]
    assert cut_into_chunks(row_metadata_budget=20) == [
        [*prefix, " ", "the", "<", "b", ">", " quick", "<", "/", "b", ">", " brown",
         "<", "i", ">", " fox", " the", " quick", " brown"],
        [*prefix, " fox", "<", "/", "i", ">", "<eos>"],
    ]  # fmt: skip
    assert cut_into_chunks(row_metadata_budget=9) == [
        [*prefix, " ", "the", "<", "b", ">", " quick", " brown", " fox", " the", " quick",
         " brown"],
        [*prefix, " fox", "<", "/", "i", ">", "<eos>"],
    ]  # fmt: skip
    assert cut_into_chunks(row_metadata_budget=3) == [
        [*prefix[:1], " |||", " ", "the", " quick", " brown", " fox", " the", " quick", " brown"],
        [*prefix, " fox", "<eos>"],
    ]


@given(st.text(min_size=1, max_size=40), spans, st.integers(0, 40), st.integers(0, 40))
def test_cutting_the_metadata_never_removes_text(
    text: str, spans_of_tags: list[tuple[int, int]], first: int, second: int
) -> None:
    tags = [tag("b", min(at, len(text)), min(at + size, len(text))) for at, size in spans_of_tags]
    encoded_document = encode_text(text, tags, "a url", small_tokenizer(), metadata_position="both")
    whole = Chunk(encoded_document, 0, len(encoded_document.ids), True)
    once = cut_metadata(whole, first)
    for chunk, limit in ((once, first), (cut_metadata(once, second), min(first, second))):
        assert chunk.metadata_length <= limit
        assert chunk.num_left_out == whole.metadata_length - chunk.metadata_length
        assert chunk.document.ids[chunk.document.is_text].tolist() == (
            encoded_document.ids[encoded_document.is_text].tolist()
        )
        lengths = {len(chunk.ids), len(chunk.token_types), len(chunk.loss_mask)}
        assert lengths == {len(chunk), len(chunk.text_starts), len(chunk.text_ends)} == {len(chunk)}
    assert cut_metadata(whole, whole.metadata_length) is whole


@pytest.mark.parametrize(
    ("run", "limit", "divisible", "expected"),
    [
        ([0, 0, 1, 1, 1], 5, 0, 5),
        ([0, 0, 1, 1, 1], 4, 0, 2),
        ([0, 0, 1, 1, 1], 4, 3, 4),
        ([0, 0, 1, 1, 1], 1, 0, 0),
        ([0, 0, 1, 1, 1], 1, 3, 0),
        ([], 3, 0, 0),
    ],
)
def test_inserted_strings_are_kept_whole(
    run: list[int], limit: int, divisible: int, expected: int
) -> None:
    assert count_fitting_tokens(np.array(run, np.int32), limit, divisible) == expected


def test_chunks_of_a_row_share_its_room_evenly() -> None:
    assert find_fair_limit([5, 1, 9], 10) == 4
    assert find_fair_limit([2, 2], 10) == 2
    assert find_fair_limit([7], 3) == 3


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 400))
def test_a_share_is_the_largest_that_fits(amounts: list[int], limit: int) -> None:
    def total(share: int) -> int:
        return sum(min(amount, share) for amount in amounts)

    share = find_fair_limit(amounts, limit)
    assert total(share) <= limit
    assert share >= max(amounts) or total(share + 1) > limit
