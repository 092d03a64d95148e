"""Documents as a page, or in the terminal."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rich.console import Console

from bsmeta.tasks.causal_lm.explaining.page import page as html_page
from bsmeta.tasks.causal_lm.explaining.terminal import show, show_legend
from tests.data.helpers import page, small_tokenizer
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows, small_texts

TOKENIZER = small_tokenizer()


class Reader(HTMLParser):
    """Collects tags, and the tokens with what is said of each below the pointer."""

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
            text, said = self.tokens[-1]
            self.tokens[-1] = (text + data, said)


def read(folder: Path, text: str, **changes: Any) -> tuple[str, Reader]:
    document = {**page(3, 2), "text": text}
    changes = {"random_sample_metadata": False, "max_seq_len": 256, **changes}
    config = own_config(folder, [document], **changes)
    made = html_page(own_windows(config), config, small_texts())
    reader = Reader()
    reader.feed(made)
    reader.close()
    assert reader.open == []
    return made, reader


def test_the_tokens_and_what_is_said_of_them(tmp_path: Path) -> None:
    _, reader = read(tmp_path, "the fox\n🦊 & dogs", types=["title", "html"])
    assert "".join(text for text, _ in reader.tokens if text != "·") == (
        "html | Title: Page 3 ||| <b class:strong>the f</b>ox\n🦊 & dogs<eos>"
    )
    places = {text: place for place, (text, _) in reversed([*enumerate(reader.tokens)])}
    for text, told in {
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
        place = places[text]
        assert reader.tokens[place][1] == f"token {place}: id {number}, {told}"


def test_a_document_cannot_reach_into_the_page(tmp_path: Path) -> None:
    text = "<script>alert(1)</script><img src=https://example.org/x> \" onmouseover='x' \x1b[31m"
    made, reader = read(tmp_path, text, types=["url"])
    assert "<script" not in made
    assert reader.tags <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "span"),
        *("label", "input", "br", "i", "table", "tr", "th", "td"),
    }
    assert reader.attributes == {
        *("lang", "charset", "name", "content", "class", "type", "id", "checked", "data-t", "style")
    }
    assert "url(" not in made
    assert "@import" not in made
    assert "\x1b" not in made


def test_light_and_dark_and_every_type_its_color(tmp_path: Path) -> None:
    made, _ = read(tmp_path, "the fox")
    assert "prefers-color-scheme: dark" in made
    assert all(f".k{kind} {{ background: hsl(" in made for kind in (1, 2, 3))
    assert '<span class="k3">url</span>' in made


def test_packing_to_scale(tmp_path: Path) -> None:
    made, _ = read(tmp_path, "the fox", types=[])
    assert '<span class="own" style="flex:3 0 0" data-t="document 0: 3 tokens">0: 3</span>' in made
    assert '<span class="padding" style="flex:253 0 0" data-t="padding: 253"></span>' in made
    without, _ = read(tmp_path, "the fox", types=[], sequences=0)
    assert "Packing" not in without


def shown(folder: Path, *, color: bool = False, **changes: Any) -> list[str]:
    config = own_config(
        folder, [page(7, 4), page(8, 3)], random_sample_metadata=False, max_seq_len=256, **changes
    )
    file = io.StringIO()
    console = Console(
        file=file, width=100, force_terminal=color, color_system="standard" if color else None
    )
    for window in own_windows(config):
        show(window, console, config, small_texts())
    show_legend(console, config)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_document_and_its_packing(tmp_path: Path) -> None:
    assert shown(tmp_path, metadata_list=["title", "html"], metadata_dropout={"html": 1.0}) == [
        "a.jsonl.gz:0 " + "─" * 87,
        "metadata: title; it also has html",
        "19 characters of text, 24 tokens in 1 chunk, loss on 6",
        "",
        "chunk 1 of 1: 24 tokens (prefix 17, text 6, end of the document 1), loss on 6; "
        "sequence 1 of 1",
        "Title: Page 7 ||| 7 lazy dog 12 cafés<eos>",
        "",
        "packing " + "─" * 92,
        "documents 0 to 1 of a.jsonl.gz are one window: 2 chunks in 1 sequence of 256 tokens, "
        "18.4% full",
        "the first sequences, and those with documents from above (bold):",
        "",
        "sequence  to scale                          padding  document (chunk): tokens",
        "       1  ███▒▒▒··························      209  0: 24 · 1: 23",
        "",
        "─" * 100,
        "metadata: title, html",
        "italic: prefix, suffix; bold: metadata in the text; faint: no loss is taken",
    ]


def test_token_boundaries_on_demand(tmp_path: Path) -> None:
    lines = shown(tmp_path, metadata_list=["title"], types=[], tokens=True, sequences=0)
    assert "7│ lazy│ dog│ 12│ cafés│<eos>" in lines
    assert not any(line.startswith("packing") for line in lines)
    assert "│ begins a token; · ends inside a character" in lines


def test_colors(tmp_path: Path) -> None:
    end, prefix, tag, no_loss = "\x1b[0m", "\x1b[2;3;", "\x1b[1;", "\x1b[2m"
    html, url = "36m", "32m"
    assert (
        f"{prefix}{html}html | {end}{prefix}{url}url: https://example.org/7 |||{end}{no_loss} {end}"
        f"{tag}{html}<b class:strong>{end}7 laz{tag}{html}</b>{end}"
        f"y dog 12 cafés\x1b[1m<eos>{end}"
    ) in shown(tmp_path, color=True, types=["html", "url"])


def test_what_was_asked_for_and_is_lacking(tmp_path: Path) -> None:
    config_types = {"metadata_list": ["title", "author"], "types": ["title", "author"]}
    assert "metadata: title; no record of author" in shown(tmp_path, **config_types)
