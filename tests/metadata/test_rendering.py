"""What the model reads, character for character."""

from __future__ import annotations

import pytest

from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config, document, html, local, pieces, render, world

APPLE = "An apple is an edible fruit produced by an apple tree (Malus domestica)."


@pytest.mark.parametrize(
    ("key", "value", "prefix"),
    [
        ("url", "callto:RickAndMorty/Year%202021/", "url: callto:RickAndMorty/Year 2021/ |||"),
        ("url", "http://a.b/c+d", "url: http://a.b/c d |||"),
        ("timestamp", "2018-12-10T13:45:00.000Z", "Year: 2018 | Month: December |||"),
        ("timestamp", "2023-02-19 00:00:00", "Year: 2023 | Month: February |||"),
        ("title", "My Thoughts On It » Dad", "Title: My Thoughts On It » Dad |||"),
        ("website_description", "A shop.", "Website Description: A shop. |||"),
        ("datasource", "a.de > forum", "Datasource: a.de > forum |||"),
        ("length", "123", "Text Length: 123 |||"),
        ("length", 123, "Text Length: 123 |||"),
        ("mood", "bright", "mood: bright |||"),
    ],
)
def test_a_global_record_reads(key: str, value: object, prefix: str) -> None:
    rendered = render(config([key]), "Text.", world(key, value))
    assert (rendered.prefix, rendered.lead, rendered.body) == (prefix, " ", "Text.")
    assert rendered.types == (key,)


def test_the_prefix_follows_metadata_list_not_the_data() -> None:
    settings = config(["url", "timestamp", "title"], metadata_prefix_start_seq="<<")
    rendered = render(
        settings,
        "It was.",
        world("title", "News"),
        world("timestamp", "2018-12-10T13:45:00.000Z"),
        world("url", "https://www.bbc.com/sport"),
        world("length", "7"),
    )
    expected = "<<url: https://www.bbc.com/sport | Year: 2018 | Month: December | Title: News |||"
    assert rendered.prefix == expected
    parts = [expected[start:end] for start, end in rendered.prefix_spans.tolist()]
    assert parts == [
        "<<url: https://www.bbc.com/sport | ",
        "Year: 2018 | Month: December | ",
        "Title: News |||",
    ]
    assert rendered.prefix_kinds.tolist() == [1, 2, 3]


def test_html_and_entities_with_announcements() -> None:
    rendered = render(
        config(["url", "timestamp", "html", "entity"], metadata_prefix_start_seq=" "),
        APPLE,
        world("url", "https://en.wikipedia.org/wiki/Apple"),
        html("b", 3, 8, 0, 0),
        local("entity", "Malus_domestica", 3, 8),
        html("b", 43, 53, 1, 0, **{"class": "level1", "id": "4", "href": "https://test.org"}),
        html("i", 43, 48, 2, 0, **{"class": "level2"}),
    )
    assert rendered.prefix == " url: https://en.wikipedia.org/wiki/Apple | html | entity |||"
    assert rendered.body == (
        "An <b>apple [[Malus domestica]]</b> is an edible fruit produced by an "
        "<b class:level1 id:4><i class:level2>apple</i> tree</b> (Malus domestica)."
    )
    assert pieces(rendered) == [
        "<b>",
        " [[Malus domestica]]",
        "</b>",
        "<b class:level1 id:4>",
        "<i class:level2>",
        "</i>",
        "</b>",
    ]
    assert rendered.span_kinds.tolist() == [3, 4, 3, 3, 3, 3, 3]


def test_no_types_render_the_text_alone() -> None:
    settings = config(["url", "html"])
    read = document(settings, APPLE, world("url", "https://a.b"), html("b", 3, 8, 0, 0))
    rendered = Renderer(settings).render(read, ())
    assert (rendered.prefix, rendered.lead, rendered.body) == ("", "", APPLE)
    assert len(rendered.spans) == 0
    assert rendered.types == ()
