"""Training on the main content: the text is what is kept, and local records are cut with it."""

from __future__ import annotations

import json
import random
from operator import attrgetter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.annotate import content
from bsmeta.annotate.html.page import parse_page
from bsmeta.config.data import EXTRACTORS
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config, global_record, html, local

TEXT = "Home About\nThe title\nA first line.\nA second line.\nFooter"
#       0         10         20            34             49
SPANS = {"resiliparse": [[11, 34]], "trafilatura": [[21, 34], [35, 49]]}


def decode(kept: str, spans: object = SPANS, **columns: object) -> Document:
    line = {"text": TEXT, "content_spans": spans, "url": "https://a.org", **columns}
    keys = config(["html", "entity", "title"])
    return make_decoder(keys, {}, content=kept).decode(json.dumps(line).encode())


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ("all", TEXT),
        ("resiliparse", "The title\nA first line."),
        ("trafilatura", "A first line.\nA second line."),
        ("union", "The title\nA first line.\nA second line."),
        ("intersection", "A first line."),
    ],
)
def test_the_text_consists_of_the_kept_spans(kept: str, expected: str) -> None:
    document = decode(kept)
    assert document.text == expected
    assert document.whole_text == TEXT


def test_records_outside_the_kept_text_are_dropped_or_cut() -> None:
    document = decode(
        "trafilatura",
        metadata_html=[
            html("body", 0, 56, 0, 0),
            html("h1", 11, 20, 0, 0),
            html("p", 21, 34, 0, 1),
            html("b", 23, 34, 0, 0),
            html("img", 34, 34, 2, 3),
            html("p", 35, 49, 0, 0),
            html("hr", 50, 50, 0, 1),
        ],
        metadata_entity=[local("entity", "Home", 0, 4), local("entity", "Line", 44, 48)],
        metadata_title=[global_record("title", "T")],
    )
    fields = attrgetter(
        "value", "char_start_idx", "relative_start_pos", "char_end_idx", "relative_end_pos"
    )
    record_fields = [fields(record) for record in document.records("html")]
    assert record_fields == [
        ("body", 0, 0, 28, 1),
        ("p", 0, 1, 13, 1),
        ("b", 2, 0, 13, 0),
        ("img", 13, 2, 13, 3),
        ("p", 14, 0, 28, 0),
    ]  # fmt: skip
    assert [(record.value, record.char_start_idx) for record in document.records("entity")] == [
        ("Line", 23)
    ]
    assert [record.value for record in document.records("title")] == ["T"]
    rendered = Renderer(config(["html"])).render(document, ["html"]).body
    assert rendered == (
        "<body><p>A <b>first line.</b></p><img></img>\n<p>A second line.</p></body>"
    )


@pytest.mark.parametrize(
    ("gap", "separator"), [("x y", " "), ("x\ny", "\n"), (" ", " "), ("\u00a0", " "), ("-", "")]
)
def test_spans_are_joined_by_a_newline_space_or_nothing(gap: str, separator: str) -> None:
    kept = KeptText(f"one{gap}two", [(0, 3), (3 + len(gap), 6 + len(gap))])
    assert kept.text == f"one{separator}two"


@pytest.mark.parametrize(
    ("kept", "spans", "reason"),
    [
        ("resiliparse", None, "no_content_spans"),
        ("resiliparse", {}, "no_content_spans"),
        ("union", {"resiliparse": []}, "no_content_spans"),
        ("resiliparse", {"resiliparse": [[5, 4]]}, "bad_content_spans"),
        ("resiliparse", {"resiliparse": [[5, 10], [9, 12]]}, "bad_content_spans"),
        ("resiliparse", {"resiliparse": [[5, 57]]}, "bad_content_spans"),
        ("resiliparse", {"resiliparse": [[-1, 5]]}, "bad_content_spans"),
        ("resiliparse", {"resiliparse": [[1, "a"]]}, "wrong_type"),
        ("resiliparse", "text", "wrong_type"),
    ],
)
def test_a_document_without_usable_spans_is_bad(kept: str, spans: object, reason: str) -> None:
    with pytest.raises(BadDocument) as error:
        decode(kept, spans)
    assert error.value.reason == reason


@pytest.mark.parametrize("spans", [[], {"resiliparse": None}, {"resiliparse": []}])
def test_empty_spans_keep_nothing(spans: object) -> None:
    document = decode("resiliparse", spans, metadata_html=[html("b", 0, 4, 0, 0)])
    assert (document.text, list(document.records("html"))) == ("", [])


