"""Documents as a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from bsmeta.tasks.causal_lm.explaining.page import render_page as html_page
from tests.data.helpers import page, small_tokenizer
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows, small_texts

TOKENIZER = small_tokenizer()


class Reader(HTMLParser):
    """Collects tags, and tokens with their tooltips."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.tokens: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in ("meta", "input", "br", "th", "td", "tr"):
            self.open.append(tag)
        if tag == "i":
            self.tokens.append(("", dict(attrs)["data-t"] or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "i":
            text, tooltip = self.tokens[-1]
            self.tokens[-1] = (text + data, tooltip)


def read(folder: Path, text: str, **changes: Any) -> tuple[str, Reader]:
    document = {**page(3, 2), "text": text}
    changes = {"random_sample_metadata": False, "max_seq_len": 256, **changes}
    config = own_config(folder, [document], **changes)
    html = html_page(own_windows(config), config, small_texts())
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return html, reader


def test_each_token_has_its_position_part_and_loss(tmp_path: Path) -> None:
    _, reader = read(tmp_path, "the fox\n🦊 & dogs", types=["title", "html"])
    assert "".join(text for text, _ in reader.tokens if text != "·") == (
        "html | Title: Page 3 ||| <b class:strong>the f</b>ox\n🦊 & dogs<eos>"
    )
    places = {text: position for position, (text, _) in reversed([*enumerate(reader.tokens)])}
    for text, description in {
        "h": "html (prefix), no loss  'h'",
        "T": "title (prefix), no loss  'T'",
        "<": "html (in the text), loss  '<'",
        " ": "html (prefix), no loss  ' '",
        "\n": "text, loss  '\\n'",
        "·": "text, loss  ''",
        "&": "text, loss  '&'",
        "<eos>": "end of the document, loss  '<eos>'",
    }.items():
        number = TOKENIZER.convert_tokens_to_ids({" ": "Ġ", "\n": "Ċ", "·": "ðŁ"}.get(text, text))
        position = places[text]
        assert reader.tokens[position][1] == f"token {position}: id {number}, {description}"


def test_a_document_cannot_inject_markup_into_the_page(tmp_path: Path) -> None:
    text = "<script>alert(1)</script><img src=https://example.org/x> \" onmouseover='x' \x1b[31m"
    made, reader = read(tmp_path, text, types=["url"])
    assert "<script" not in made
    assert reader.tags <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "span"),
        *("label", "input", "br", "i", "table", "tr", "th", "td"),
    }
    assert reader.attributes == {
        *(
            "lang",
            "charset",
            "name",
            "content",
            "class",
            "type",
            "id",
            "checked",
            "data-t",
            "style",
        ),
        "http-equiv",
    }
    assert 'content="default-src &#39;none&#39;; script-src &#39;none&#39;; ' in made
    assert "url(" not in made
    assert "@import" not in made
    assert "\x1b" not in made


def test_each_type_has_a_color_in_light_and_dark_schemes(tmp_path: Path) -> None:
    made, _ = read(tmp_path, "the fox")
    assert "prefers-color-scheme: dark" in made
    for number, (light, dark) in enumerate([("#cfe3f4", "#1e364b"), ("#f1d0db", "#412332")], 1):
        assert f"--type-{number}: {light};" in made
        assert f"--type-{number}: {dark};" in made
        assert f".k{number} {{ background: var(--type-{number}); }}" in made
    assert '<span class="k3">url</span>' in made


def test_packing_is_drawn_to_scale(tmp_path: Path) -> None:
    made, _ = read(tmp_path, "the fox", types=[])
    assert '<span class="own" style="flex:3 0 0" data-t="document 0: 3 tokens">0: 3</span>' in made
    assert '<span class="padding" style="flex:253 0 0" data-t="padding: 253"></span>' in made
    without, _ = read(tmp_path, "the fox", types=[], sequences=0)
    assert "Packing" not in without
