"""Documents become the text that the model reads."""

from __future__ import annotations

import pytest

from bsmeta.data.stream.stages.render import DocumentRenderer, check_length
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered
from tests.data.stream.stages.helpers import read, skipping, title_line


def test_a_document_is_rendered_with_its_types_only() -> None:
    renderer = DocumentRenderer(skipping())
    line = title_line("The text.", "A")
    with_title = renderer.render(read(line, types=["title"]))
    assert (with_title.number, with_title.rendered.full_text) == (10, "Title: A ||| The text.")
    assert with_title.rendered.types == ("title",)
    assert with_title.chunks == []
    assert renderer.render(read(line)).rendered.full_text == "The text."


def test_text_and_metadata_count_for_the_length() -> None:
    renderer = DocumentRenderer(skipping(max_document_chars=20))
    assert renderer.render(read(title_line("x" * 20, "A"))).rendered.full_text == "x" * 20
    with pytest.raises(BadDocument) as error:
        renderer.render(read(title_line("x" * 20, "A"), types=["title"]))
    assert str(error.value) == (
        "document_too_long: text and metadata have 32 characters, more than "
        "data_config.max_document_chars=20"
    )


def test_prefix_body_and_suffix_count_for_the_length_but_not_the_lead() -> None:
    config = skipping(max_document_chars=6)
    check_length(Rendered("t", prefix="pp", lead="lll", body="bb", suffix="ss"), config)
    with pytest.raises(BadDocument, match="have 7 characters"):
        check_length(Rendered("t", prefix="pp", body="bbb", suffix="ss"), config)