def test_lengths_are_recomputed_for_the_kept_text() -> None:
    columns = {
        "metadata_generation_length_text": [global_record("length", "56")],
        "metadata_generation_length_sentence": [
            local("length", 23, 11, 34),
            local("length", 9, 0, 9),
        ],
    }
    line = json.dumps({"text": TEXT, "content_spans": SPANS, **columns}).encode()
    document = make_decoder(config(["length"]), {}, content="trafilatura").decode(line)
    assert [record.value for record in document.records("length")] == ["28", 13]


def test_the_order_of_keys_in_the_line_does_not_matter() -> None:
    line = {"content_spans": SPANS, "metadata_html": [html("b", 11, 14, 0, 0)], "text": TEXT}
    decoder = make_decoder(config(["html"]), {}, content="resiliparse")
    document = decoder.decode(json.dumps(line).encode())
    assert document.text == "The title\nA first line."
    assert [record.char_end_idx for record in document.records("html")] == [3]


def test_mapped_columns_are_cut_too() -> None:
    line = {"body": {"text": TEXT}, "content_spans": SPANS, "quality": 7}
    decoder = make_decoder(config(["q"]), {"text": "body.text", "q": "quality"}, content="union")
    assert decoder.columns >= {"body.text", "content_spans"}
    document = decoder.decode(json.dumps(line).encode())
    assert document.text == "The title\nA first line.\nA second line."
    assert [record.value for record in document.records("q")] == [7]


def test_types_that_share_records_are_cut_alike() -> None:
    line = {"text": TEXT, "content_spans": SPANS, "r": [local("", 7, 13, 15)]}
    del line["r"][0]["key"]
    decoder = make_decoder(config(["a", "b"]), {"a": "r", "b": "r"}, content="resiliparse")
    document = decoder.decode(json.dumps(line).encode())
    spans = [
        (record.char_start_idx, record.char_end_idx)
        for key in "ab"
        for record in document.records(key)
    ]
    assert spans == [(2, 4), (2, 4)]


FRAGMENTS = ("<p>", "</p>", "<b class=x>", "</b>", "<i>", "</i>", "<img>", "<br>", "word ", "x")
pages = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join)


@settings(max_examples=400)
@given(pages, st.randoms(use_true_random=False))
def test_cutting_preserves_the_nesting_of_tags(source: str, rng: random.Random) -> None:
    page = parse_page(source, profile="all")
    edges = sorted(rng.sample(range(len(page.text) + 1), rng.randrange(len(page.text) + 1) & ~1))
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    kept = KeptText(page.text, spans)
    records = msgspec.json.decode(msgspec.json.encode(page.tags), type=list[Record])
    clipped = kept.clip("html", records)
    line = msgspec.json.encode({"text": kept.text, "metadata_html": clipped})
    keys = config(["html"])
    rendered = Renderer(keys).render(make_decoder(keys, {}).decode(line), ["html"]).body
    assert remove_tags(rendered) == kept.text
    # Each character that is kept stands within the tags that it stood in, in the same order.
    whole = msgspec.json.encode({"text": page.text, "metadata_html": page.tags})
    before = Renderer(keys).render(make_decoder(keys, {}).decode(whole), ["html"]).body
    paths = list_contexts(before)
    ours = iter(list_contexts(rendered))
    for number, (start, end) in enumerate(spans):
        between = page.text[spans[number - 1][1] : start] if number else ""
        if any(letter.isspace() for letter in between):
            next(ours)  # the separator
        assert paths[start:end] == [next(ours) for _ in range(end - start)]
    assert next(ours, None) is None


def remove_tags(rendered: str) -> str:
    return "".join(part.partition(">")[2] for part in ("<>" + rendered).split("<"))


def list_contexts(rendered: str) -> list[tuple[str, tuple[str, ...]]]:
    """Returns each character with its enclosing tags; fails if they are not well nested."""
    characters, is_open = [], []
    for part in ("<>" + rendered).split("<")[1:]:
        tag, _, text = part.partition(">")
        if tag.startswith("/"):
            assert is_open.pop().split()[0] == tag[1:]
        elif tag:
            is_open.append(tag)
        characters += [(letter, tuple(is_open)) for letter in text]
    assert not is_open
    return characters


def test_the_configuration_lists_the_extractors_of_the_annotator() -> None:
    assert tuple(content.EXTRACTORS) == EXTRACTORS
