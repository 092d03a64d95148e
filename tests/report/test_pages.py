"""Every kind of page in a browser: nothing overflows, overlaps, or is too small or faint to read.

    BSMETA_SHOTS=/tmp/shots python -m pytest -m slow tests/report/test_pages.py

writes the screenshots into that folder, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bsmeta.tasks.causal_lm.explaining.page import render_page
from tests.data.helpers import page
from tests.report import browser
from tests.report.browser import Browser
from tests.report.contrast import LOWEST_CONTRAST, contrast
from tests.report.made import KINDS
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows, small_texts

WIDTHS = (400, 1000, 1600)
SMALLEST_PX = 11.99

MEASURE = """
const found = {page: document.documentElement.scrollWidth, cells: [], texts: [], outside: []};
for (const cell of document.querySelectorAll('th, td, dd, dt, h1, h2, h3, p, li'))
  if (cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).display !== 'inline')
    found.cells.push(cell.textContent.slice(0, 60));
for (const box of document.querySelectorAll('.box, pre, figure, dl, iframe')) {
  const place = box.getBoundingClientRect();
  if (place.left < -0.5 || place.right > innerWidth + 0.5) found.outside.push(box.className);
}
document.querySelectorAll('svg').forEach((svg, number) => {
  const frame = svg.getBoundingClientRect();
  for (const text of svg.querySelectorAll('text')) {
    if (!text.textContent.trim()) continue;
    const box = text.getBoundingClientRect(), matrix = text.getScreenCTM();
    const style = getComputedStyle(text);
    found.texts.push({
      svg: number, name: svg.getAttribute('aria-label'), text: text.textContent,
      pixels: parseFloat(style.fontSize) * Math.hypot(matrix.a, matrix.b),
      turned: Math.abs(matrix.b) > 0.01, fill: style.fill,
      box: [box.left, box.top, box.right, box.bottom],
      inside: box.left >= frame.left - 1 && box.right <= frame.right + 1 &&
              box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1,
    });
  }
});
found.background = getComputedStyle(document.body).backgroundColor;
return found;
"""
COLORS = """
const pairs = new Map();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const isRead = node.data.trim() && !element.closest('svg, script, style');
  if (!isRead || !element.getClientRects().length) continue;
  let layer = element;
  while (getComputedStyle(layer).backgroundColor === 'rgba(0, 0, 0, 0)' && layer.parentElement)
    layer = layer.parentElement;
  const colors = [getComputedStyle(element).color, getComputedStyle(layer).backgroundColor];
  pairs.set(colors.join(' on '), [...colors, node.data.trim().slice(0, 40)]);
}
return [...pairs.values()];
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true; })"


def list_faint_texts(browser_tab: Browser) -> list[tuple[str, str, str]]:
    """Returns colors, backgrounds and samples of texts with too little contrast."""
    pairs = browser_tab.run(COLORS)
    assert pairs
    assert [pair for pair in pairs if not pair[0].startswith("rgb(")] == []
    assert [pair for pair in pairs if not pair[1].startswith("rgb(")] == []
    return [tuple(pair) for pair in pairs if contrast(pair[0], pair[1]) < LOWEST_CONTRAST]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = browser.missing()
    if reason is not None:
        pytest.skip(reason)
    browser_of_module = Browser(tmp_path_factory.mktemp("profile"))
    yield browser_of_module
    browser_of_module.close()


def overlaps(first: list[float], second: list[float]) -> bool:
    """Whether two boxes cover each other by more than the leading of their lines."""
    wide = min(first[2], second[2]) - max(first[0], second[0])
    tall = min(first[3], second[3]) - max(first[1], second[1])
    return wide > 1.5 and tall > 4.5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_legible(
    kind: str, opened: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bsmeta evaluate", "checkpoint=runs/a b"])
    report = KINDS[kind](tmp_path / kind)
    source = report.read_text()
    drawings = re.findall("<svg.*?</svg>", source, re.DOTALL)
    assert bool(drawings) == (kind != "spelling")
    assert not re.findall(r"(?:fill|stroke|color)[:=]\s*\"?#", "".join(drawings))
    raw = re.sub(r'srcdoc="[^"]*"', "", source)  # the annotated pages, which load nothing
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\((?!#)""", raw)
    if kind != "study":
        assert "<pre>bsmeta evaluate &#39;checkpoint=runs/a b&#39;</pre>" in source
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            opened.open(report, width=width, scheme=scheme)
            opened.run(OPEN_ALL)
            measured = opened.run(MEASURE)
            where = f"{kind}, {width} px, {scheme}"
            shots = Path(os.environ.get("BSMETA_SHOTS", tmp_path))
            opened.shoot(shots / f"{kind}-{width}-{scheme}.png")
            assert measured["page"] == width, where
            assert measured["cells"] == [], where
            assert measured["outside"] == [], where
            texts = measured["texts"]
            assert [text for text in texts if text["pixels"] < SMALLEST_PX] == [], where
            assert [text for text in texts if not text["inside"]] == [], where
            faint = [
                text
                for text in texts
                if contrast(text["fill"], measured["background"]) < LOWEST_CONTRAST
            ]
            assert faint == [], where
            assert list_faint_texts(opened) == [], where
            level = [text for text in texts if not text["turned"]]
            pairs = [
                (first["name"], first["text"], second["text"])
                for number, first in enumerate(level)
                for second in level[number + 1 :]
                if first["svg"] == second["svg"] and overlaps(first["box"], second["box"])
            ]
            assert pairs == [], where


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_the_explain_view(scheme: str, opened: Browser, tmp_path: Path) -> None:
    """With all types of metadata in the prefix and in the text, and the packing."""
    document = {**page(3, 2), "text": "the fox\nand the dogs"}
    config = own_config(tmp_path, [document], random_sample_metadata=False, max_seq_len=256)
    written = tmp_path / "explained.html"
    written.write_text(render_page(own_windows(config), config, small_texts()))
    opened.open(written, width=1000, scheme=scheme)
    assert opened.run("return document.querySelectorAll('.chunk i.no[class*=k]').length") > 0
    assert list_faint_texts(opened) == []
    assert opened.run(MEASURE)["page"] == 1000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_among_documents(
    scheme: str, opened: Browser, report_page: Callable[[str, str], Path]
) -> None:
    """The table with its filters, a row below the pointer, and the tokens of documents."""
    opened.open(report_page("evaluation", "plain"), width=1000, scheme=scheme)
    opened.run(OPEN_ALL)
    opened.hover_element("[data-filterable] tbody tr:nth-child(2) td:nth-child(4)")
    assert opened.run("return document.querySelector('.exact').hidden") is False
    assert opened.run("return document.querySelectorAll('.shown .chunk i.no').length") > 0
    assert list_faint_texts(opened) == []
