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
from bsmeta.annotate.page import parse_page
from bsmeta.config.data import EXTRACTORS
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config, html, local, world

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
def test_the_text_is_what_is_kept(kept: str, expected: str) -> None:
    document = decode(kept)
    assert document.text == expected
    assert document.whole_text == TEXT


def test_records_are_cut_with_the_text() -> None:
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
        metadata_title=[world("title", "T")],
    )
    fields = attrgetter(
        "value", "char_start_idx", "relative_start_pos", "char_end_idx", "relative_end_pos"
    )
    found = [fields(record) for record in document.records("html")]
    assert found == [
        ("body", 0, 0, 28, 1),
        ("p", 0, 1, 13, 1),
        ("b", 2, 0, 13, 0),
        ("img", 13, 2, 13, 3),
        ("p", 14, 0, 28, 0),
    ]  # fmt: skip
    assert [(one.value, one.char_start_idx) for one in document.records("entity")] == [("Line", 23)]
    assert [one.value for one in document.records("title")] == ["T"]
    rendered = Renderer(config(["html"])).render(document, ["html"]).body
    assert rendered == (
        "<body><p>A <b>first line.</b></p><img></img>\n<p>A second line.</p></body>"
    )


@pytest.mark.parametrize(
    ("gap", "separator"), [("x y", " "), ("x\ny", "\n"), (" ", " "), ("\u00a0", " "), ("-", "")]
)
def test_what_separates_spans(gap: str, separator: str) -> None:
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
def test_where_nothing_was_found_nothing_is_kept(spans: object) -> None:
    document = decode("resiliparse", spans, metadata_html=[html("b", 0, 4, 0, 0)])
    assert (document.text, list(document.records("html"))) == ("", [])


def test_lengths_are_those_of_the_text_that_is_kept() -> None:
    columns = {
        "metadata_generation_length_text": [world("length", "56")],
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
    assert [one.char_end_idx for one in document.records("html")] == [3]


def test_mapped_columns_are_cut_too() -> None:
    line = {"body": {"text": TEXT}, "content_spans": SPANS, "quality": 7}
    decoder = make_decoder(config(["q"]), {"text": "body.text", "q": "quality"}, content="union")
    assert decoder.columns >= {"body.text", "content_spans"}
    document = decoder.decode(json.dumps(line).encode())
    assert document.text == "The title\nA first line.\nA second line."
    assert [one.value for one in document.records("q")] == [7]


def test_types_that_share_records_are_cut_alike() -> None:
    line = {"text": TEXT, "content_spans": SPANS, "r": [local("", 7, 13, 15)]}
    del line["r"][0]["key"]
    decoder = make_decoder(config(["a", "b"]), {"a": "r", "b": "r"}, content="resiliparse")
    document = decoder.decode(json.dumps(line).encode())
    spans = [
        (one.char_start_idx, one.char_end_idx) for key in "ab" for one in document.records(key)
    ]
    assert spans == [(2, 4), (2, 4)]


FRAGMENTS = ("<p>", "</p>", "<b class=x>", "</b>", "<i>", "</i>", "<img>", "<br>", "word ", "x")
pages = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join)


@settings(max_examples=400)
@given(pages, st.randoms(use_true_random=False))
def test_cutting_keeps_the_nesting(source: str, rng: random.Random) -> None:
    page = parse_page(source, profile="all")
    places = sorted(rng.sample(range(len(page.text) + 1), rng.randrange(len(page.text) + 1) & ~1))
    spans = list(zip(places[::2], places[1::2], strict=True))
    kept = KeptText(page.text, spans)
    records = msgspec.json.decode(msgspec.json.encode(page.tags), type=list[Record])
    clipped = kept.clip("html", records)
    line = msgspec.json.encode({"text": kept.text, "metadata_html": clipped})
    keys = config(["html"])
    rendered = Renderer(keys).render(make_decoder(keys, {}).decode(line), ["html"]).body
    assert without_tags(rendered) == kept.text
    # Each character that is kept stands within the tags that it stood in, in the same order.
    whole = msgspec.json.encode({"text": page.text, "metadata_html": page.tags})
    before = Renderer(keys).render(make_decoder(keys, {}).decode(whole), ["html"]).body
    paths = contexts(before)
    ours = iter(contexts(rendered))
    for number, (start, end) in enumerate(spans):
        between = page.text[spans[number - 1][1] : start] if number else ""
        if any(letter.isspace() for letter in between):
            next(ours)  # the separator
        assert paths[start:end] == [next(ours) for _ in range(end - start)]
    assert next(ours, None) is None


def without_tags(rendered: str) -> str:
    return "".join(part.partition(">")[2] for part in ("<>" + rendered).split("<"))


def contexts(rendered: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each character with the tags around it; fails if they are not well nested."""
    found, is_open = [], []
    for part in ("<>" + rendered).split("<")[1:]:
        tag, _, text = part.partition(">")
        if tag.startswith("/"):
            assert is_open.pop().split()[0] == tag[1:]
        elif tag:
            is_open.append(tag)
        found += [(letter, tuple(is_open)) for letter in text]
    assert not is_open
    return found


def test_the_extractors_are_those_of_the_annotator() -> None:
    assert tuple(content.EXTRACTORS) == EXTRACTORS
