"""Encoding: prefix, body and suffix as tokens, and what each token stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.chunks import cut_document
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.data.text.tokens import mark_spans
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Rendered, Renderer
from tests.data.helpers import small_tokenizer, word_tokenizer

TOKENIZER = small_tokenizer()
WORDS = word_tokenizer(["Title", "url", "abc", "Fox", "x", "|||", "|", ":"])
URL = '"metadata_url": [{"key": "url", "type": "global", "value": "abc"}]'
BOLD = (
    '"metadata_html": [{"key": "html", "type": "local", "value": "b", "char_start_idx": 1, '
    '"char_end_idx": 3, "html_attrs": {"attrs": [], "values": []}}]'
)


def rendered(fields: str, **changes: object) -> Rendered:
    config = MetadataConfig(metadata_list=["html", "url"], **changes)
    document = DocumentDecoder(config).decode(("{" + fields + "}").encode())
    return Renderer(config).render(document, ("html", "url"))


def encoded(fields: str, **changes: object) -> EncodedDocument:
    config = MetadataConfig(metadata_list=["html", "url"], **changes)
    encoder = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=config))
    (document,) = encoder.encode([rendered(fields, **changes)])
    return document


def by_token(document: EncodedDocument, values: np.ndarray) -> list[tuple[str, int]]:
    """Returns pairs of a token's text and its value."""
    texts = [TOKENIZER.decode([number]) for number in document.ids]
    return list(zip(texts, values.tolist(), strict=True))


def test_a_text_without_metadata_has_only_targets() -> None:
    document = encoded('"text": "xyz"')
    assert len(document.prefix_ids) == 0
    assert by_token(document, document.token_types) == [("x", 0), ("y", 0), ("z", 0), ("<eos>", 0)]
    assert document.targets.tolist() == [True] * 4
    assert document.runs.tolist() == [-1] * 4
    assert document.text_starts.tolist() == [0, 1, 2, 3]
    assert document.text_ends.tolist() == [1, 2, 3, 3]


def test_a_prefix_is_encoded_without_targets() -> None:
    document = encoded('"text": "xyz", ' + URL)
    assert TOKENIZER.decode(document.prefix_ids) == "url: abc |||"
    assert set(document.prefix_token_types.tolist()) == {2}
    assert not document.prefix_targets.any()
    # The space that joins prefix and text belongs to no character of the text.
    assert by_token(document, document.text_starts)[:3] == [(" ", 0), ("x", 0), ("y", 1)]
    assert by_token(document, document.text_ends)[:3] == [(" ", 0), ("x", 1), ("y", 2)]


def test_tags_are_runs_of_their_type() -> None:
    document = encoded('"text": "xyz", ' + BOLD)
    assert by_token(document, document.token_types) == [
        (" ", 0), ("x", 0), ("<", 1), ("b", 1), (">", 1), ("y", 0), ("z", 0),
        ("<", 1), ("/", 1), ("b", 1), (">", 1), ("<eos>", 0),
    ]  # fmt: skip
    assert document.runs.tolist() == [-1, -1, 1, 1, 1, -1, -1, 2, 2, 2, 2, -1]
    assert document.text_starts.tolist() == [0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3]
    assert document.text_ends.tolist() == [0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3]
    # Local metadata is regular text by default; the space only joins prefix and body.
    assert document.lead_length == 1
    assert document.targets.tolist() == [False] + [True] * 11


def test_tags_that_are_not_regular_text_are_no_targets() -> None:
    document = encoded('"text": "xyz", ' + BOLD, treat_local_metadata_as_regular_text=False)
    assert document.targets.tolist() == [False, *(document.token_types[1:] == 0)]


def test_the_prefix_is_a_target_under_loss_on_metadata() -> None:
    document = encoded('"text": "xyz", ' + URL, loss_on_metadata=True)
    assert document.prefix_targets.all()


