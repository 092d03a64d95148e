"""Markdown: what is data stays text, in the functions and in every document that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import markdown as python_markdown
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from selectolax.lexbor import LexborHTMLParser

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.schema import ModelCardConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.secrets import redact
from bsmeta.report import markdown
from bsmeta.tasks.causal_lm.model_card import render_model_card
from tests.conftest import REPOSITORY
from tests.report.conftest import cases
from tests.report.hostile import FIGURES, MARKUP
from tests.report.made import KINDS
from tests.terminal import ACTING

GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.lists(st.sampled_from((*MARKUP, " ", "a", "\n"))).map("".join),
)
PLAIN_ELEMENTS = {
    "paragraph_open", "paragraph_close", "inline", "text", "text_special",
    "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close",
}  # fmt: skip
EXPECTED = PLAIN_ELEMENTS | {
    "heading_open", "heading_close", "fence", "code_inline", "image", "strong_open", "strong_close",
    "table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close",
    "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close",
}  # fmt: skip
"""What reports and model cards consist of: no HTML, no links, no emphasis."""
TAGS = {
    "html", "head", "body", "h1", "h2", "h3", "p", "ul", "li", "pre", "code", "img", "strong",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


def list_tokens(source: str) -> Iterator[Token]:
    """Returns all tokens of a document, including tokens inside lines."""
    for token in GITHUB.parse(source):
        yield token
        yield from token.children or ()


def get_text(source: str) -> str:
    """Returns the rendered text of a document."""
    return "".join(token.content for token in list_tokens(source) if token.children is None)


def list_elements(source: str) -> set[str]:
    """Returns the elements of a document."""
    return {token.type for token in list_tokens(source)}


def list_blocks(source: str) -> list[str]:
    """Returns the elements of a document in order, without elements inside lines."""
    return [token.type for token in GITHUB.parse(source)]


def check(text: str) -> None:
    """Writes a text in each position, and reads the document as GitHub's Markdown."""
    shown = markdown.join_lines(text)
    assert list_elements(markdown.escape_paragraph(text)) <= PLAIN_ELEMENTS
    assert get_text(markdown.escape_paragraph(text)) == shown
    assert get_text(f"x {markdown.escape_inline(text)} y") == (f"x {shown} y" if shown else "x  y")
    assert get_text(f"x {markdown.format_code(text)} y") == (f"x {shown} y" if shown else "x  y")
    item = f"- {markdown.escape_paragraph(text)}: {markdown.escape_inline(text)}"
    assert list_elements(item) <= PLAIN_ELEMENTS
    assert list_blocks(item) == list_blocks("- a: b")
    heading = f"{markdown.format_heading(f'{text}.', 2)}\n\nx"
    assert get_text(heading) == f"{markdown.join_lines(f'{text}.')}x"

    fence = GITHUB.parse(f"x\n\n{markdown.format_code_block(text, 'sh')}\n\nx")[3]
    assert (fence.type, fence.info) == ("fence", "sh")
    assert list_blocks(f"{markdown.format_code_block(text)}\n\nx") == ["fence", *list_blocks("x")]

    rows = [[markdown.escape_inline(text), markdown.format_code_cell(text)], ["a", "b"]]
    table = markdown.format_table(["c", markdown.escape_inline(text)], rows, [False, True])
    cells = [token for token in GITHUB.parse(table) if token.type == "inline"]
    read = ["".join(part.content for part in cell.children or ()) for cell in cells]
    assert read == ["c", shown, shown, shown, "a", "b"]


@pytest.mark.parametrize("text", [*MARKUP, *FIGURES])
def test_names_are_text_in_every_position(text: str) -> None:
    check(text)


@given(TEXTS)
def test_any_text_is_text_in_every_position(text: str) -> None:
    check(text)


