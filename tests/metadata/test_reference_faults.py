"""The faults of the BigScience `metadata` code that belong here, each as a case that is right.

Numbered as in the list of known faults; those of the data pipeline, the loop and the evaluation
are tested there.
"""

from __future__ import annotations

import json
import random
from dataclasses import fields

import pytest

from bsmeta.config.metadata import HtmlParserConfig, HtmlTagRules, MetadataConfig
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.metadata.sampling import TypeSampler
from tests.metadata.helpers import config, document, global_record, html, local, render


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.0])
def test_fault_1_html_that_was_dropped_is_not_rendered(rate: float) -> None:
    settings = config(["html", "url"], html_overall_sample_rate=rate)
    line = {"text": "ab", "metadata_html": [html("b", 0, 2, 0, 0)]}
    line["metadata_url"] = [global_record("url", "u")]
    decoder, renderer = DocumentDecoder(settings), Renderer(settings)
    rng = random.Random(3)
    tagged = 0
    for _ in range(1000):
        read = decoder.decode(json.dumps(line).encode())
        tagged += "<b>" in renderer.render(read, TypeSampler(settings).draw(read, rng)).body
    assert tagged / 1000 == pytest.approx(rate, abs=0.06)


def test_fault_2_the_text_without_metadata_keeps_no_tags_and_its_mask_fits() -> None:
    rendered = render(
        config(["html", "url"]), "a b", global_record("url", "u"), html("b", 0, 1, 0, 0)
    )
    plain = rendered.without_metadata()
    assert (rendered.lead + rendered.body, plain.lead + plain.body) == (" <b>a</b> b", " a b")
    assert (plain.spans.tolist(), plain.span_token_types.tolist()) == ([], [])


def test_fault_5_equal_relative_positions_are_rendered() -> None:
    rendered = render(
        config(["html"]), "abc", html("i", 0, 1, 0, 0), html("b", 0, 3, 0, 0), html("u", 1, 1, 0, 0)
    )
    assert rendered.body == "<b><i>a</i><u></u>bc</b>"


def test_fault_5_a_second_record_of_a_global_key_is_kept() -> None:
    rendered = render(
        config(["title"]), "Text", global_record("title", "One"), global_record("title", "Two")
    )
    assert rendered.prefix == "Title: One | Title: Two |||"


def test_fault_5_metadata_on_empty_text_is_kept() -> None:
    records = (global_record("title", "T"), html("p", 0, 0, 0, 1), local("entity", "E", 0, 0))
    rendered = render(config(["title", "html", "entity"]), "", *records)
    assert rendered.prefix == "Title: T | html | entity |||"
    assert rendered.body == "<p></p> [[E]]"
    assert rendered.span_token_types.tolist() == [2, 2, 3]


def test_fault_13_choices_depend_only_on_the_generator() -> None:
    settings = config(["html", "url", "title"], random_sample_metadata=True)
    records = (global_record("title", "T"), global_record("url", "u"), html("b", 0, 1, 0, 0))
    read = document(settings, "Text.", *records)

    def choices(seed: int) -> list[tuple[str, ...]]:
        rng = random.Random(seed)
        return [TypeSampler(settings).draw(read, rng) for _ in range(20)]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)
    state = random.getstate()
    choices(3)
    assert random.getstate() == state  # the generator of the process is left alone


@pytest.mark.parametrize("schema", [MetadataConfig, HtmlParserConfig, HtmlTagRules])
def test_fault_14_two_configurations_share_no_mutable_value(schema: type) -> None:
    first, second = schema(), schema()
    for field in fields(schema):
        value = getattr(first, field.name)
        if isinstance(value, list | dict):
            assert value is not getattr(second, field.name)