def test_a_suffix_precedes_eos_and_is_a_single_run() -> None:
    document = encoded('"text": "x", ' + URL, metadata_position="append", loss_on_metadata=True)
    assert len(document.prefix_ids) == 0
    assert TOKENIZER.decode(document.ids) == "x ||| url: abc<eos>"
    assert document.token_types.tolist() == [0, *[2] * (len(document.ids) - 2), 0]
    assert len(set(document.runs[1:-1].tolist())) == 1
    assert document.runs[-1] == -1
    assert document.targets.all()
    assert document.text_ends.tolist() == [1] * len(document.ids)


def test_a_long_prefix_is_cut_and_keeps_its_separator() -> None:
    long = URL.replace("abc", "abc" * 40)
    document = encoded('"text": "xyz", ' + long, max_seq_len=64)
    assert len(document.prefix_ids) == len(document.prefix_token_types) == 32
    assert TOKENIZER.decode(document.prefix_ids).endswith("abcabc |||")
    assert len(encoded('"text": "xyz", ' + long, prefix_max_tokens=20).prefix_ids) == 20


TITLE = '"metadata_title": [{"key": "title", "type": "global", "value": "Fox"}]'


def list_token_types(position: str, *types: str) -> list[tuple[str, int]]:
    """Returns the tokens of prefix or suffix with the number of their type in metadata_list."""
    config = MetadataConfig(
        metadata_list=["title", "url"],
        metadata_position=position,
        loss_on_metadata=True,
        loss_on_metadata_types=["url"],
    )
    line = "{" + f'"text": "x", {URL}, {TITLE}' + "}"
    document = DocumentDecoder(config).decode(line.encode())
    encoder = DocumentEncoder(WORDS, DataConfig(metadata_config=config))
    (one,) = encoder.encode([Renderer(config).render(document, types)])
    inside = slice(1, -1)  # without the text and EOS
    ids, kinds, targets = (
        (one.prefix_ids, one.prefix_token_types, one.prefix_targets)
        if position == "prepend"
        else (one.ids[inside], one.token_types[inside], one.targets[inside])
    )
    assert targets.tolist() == [kind == 2 for kind in kinds]
    return [(WORDS.decode([i]), kind) for i, kind in zip(ids, kinds.tolist(), strict=True)]


def test_a_record_begins_with_the_token_that_begins_in_the_separator_before_it() -> None:
    """` url` is a token whose blank belongs to the separator ` | ` after the title."""
    assert list_token_types("prepend", "title", "url") == [
        ("Title", 1), (":", 1), (" Fox", 1), (" |", 1),
        (" url", 2), (":", 2), (" abc", 2), (" |||", 2),
    ]  # fmt: skip
    assert list_token_types("append", "title", "url") == [
        (" |||", 1), (" Title", 1), (":", 1), (" Fox", 1),
        (" |", 2), (" url", 2), (":", 2), (" abc", 2),
    ]  # fmt: skip


def test_bos_comes_before_the_prefix_and_before_text_alone() -> None:
    tokenizer = small_tokenizer()
    tokenizer.bos_token = "<eos>"
    for fields, prefix in (('"text": "xyz"', ""), ('"text": "xyz", ' + URL, "url: abc |||")):
        config = MetadataConfig(metadata_list=["html", "url"], bos_token=True, max_seq_len=64)
        data = DataConfig(metadata_config=config)
        (document,) = DocumentEncoder(tokenizer, data).encode([rendered(fields)])
        assert document.prefix_ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(document.prefix_ids[1:]) == prefix
        assert document.prefix_token_types.tolist() == [0, *[2] * (len(document.prefix_ids) - 1)]
        assert not document.prefix_targets.any()
        (chunk,) = cut_document(document, data)
        text = chunk.loss_mask[-4:]  # x, y, z, EOS: BOS predicts the first
        assert text.tolist() == [True] * 4
    (document,) = DocumentEncoder(TOKENIZER, data).encode([rendered('"text": "xyz"')])
    assert len(document.prefix_ids) == 0  # a tokenizer that has none


