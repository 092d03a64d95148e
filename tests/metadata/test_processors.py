"""HTML and entities: which records are rendered, and how."""

from __future__ import annotations

import pytest

from bsmeta.config.metadata import HtmlParserConfig, HtmlTagRules
from bsmeta.core.changed_values import replace_values
from tests.metadata.helpers import chunks, config, global_record, html, local, render

APPLE = "An apple is an edible fruit produced by an apple tree (Malus domestica)."


def test_html_and_entities_render_with_announcements() -> None:
    rendered = render(
        config(["url", "timestamp", "html", "entity"], metadata_prefix_start_seq=" "),
        APPLE,
        global_record("url", "https://en.wikipedia.org/wiki/Apple"),
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
    assert chunks(rendered) == [
        "<b>",
        " [[Malus domestica]]",
        "</b>",
        "<b class:level1 id:4>",
        "<i class:level2>",
        "</i>",
        "</b>",
    ]
    assert rendered.span_token_types.tolist() == [3, 4, 3, 3, 3, 3, 3]


HINTS = "Hints and tips. Great Britain: Louis Vuitton."
CHAIN = (
    local("entity_paragraph", "United_Kingdom", 0, 45, 0, 0),
    local("entity_paragraph", "Louis_Vuitton", 0, 45, 1, 1),
    local("entity", "United_Kingdom", 16, 29),
    local("entity", "Louis_Vuitton", 31, 44),
)


def test_entities_render_at_the_beginning_of_their_paragraph() -> None:
    settings = config(
        ["entity", "entity_paragraph"],
        local_metadata_special_tokens={"entity": "EntityOn"},
        local_metadata_special_token_start={"entity_paragraph": "<ENTITY_CHAIN>"},
        local_metadata_special_token_end={"entity_paragraph": " </ENTITY_CHAIN> "},
    )
    rendered = render(settings, HINTS, *CHAIN)
    assert rendered.prefix == "EntityOn | entity_paragraph |||"
    assert rendered.body == (
        "<ENTITY_CHAIN> |United Kingdom| |Louis Vuitton| </ENTITY_CHAIN> "
        "Hints and tips. Great Britain [[United Kingdom]]: Louis Vuitton [[Louis Vuitton]]."
    )
    assert chunks(rendered)[:4] == [
        "<ENTITY_CHAIN>",
        " |United Kingdom|",
        " |Louis Vuitton|",
        " </ENTITY_CHAIN> ",
    ]
    assert rendered.span_token_types.tolist() == [2, 2, 2, 2, 1, 1]


def test_entities_render_at_the_end_of_their_paragraph() -> None:
    settings = config(
        ["entity", "entity_paragraph"],
        entity_setting="end",
        add_local_metadata_special_tokens_in_prefix=False,
        local_metadata_special_token_start={"entity_paragraph": " <ENTITY_CHAIN>"},
        local_metadata_special_token_end={"entity_paragraph": " </ENTITY_CHAIN>"},
    )
    rendered = render(settings, HINTS, *CHAIN)
    assert rendered.prefix == ""
    assert rendered.body == (
        "Hints and tips. Great Britain [[United Kingdom]]: Louis Vuitton [[Louis Vuitton]]."
        " <ENTITY_CHAIN> |United Kingdom| |Louis Vuitton| </ENTITY_CHAIN>"
    )


def test_only_the_html_attributes_to_keep_are_rendered() -> None:
    record = html("a", 0, 1, 0, 0, href="https://x.y", id="", **{"class": "c d"})
    attributes = "html_parser_config.all_tags_rules.attributes_to_keep"
    settings = config(["html"])
    assert render(settings, "t", record).body == "<a id: class:c d>t</a>"
    settings = replace_values(settings, {attributes: None})
    assert render(settings, "t", record).body == "<a href:https://x.y id: class:c d>t</a>"
    settings = replace_values(settings, {attributes: []})
    assert render(settings, "t", record).body == "<a>t</a>"


def test_an_html_attribute_may_be_a_number_or_have_no_value() -> None:
    rules = HtmlParserConfig(all_tags_rules=HtmlTagRules(attributes_to_keep=None))
    settings = config(["html"], html_parser_config=rules)
    tag = html("td", 0, 1, colspan=2, tabindex=0, width=1.5, hidden=None, title="")
    assert (
        render(settings, "a", tag).body
        == "<td colspan:2 tabindex:0 width:1.5 hidden: title:>a</td>"
    )


def test_the_cache_of_html_attributes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsmeta.metadata.processors._MAX_CACHED_TAGS", 3)
    records = [html("a", 0, 1, row, -row, id=str(row % 5)) for row in range(10)]
    opened = "".join(f"<a id:{row % 5}>" for row in range(10))
    assert render(config(["html"]), "t", *records).body == opened + "t" + "</a>" * 10


def test_html_without_attributes_renders_the_bare_tag() -> None:
    assert render(config(["html"]), "t", local("html", "a", 0, 1, 0, 0)).body == "<a>t</a>"


def test_html_tags_are_dropped_by_length_and_name() -> None:
    rules = HtmlParserConfig(
        all_tags_rules=HtmlTagRules(
            txt_min_chr_len=0,
            txt_max_chr_len=1,
            tags_exceptions_to_txt_max_min_chr_len=["td"],
        ),
        tags_to_remove_alone_tag_name=["body", "td"],
        tags_to_remove_alone_txt_min_chr_len=[0, 3],
        tags_to_remove_alone_txt_max_chr_len=[float("inf"), 4],
    )
    settings = config(["html"], html_parser_config=rules)
    rendered = render(
        settings,
        "abcdef",
        html("body", 0, 6, 0, 9),  # by name, of any length
        html("p", 0, 1, 1, 0),  # by length
        html("i", 1, 3, 0, 0),
        html("td", 1, 2, 1, 0),  # an exception to the rule of length
        html("td", 3, 6, 1, 1),  # by name and length
        html("br", 6, 6, 2, 3),  # empty
    )
    assert rendered.body == "a<i><td>b</td>c</i>def"


def test_a_timestamp_renders_with_any_separator_of_key_and_value() -> None:
    settings = config(["timestamp", "title"], metadata_key_value_sep="=", metadata_sep="; ")
    records = [global_record("timestamp", "2019-04-01"), global_record("title", "News")]
    rendered = render(settings, "Text.", *records)
    assert rendered.prefix == "Year: 2019; Month: April; Title=News |||"