@given(TEXTS)
def test_another_renderer_makes_no_elements_of_names(text: str) -> None:
    """Python-Markdown, with the extensions that documentation sites use."""
    paragraph = markdown.escape_paragraph(text)
    source = f"{paragraph}\n\n- {paragraph}: {markdown.escape_inline(text)}"
    tree = LexborHTMLParser(python_markdown.markdown(source, extensions=["extra", "sane_lists"]))
    assert {node.tag for node in tree.css("*")} <= TAGS
    assert {name for node in tree.css("*") for name in node.attributes} == set()


def test_harmless_characters_are_not_escaped() -> None:
    text = "+4.6 (-1.0 to 2.0), [url] of held_out.jsonl: 5.3% = #3, don't; a/b@main C:x"
    assert markdown.escape_inline(text) == text.replace("b@main", "b\\@main")
    assert markdown.escape_paragraph("+4.6 of #3") == "+4.6 of #3"


def test_sentences_may_have_markup() -> None:
    sentence = "# **Supported**: `a*b` of <b> and *c*"
    assert markdown.escape_sentence(sentence) == (
        "\\# **Supported**: `a*b` of &lt;b&gt; and \\*c\\*"
    )
    assert list_elements(markdown.escape_sentence(sentence)) - {"text_special"} == {
        "paragraph_open", "paragraph_close", "inline", "text", "strong_open", "strong_close",
        "code_inline",
    }  # fmt: skip


@given(TEXTS)
def test_values_in_a_sentence_add_no_markup(text: str) -> None:
    assert list_elements(markdown.escape_sentence(text)) <= PLAIN_ELEMENTS | {
        "strong_open", "strong_close", "code_inline"
    }  # fmt: skip


# --- every document that is written -------------------------------------------------------------

ALL_MARKS = ("markup 0", "markup 1", "markup 2", "markup 3", "figures 0")
MARKDOWN_KINDS = [kind for kind in KINDS if kind != "annotation"]
DOCUMENTS = {"study": "report.md"}
"""The name of the Markdown of a kind of report, if it is not evaluation.md."""


def check_document(source: str, plain: str) -> None:
    """Compares the elements of a document with those of one with harmless names."""
    assert list_elements(source) <= EXPECTED
    assert list_blocks(source) == list_blocks(plain)
    images = [token.attrs["src"] for token in list_tokens(source) if token.type == "image"]
    assert images == [token.attrs["src"] for token in list_tokens(plain) if token.type == "image"]
    assert not ACTING.search(source)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "marks"), cases(MARKDOWN_KINDS, *ALL_MARKS))
def test_names_are_text_in_reports(
    kind: str, marks: str, report_page: Callable[[str, str], Path]
) -> None:
    name = DOCUMENTS.get(kind, "evaluation.md")
    source, plain = (
        report_page(kind, mark).with_name(name).read_text(encoding="utf-8")
        for mark in (marks, "plain")
    )
    check_document(source, plain)


@pytest.mark.parametrize(("kind", "marks"), cases(KINDS, *ALL_MARKS))
def test_names_are_text_in_pages(
    kind: str, marks: str, report_page: Callable[[str, str], Path]
) -> None:
    """Names add no elements to the HTML either."""
    trees = [
        LexborHTMLParser(report_page(kind, mark).read_text(encoding="utf-8"))
        for mark in (marks, "plain")
    ]
    tags, plain = ({node.tag for node in tree.css("*")} for tree in trees)
    assert tags <= plain | {"strong", "code", "iframe", "pre", "section", "br", "input", "label"}
    assert not trees[0].css("img, a[href^='javascript:']")
    scripts = [node.text() for node in trees[0].css("script")]
    assert scripts == [node.text() for node in trees[1].css("script")]


@cache
def demo_config() -> CausalLMConfig:
    """Composes the demo's configuration; cached, since composing takes longer than a card."""
    return compose_command_line(CausalLMConfig, "demo", [])