def test_a_batch_keeps_its_order() -> None:
    config = MetadataConfig(metadata_list=["html", "url"])
    encoder = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=config))
    lines = ['"text": "a", ' + URL, '"text": "b"', '"text": "cde", ' + BOLD, '"text": "d", ' + URL]
    together = encoder.encode([rendered(line) for line in lines])
    alone = [encoded(line) for line in lines]
    assert [document.ids.tolist() for document in together] == [
        document.ids.tolist() for document in alone
    ]
    assert [len(document.prefix_ids) for document in together] == [
        len(document.prefix_ids) for document in alone
    ]
    assert encoder.encode([]) == []


def test_a_tokenizer_without_eos_is_refused() -> None:
    tokenizer = small_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ConfigurationError, match="has no eos_token"):
        DocumentEncoder(tokenizer, DataConfig())


def test_a_prefix_limit_that_could_fill_the_sequence_is_refused() -> None:
    for changes in ({"max_seq_len": 8}, {"max_seq_len": 64, "prefix_max_tokens": 63}):
        with pytest.raises(ConfigurationError, match=r"prefix_max_tokens.*max_seq_len"):
            DocumentEncoder(TOKENIZER, DataConfig(metadata_config=MetadataConfig(**changes)))


@given(st.data())
def test_the_type_of_a_token_follows_from_its_characters(data: st.DataObject) -> None:
    """Compares random tokens over random spans with a check of every character."""
    cuts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=20), "token lengths")
    ends = np.cumsum(cuts).astype(np.int32)
    starts = (ends - cuts).astype(np.int32)
    size = st.integers(0, int(ends[-1]))
    places = sorted(data.draw(st.sets(size, max_size=12), "spans"))
    spans = np.array(places[: len(places) // 2 * 2], np.int32).reshape(-1, 2)
    span_token_types = np.arange(1, len(spans) + 1, dtype=np.uint8)
    kinds, run = np.zeros(len(cuts), np.uint8), np.full(len(cuts), -1, np.int32)
    mark_spans(kinds, run, starts, ends, spans, span_token_types)

    of_character = np.zeros(int(ends[-1]), np.int64)
    for kind, (start, end) in zip(span_token_types, spans, strict=True):
        of_character[start:end] = kind
    for token, (start, end) in enumerate(zip(starts, ends, strict=True)):
        marked = of_character[start:end][of_character[start:end] > 0]
        assert kinds[token] == (marked[0] if len(marked) else 0)
        assert (run[token] >= 0) == (len(marked) > 0)
    for token, place in enumerate(starts[1:]):
        inside = any(start < place < end for start, end in spans)
        assert inside == (run[token] >= 0 and run[token] == run[token + 1])


@given(
    st.text("ab <", min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5),
)
def test_a_token_has_the_type_of_its_first_metadata_character(
    text: str, places: list[tuple[int, int]]
) -> None:
    config = MetadataConfig(metadata_list=["url", "html"])
    ends = [sorted(min(place, len(text)) for place in both) for both in places]
    tags = [
        Record(value="b", type="local", char_start_idx=start, char_end_idx=end)
        for start, end in ends
    ]
    shown = Renderer(config).render(Document(text, None, {"html": tags}), ("html",))
    (document,) = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=config)).encode([shown])
    of_character = [0] * len(shown.lead + shown.body)
    for start, end in shown.spans + len(shown.lead):
        of_character[start:end] = [2] * int(end - start)
    place = 0
    for number, kind, run in zip(document.ids, document.token_types, document.runs, strict=True):
        length = len(TOKENIZER.decode([number])) if number != TOKENIZER.eos_token_id else 0
        expected = max(of_character[place : place + length], default=0)
        assert (kind, run >= 0) == (expected, expected > 0)
        place += length
    assert place == len(of_character)


def test_without_metadata_no_token_has_a_type() -> None:
    plain = rendered('"text": "xyz", ' + URL + ", " + BOLD).without_metadata()
    config = MetadataConfig(metadata_list=["html", "url"])
    (document,) = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=config)).encode([plain])
    assert by_token(document, document.token_types) == [
        (" ", 0), ("x", 0), ("y", 0), ("z", 0), ("<eos>", 0),
    ]  # fmt: skip
    assert len(document.targets) == len(document.runs) == 5
