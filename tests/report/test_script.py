"""The script of reports, in a browser: it only adds to a page that is complete without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser

from bsmeta.report import figures
from bsmeta.report.figures import SeriesStyle
from bsmeta.report.inference import Estimate, Interval
from bsmeta.report.page import COUNT, Column, Page, Section, Table, write_report
from tests.conftest import REPOSITORY
from tests.report import browser
from tests.report.browser import Browser
from tests.report.hostile import FIGURES, MARKUP
from tests.report.made import KINDS

SIGNED = "{:+.1f}".format
SCRIPT = REPOSITORY / "bsmeta" / "report" / "report.js"
PARSES_HTML = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(",
    "Function(", "createContextualFragment", "setHTML", "srcdoc", "fetch(", "XMLHttpRequest",
    "import(", "WebSocket",
)  # fmt: skip
HOSTILE = [*MARKUP, *FIGURES, "</script><script>window.acted = 1</script>", "</table><h1>x</h1>"]
FIRST_CELLS = "return [...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
STATE = """
return {
  elements: [...new Set([...document.querySelectorAll('*')].map(e => e.localName))].sort(),
  handlers: [...document.querySelectorAll('*')].flatMap(
    e => [...e.attributes].map(a => a.name).filter(name => name.startsWith('on'))),
  acted: window.acted === undefined ? null : window.acted,
  scripts: document.scripts.length,
};
"""


@pytest.fixture(scope="module")
def browser_tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = browser.missing()
    if reason is not None:
        pytest.skip(reason)
    browser_of_module = Browser(tmp_path_factory.mktemp("profile"))
    yield browser_of_module
    browser_of_module.close()


@figures.style_figure
def make_plot() -> Any:
    figure, (axes,) = figures.create_figure(3.0)
    looks = {"first <b>": SeriesStyle("#0072b2"), "second": SeriesStyle("#d55e00", "s")}
    for shift, (name, look) in enumerate(looks.items()):
        with figures.draw_series(axes, name):
            figures.draw_band(
                axes,
                [0, 1],
                [
                    Estimate(0.123456 + shift, Interval(0.1 + shift, 0.2 + shift)),
                    Estimate(0.25 + shift, Interval(0.2 + shift, 0.3 + shift)),
                ],
                look,
            )
    figures.add_legend_below(figure, looks.items())
    return figure


def make_gains() -> Table:
    return Table(
        "Gains",
        "",
        [Column("slice"), Column("texts", COUNT), Column("gain", SIGNED)],
        [
            ["b 10", 1200, Estimate(4.61803, Interval(3.9, 5.3))],
            ["b 9", 7, -1.52],
            ["a", 30, None],
            ["c", 4, Interval(0.25, 2.0)],
        ],
    )


def write_tables(folder: Path, *tables: Table, plots: Any = None) -> Path:
    """Writes a report with the given tables."""
    page = Page("Title", ["Answer."], {"fact": "1"}, [Section(tables=tables, plots=plots or {})])
    write_report(page, {}, folder)
    return folder / "report.html"


def test_the_script_never_parses_text_as_html_or_connects() -> None:
    source = SCRIPT.read_text()
    assert [name for name in PARSES_HTML if name in source] == []
    assert "</script" not in source.lower()
    assert "<!--" not in source


@pytest.mark.parametrize("kind", KINDS)
def test_pages_run_a_single_script_and_load_nothing(kind: str, report_page: Any) -> None:
    """The policy has the hash of the script; browsers run no other."""
    source = report_page(kind, "plain").read_text(encoding="utf-8")
    tree = LexborHTMLParser(source)
    policy = (tree.css("meta[http-equiv]")[0].attributes["content"] or "").split("; ")
    assert policy[0] == "default-src 'none'"
    assert policy[1].startswith("script-src 'sha256-")
    assert policy[2:] == [
        "style-src 'unsafe-inline'", "img-src data:", "base-uri 'none'", "form-action 'none'"
    ]  # fmt: skip
    (script,) = tree.css("script")
    assert script.text() == SCRIPT.read_text()
    assert not [name for node in tree.css("*") for name in node.attributes if name[:2] == "on"]


def test_columns_are_sorted_by_their_exact_numbers(browser_tab: Browser, tmp_path: Path) -> None:
    browser_tab.open(write_tables(tmp_path, make_gains()), width=1000)
    assert browser_tab.run(FIRST_CELLS) == ["b 10", "b 9", "a", "c"]

    for column, orders in {
        1: [["a", "b 9", "b 10", "c"], ["c", "b 10", "b 9", "a"]],
        2: [["c", "b 9", "a", "b 10"], ["b 10", "a", "b 9", "c"]],
        3: [["b 9", "c", "b 10", "a"], ["b 10", "c", "b 9", "a"]],  # "a" has no number
    }.items():
        head = f"thead th:nth-child({column})"
        for order, sort in zip(orders, ("ascending", "descending"), strict=True):
            browser_tab.click_element(f"{head} button")
            assert browser_tab.run(FIRST_CELLS) == order
            heads = browser_tab.run(
                "return [...document.querySelectorAll('thead th')].map(h => h.ariaSort)"
            )
            assert heads == [sort if number == column else None for number in (1, 2, 3)]
        browser_tab.click_element(f"{head} button")
        assert browser_tab.run(FIRST_CELLS) == ["b 10", "b 9", "a", "c"]
        assert browser_tab.run("return document.querySelector('[aria-sort]')") is None


def test_headers_can_be_operated_by_keys(browser_tab: Browser, tmp_path: Path) -> None:
    browser_tab.open(write_tables(tmp_path, make_gains()), width=1000)
    browser_tab.press("Tab")  # the table, which scrolls
    browser_tab.press("Tab")
    assert browser_tab.run("return document.activeElement.textContent") == "slice"
    browser_tab.press("Enter")
    assert browser_tab.run(FIRST_CELLS) == ["a", "b 9", "b 10", "c"]
    browser_tab.press("Tab")
    browser_tab.press("Enter")
    assert browser_tab.run(FIRST_CELLS) == ["c", "b 9", "a", "b 10"]


def test_groups_are_named_in_each_row_of_a_sorted_table(
    browser_tab: Browser, tmp_path: Path
) -> None:
    columns = [Column("set"), Column("system"), Column("score", SIGNED)]
    rows: list[Any] = [["one", "x", 1], ["", "y", 4], ["two", "x", 3], ["", "y", 2]]
    page = write_tables(tmp_path, Table("Scores", "", columns, rows, is_grouped=True))
    browser_tab.open(page, width=1000)
    browser_tab.click_element("thead th:nth-child(3) button")
    assert browser_tab.run(FIRST_CELLS) == ["one", "two", "two", "one"]
    browser_tab.click_element("thead th:nth-child(3) button")
    assert browser_tab.run(FIRST_CELLS) == ["one", "two", "two", "one"]
    browser_tab.click_element("thead th:nth-child(3) button")
    assert browser_tab.run(FIRST_CELLS) == ["one", "", "two", ""]


def test_cells_show_their_exact_values(browser_tab: Browser, tmp_path: Path) -> None:
    page = write_tables(tmp_path, make_gains())
    cells = LexborHTMLParser(page.read_text()).css("td")
    assert [cell.attributes.get("title") for cell in cells] == [
        None, "4.61803 (3.9 to 5.3)", None, "-1.52", None, None, None, "0.25 to 2.0"
    ]  # fmt: skip
    browser_tab.open(page, width=400)
    tip = "return [document.querySelector('.exact').hidden, "
    tip += "document.querySelector('.exact').textContent]"
    assert browser_tab.run(tip) == [True, ""]
    browser_tab.hover_element("tbody tr:nth-child(1) td:nth-child(3)")
    assert browser_tab.run(tip) == [False, "4.61803 (3.9 to 5.3)"]
    box = browser_tab.run(
        "const b = document.querySelector('.exact').getBoundingClientRect();"
        "return [b.left, b.right, b.top]"
    )
    assert box[0] >= 0
    assert box[1] <= 400
    assert box[2] >= 0
    browser_tab.press("Escape")
    assert browser_tab.run(tip)[0] is True
    browser_tab.hover_element("tbody tr:nth-child(3) td:nth-child(3)")
    assert browser_tab.run(tip)[0] is True
    assert browser_tab.run("return document.querySelectorAll('[title]').length") == 0


@pytest.mark.parametrize("key", ["click", "Enter", " "])
def test_series_are_hidden_and_shown_by_the_legend(
    key: str, browser_tab: Browser, tmp_path: Path
) -> None:
    browser_tab.open(write_tables(tmp_path, plots={"plot": make_plot}), width=1000)
    shown = (
        "return [...document.querySelectorAll('[data-series]')]"
        ".map(e => getComputedStyle(e).display !== 'none')"
    )
    pressed = (
        "return [...document.querySelectorAll('svg [role=button]')]"
        ".map(e => [e.ariaLabel, e.ariaPressed])"
    )
    assert browser_tab.run(shown) == [True] * 4  # a line and a band each
    assert browser_tab.run(pressed) == [["show first <b>", "true"], ["show second", "true"]]

    def toggle() -> None:
        if key == "click":
            browser_tab.click_element("svg [role=button]")
        else:
            browser_tab.run("document.querySelector('svg [role=button]').focus()")
            browser_tab.press(key)

    toggle()
    assert sorted(browser_tab.run(shown)) == [False, False, True, True]
    assert browser_tab.run(pressed) == [["show first <b>", "false"], ["show second", "true"]]
    toggle()
    assert browser_tab.run(shown) == [True] * 4


def test_points_of_figures_show_their_exact_values(browser_tab: Browser, tmp_path: Path) -> None:
    page = write_tables(tmp_path, plots={"plot": make_plot})
    titles = [node.text() for node in LexborHTMLParser(page.read_text()).css("svg use title")]
    assert titles == [
        "first <b>: 0.123456 (0.1 to 0.2)",
        "first <b>: 0.25 (0.2 to 0.3)",
        "second: 1.123456 (1.1 to 1.2)",
        "second: 1.25 (1.2 to 1.3)",
    ]
    browser_tab.open(page, width=1000)
    browser_tab.hover_element("use[data-exact]")
    assert (
        browser_tab.run("return document.querySelector('.exact').textContent")
        == "first <b>: 0.123456 (0.1 to 0.2)"
    )
    assert browser_tab.run("return document.querySelectorAll('svg title').length") == 0


def test_the_script_never_turns_text_into_elements(browser_tab: Browser, tmp_path: Path) -> None:
    table = Table(
        HOSTILE[0],
        "",
        [Column("name"), Column(HOSTILE[1]), Column("gain", SIGNED)],
        [[text, text, float(number)] for number, text in enumerate(HOSTILE)],
    )
    browser_tab.open(write_tables(tmp_path, table), width=1000)
    before = browser_tab.run(STATE)
    assert before["acted"] is None
    assert before["handlers"] == []
    assert before["scripts"] == 1
    for selector in ("thead th:nth-child(2) button", "thead th:nth-child(1) button"):
        browser_tab.click_element(selector)
        browser_tab.hover_element("tbody tr:nth-child(2) td:nth-child(3)")
    assert browser_tab.run(STATE) == before
    names = browser_tab.run(FIRST_CELLS)
    assert {"<img src=x onerror=alert(1)>", "</table><h1>x</h1>"} <= {*names}
    assert len(names) == len(HOSTILE)


def test_pages_are_complete_without_the_script(browser_tab: Browser, tmp_path: Path) -> None:
    page = write_tables(tmp_path, make_gains(), plots={"plot": make_plot})
    browser_tab.forbid_scripts(forbidden=True)
    try:
        browser_tab.open(page, width=1000)
        assert browser_tab.run("return document.querySelectorAll('button, .exact').length") == 0
        text = browser_tab.run("return document.body.innerText")
    finally:
        browser_tab.forbid_scripts(forbidden=False)
    assert re.search(r"b 10\s+1,200\s+4\.6 \(\+?3\.9 to \+?5\.3\)", text.replace("+", ""))
    assert "first <b>" in text


SHOWN_ROWS = """
const rows = [...document.querySelectorAll('[data-filterable] tbody tr')];
return rows.filter(row => getComputedStyle(row).display !== 'none').length;
"""


def test_documents_are_filtered_by_words_and_menus(
    browser_tab: Browser, report_page: Callable[[str, str], Path]
) -> None:
    browser_tab.open(report_page("evaluation", "plain"), width=1000)
    browser_tab.run(
        "document.querySelector('table[data-filterable]').closest('details').open = true"
    )
    total = browser_tab.run("return document.querySelectorAll('[data-filterable] tbody tr').length")
    assert browser_tab.run(SHOWN_ROWS) == total
    counted = "return document.querySelector('.filters output').textContent"
    assert browser_tab.run(counted) == f"{total:,} of {total:,} rows"

    browser_tab.click_element(".filters input")
    browser_tab.write("Held-out.jsonl.gz:7 SITE1")
    text = "return document.querySelector('[data-filterable]').innerText"
    rows = browser_tab.run(SHOWN_ROWS)
    assert 0 < rows < total
    assert browser_tab.run(counted) == f"{rows} of {total:,} rows"
    assert set(re.findall(r"held-out\S+", browser_tab.run(text))) == {"held-out.jsonl.gz:7"}

    labels = browser_tab.run(
        "return [...document.querySelectorAll('.filters label')].map(l => l.firstChild.textContent)"
    )
    assert labels == ["rows with the words", "host", "comparison"]
    browser_tab.run(
        "const menu = [...document.querySelectorAll('.filters select')].at(-1);"
        "menu.value = [...menu.options].find(option => option.textContent === 'url').value;"
        "menu.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    assert browser_tab.run(SHOWN_ROWS) == 1
    browser_tab.click_element("[data-filterable] thead th:nth-child(2) button")
    assert browser_tab.run(SHOWN_ROWS) == 1


@pytest.mark.long
@pytest.mark.parametrize("marks", ["figures 0", "markup 0", "markup 1", "markup 2", "markup 3"])
def test_names_among_the_documents_stay_text(
    marks: str, browser_tab: Browser, report_page: Callable[[str, str], Path]
) -> None:
    browser_tab.open(report_page("evaluation", "plain"), width=1000)
    plain = browser_tab.run(STATE)
    browser_tab.open(report_page("evaluation", marks), width=1000)
    browser_tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser_tab.click_element(".filters input")
    browser_tab.write("<script")
    browser_tab.click_element("[data-filterable] thead th button")
    state = browser_tab.run(STATE)
    assert {*state["elements"]} <= {*plain["elements"]}
    assert (state["handlers"], state["acted"], state["scripts"]) == ([], None, 1)


def test_long_tables_are_folded_and_have_no_filters_without_the_script(
    browser_tab: Browser, report_page: Callable[[str, str], Path]
) -> None:
    browser_tab.forbid_scripts(forbidden=True)
    try:
        browser_tab.open(report_page("evaluation", "plain"), width=1000)
        assert browser_tab.run(SHOWN_ROWS) > 1000
        assert browser_tab.run("return document.querySelectorAll('.filters').length") == 0
        summary = "return document.querySelector('[data-filterable]').closest('details').innerText"
        assert re.match(r"[\d,]+ rows", browser_tab.run(summary))
    finally:
        browser_tab.forbid_scripts(forbidden=False)