@cache
def card(mark: str) -> str:
    """Returns a model card whose names all have a mark."""
    config = demo_config()
    data = replace(
        config.data_config,
        train_file=[f"a{mark}.jsonl", f"hf://datasets/owner{mark}/pages{mark}/a.jsonl"],
        validation_file=f"b{mark}.jsonl",
        metadata_config=MetadataConfig(
            metadata_list=["title", f"type{mark}"], metadata_sep=f" |{mark}| ",
            metadata_templates={"title": f"{mark}{{value}}"} if "{" not in mark else {},
        ),
    )  # fmt: skip
    changed = replace(
        config,
        data_config=data,
        model_config_file=None,
        model_name=f"model{mark}",
        push_to_hub=f"owner/name{mark}",
        model_card=ModelCardConfig(license=[f"mit{mark}"], language=[f"en{mark}"]),
    )
    return render_model_card(
        changed, Path("none.jsonl"), ["train.py", f"seed={mark}", f"out_dir=a{mark}"]
    )


FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
"""The front matter as the Hub reads it."""


CARDS = [
    mark
    for mark in [*MARKUP, *FIGURES, "\n---\nlicense: other\n", "x: y\nbase_model: z", "\n...\n"]
    if len(mark) < 100
]
CARDS_IN_UTF_8 = [mark for mark in CARDS if not re.search("[\ud800-\udfff]", mark)]


@pytest.mark.parametrize("mark", sorted({*CARDS} - {*CARDS_IN_UTF_8}))
def test_a_model_card_needs_names_in_utf_8(mark: str) -> None:
    with pytest.raises(ConfigurationError, match="not in UTF-8"):
        card(mark)


@pytest.mark.parametrize("mark", CARDS_IN_UTF_8)
def test_names_are_text_in_model_cards(mark: str) -> None:
    source, plain = card(mark), card("")
    front, other = (FRONT.match(text) for text in (source, plain))
    assert front is not None
    assert other is not None
    values = yaml.safe_load(front[1])
    assert values.keys() == yaml.safe_load(other[1]).keys()
    assert values["base_model"] == redact(f"model{mark}")
    assert values["license"] == [redact(f"mit{mark}")]
    if not {"/", "@"} & {*mark}:
        assert values["datasets"] == [f"owner{mark}/pages{mark}"]
    check_document(source[front.end() :], plain[other.end() :])


def write_sweep(folder: Path, mark: str) -> str:
    """Writes the report of a sweep whose keys and values have a mark; returns its Markdown."""
    from results import write_report

    runs = {folder / str(n): {f"key{mark}": f"{n}{mark}", f"b{mark}": mark} for n in range(2)}
    for run in runs:
        run.mkdir(parents=True)
        (run / "status.json").write_text('{"state": "done"}')
        event = {"event": "step", "step": 1, "loss": 2.5}
        (run / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    write_report(folder, runs)
    assert (folder / "sweep.png").stat().st_size > 1000
    return (folder / "sweep.md").read_text()


@pytest.fixture(scope="module")
def plain_sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Markdown of a sweep with harmless names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "experiments" / "hpsearch"))
        yield write_sweep(tmp_path_factory.mktemp("plain") / "sweep", "")


@pytest.mark.parametrize("mark", MARKUP)
def test_names_are_text_in_reports_of_sweeps(mark: str, plain_sweep: str, tmp_path: Path) -> None:
    check_document(write_sweep(tmp_path / "sweep", mark), plain_sweep)


def test_only_one_module_writes_markdown() -> None:
    """Every module that writes a Markdown file builds on the functions of `report/markdown.py`."""
    writers = {
        path.name
        for path in [
            *(REPOSITORY / "bsmeta").rglob("*.py"),
            *(REPOSITORY / "experiments").rglob("*.py"),
        ]
        if re.search(r"""[\w-]+\.md["']""", path.read_text()) and "write" in path.read_text()
    }
    # The last two write none of data: the page about the keys, and the weights beside a card.
    assert writers == {
        "page.py", "report.py", "report_analysis.py", "results.py", "command.py",
        "model_card.py", "when_metadata.py", "reference.py",
        "manifest.py",
    }  # fmt: skip
