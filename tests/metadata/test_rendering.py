"""What the model reads, character for character."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from bsmeta.config.metadata import HtmlParserConfig, HtmlTagRules
from bsmeta.metadata.rendering import Renderer
from tests.metadata.helpers import config, document, global_record, html, local, render

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
def test_a_global_record_renders_with_its_label(key: str, value: object, prefix: str) -> None:
    rendered = render(config([key]), "Text.", global_record(key, value))
    assert (rendered.prefix, rendered.lead, rendered.body) == (prefix, " ", "Text.")
    assert rendered.types == (key,)


def test_the_prefix_follows_the_order_of_metadata_list() -> None:
    settings = config(["url", "timestamp", "title"], metadata_prefix_start_seq="<<")
    rendered = render(
        settings,
        "It was.",
        global_record("title", "News"),
        global_record("timestamp", "2018-12-10T13:45:00.000Z"),
        global_record("url", "https://www.bbc.com/sport"),
        global_record("length", "7"),
    )
    expected = "<<url: https://www.bbc.com/sport | Year: 2018 | Month: December | Title: News |||"
    assert rendered.prefix == expected
    parts = [expected[start:end] for start, end in rendered.prefix_spans.tolist()]
    assert parts == [
        "<<url: https://www.bbc.com/sport | ",
        "Year: 2018 | Month: December | ",
        "Title: News |||",
    ]
    assert rendered.prefix_token_types.tolist() == [1, 2, 3]


def test_a_boundary_token_replaces_the_separators_around_the_text() -> None:
    settings = config(
        ["title"],
        metadata_boundary_token="<|text|>",
        metadata_position="both",
        metadata_prefix_sep=" ===",
        metadata_text_sep="\n",
    )
    rendered = render(settings, "It was.", global_record("title", "News"))
    assert (rendered.prefix, rendered.lead) == ("Title: News<|text|>", "")
    assert rendered.suffix == "<|text|>Title: News"
    assert Renderer(settings).list_special_tokens() == ["<|text|>"]
    with_start = replace(
        settings, metadata_prefix_start_seq="<|start|>", metadata_prefix_special_token_state=True
    )
    assert Renderer(with_start).list_special_tokens() == ["<|start|>", "<|text|>"]


def test_without_types_the_text_renders_alone() -> None:
    settings = config(["url", "html"])
    read = document(settings, APPLE, global_record("url", "https://a.b"), html("b", 3, 8, 0, 0))
    rendered = Renderer(settings).render(read, ())
    assert (rendered.prefix, rendered.lead, rendered.body) == ("", "", APPLE)
    assert len(rendered.spans) == 0
    assert rendered.types == ()


def test_wrappers_enclose_each_run_of_tags() -> None:
    settings = config(
        ["html", "entity"],
        local_metadata_special_token_start={"html": "<HTML>", "entity": "<E>"},
        local_metadata_special_token_end={"html": "</HTML>"},
    )
    rendered = render(
        settings,
        "ab cd",
        html("p", 0, 5, 0, 0),
        html("b", 0, 2, 1, 0),
        html("br", 2, 2, 1, 2),
        local("entity", "x", 0, 2),
    )
    assert rendered.body == (
        "<HTML><p><b></HTML>ab<E> [[x]]<HTML></b><br></br></HTML> cd<HTML></p></HTML>"
    )


def test_wrappers_without_tags_are_omitted() -> None:
    settings = config(
        ["html"],
        local_metadata_special_token_start={"html": "<HTML>"},
        html_parser_config=HtmlParserConfig(all_tags_rules=HtmlTagRules(txt_max_chr_len=99)),
    )
    rendered = render(settings, "ab", html("b", 0, 2, 0, 0))
    assert (rendered.prefix, rendered.body) == ("html |||", "ab")
    assert len(rendered.spans) == 0


@pytest.mark.parametrize(
    ("record", "body"),
    [
        (local("paragraph", "p1", 0, 2, marker="x"), "[paragraph: p1]ab[/paragraph: p1] cd."),
        (local("length", "2", 0, 2), "[length: 2]ab[/length: 2] cd."),
        (local("basic_start_local", "(!)", 3, 5), "ab (!)cd."),
        (local("mood", "good", 3, 5), "ab [mood: good]cd[/mood: good]."),
        (local("mood", 7, 3, 3), "ab [mood: 7][/mood: 7]cd."),
    ],
)
def test_a_local_record_without_a_class_renders_in_the_default_form(
    record: dict, body: str
) -> None:
    settings = config([record["key"]], add_local_metadata_special_tokens_in_prefix=False)
    assert render(settings, "ab cd.", record).body == body


def test_a_type_may_have_both_global_and_local_records() -> None:
    rendered = render(
        config(["length"]), "One. Two.", local("length", "4", 0, 4), global_record("length", "9")
    )
    assert rendered.prefix == "Text Length: 9 | length |||"
    assert rendered.body == "[length: 4]One.[/length: 4] Two."


def test_a_renderer_can_be_pickled() -> None:
    settings = config(["html", "url"])
    read = document(settings, "t", html("a", 0, 1, 0, 0))
    renderer = pickle.loads(pickle.dumps(Renderer(settings)))
    assert renderer.render(read, ("html",)).body == "<a>t</a>"


TEMPLATE = {"url": "URL: {value}\n\n", "timestamp": "{month} {year}: {key}"}


def test_a_template_replaces_the_label_of_its_type() -> None:
    settings = config(["timestamp", "url"], metadata_templates=TEMPLATE, url_granularity="host")
    rendered = render(
        settings,
        "Text.",
        global_record("url", "https://a.b/{value}"),
        global_record("timestamp", "2018-12-10"),
    )
    assert rendered.prefix == "December 2018: timestamp | URL: a.b\n\n |||"


def test_the_meco_template_renders_its_prefix() -> None:
    settings = config(
        ["url"],
        metadata_templates={"url": TEMPLATE["url"]},
        url_granularity="host",
        metadata_prefix_sep="",
        metadata_text_sep="",
    )
    rendered = render(settings, "Text.", global_record("url", "https://en.wikipedia.org/wiki/Text"))
    assert rendered.prefix + rendered.lead + rendered.body == "URL: en.wikipedia.org\n\nText."


def test_repeated_global_records_are_all_kept_in_order() -> None:
    rendered = render(
        config(["title", "url"]),
        "",
        global_record("title", "B"),
        global_record("url", "u"),
        global_record("title", "A"),
    )
    assert rendered.prefix == "Title: B | Title: A | url: u |||"
    assert rendered.prefix_token_types.tolist() == [1, 1, 2]


def test_appended_records_follow_the_text() -> None:
    settings = config(["url", "title", "html"], metadata_position="append")
    records = (global_record("url", "u"), global_record("title", "T"), html("b", 0, 4, 0, 0))
    rendered = render(settings, "Text", *records)
    assert rendered.prefix == "html |||"  # an announcement stays before what it announces
    assert (rendered.body, rendered.suffix) == ("<b>Text</b>", " ||| url: u | Title: T")
    parts = [rendered.suffix[start:end] for start, end in rendered.suffix_spans.tolist()]
    assert parts == [" ||| url: u", " | Title: T"]
    assert rendered.suffix_token_types.tolist() == [1, 2]
    assert rendered.types == ("url", "title", "html")


def test_records_may_render_before_and_after_the_text() -> None:
    settings = config(["url"], metadata_position="both", metadata_suffix_start_seq="\n")
    rendered = render(settings, "Text", global_record("url", "u"))
    assert (rendered.prefix, rendered.suffix) == ("url: u |||", "\nurl: u")


def test_meta_tokens_render_without_a_record() -> None:
    settings = config(["meta_tokens", "url"], num_meta_tokens=2, metadata_position="append")
    rendered = render(settings, "Text", global_record("url", "u"))
    assert (rendered.prefix, rendered.suffix) == ("<|meta_0|><|meta_1|> |||", " ||| url: u")
    assert rendered.types == ("meta_tokens", "url")
    assert Renderer(settings).list_special_tokens() == ["<|meta_0|>", "<|meta_1|>"]


def test_wrappers_are_special_tokens_only_if_asked_for() -> None:
    wrappers = {
        "local_metadata_special_token_start": {"entity_paragraph": "<E>", "html": "<HTML>"},
        "local_metadata_special_token_end": {"html": "</HTML>", "entity_paragraph": "<E>"},
    }
    assert Renderer(config(["html"], **wrappers)).list_special_tokens() == []
    settings = config(["html"], local_metadata_special_token_state=True, **wrappers)
    assert Renderer(settings).list_special_tokens() == ["<E>", "<HTML>", "</HTML>"]


def test_records_that_render_as_nothing_are_omitted() -> None:
    settings = config(
        ["title", "html"],
        metadata_templates={"title": "{value}"},
        local_metadata_special_tokens={"html": ""},
    )
    rendered = render(settings, "ab", global_record("title", ""), html("b", 0, 1, 0, 0))
    assert (rendered.prefix, rendered.lead, rendered.body) == ("", "", "<b>a</b>b")
    assert rendered.types == ("html",)


def test_types_that_the_document_lacks_are_skipped() -> None:
    settings = config(["url", "html", "title"])
    read = document(settings, "Text", global_record("title", "T"))
    rendered = Renderer(settings).render(read, ("url", "html", "title", "unknown"))
    assert (rendered.prefix, rendered.types) == ("Title: T |||", ("title",))


def test_without_metadata_keeps_the_text_and_its_lead() -> None:
    settings = config(["url", "html"])
    rendered = render(settings, "Text", global_record("url", "u"), html("b", 0, 4, 0, 0))
    plain = rendered.without_metadata()
    assert (plain.prefix, plain.lead, plain.body, plain.suffix) == ("", " ", "Text", "")
    assert (len(plain.spans), plain.types) == (0, ())
