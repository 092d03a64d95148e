"""Every kind of page in a browser: nothing overflows, overlaps, or is too small or faint to read.

    BSMETA_SHOTS=/tmp/shots python -m pytest -m slow tests/report/test_pages.py

writes the screenshots into that folder, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import browser
from tests.report.browser import Browser
from tests.report.contrast import LOWEST_CONTRAST, contrast, luminance
from tests.report.made import KINDS

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
found.onGood = getComputedStyle(document.documentElement).getPropertyValue('--on-good').trim();
return found;
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = browser.missing()
    if reason is not None:
        pytest.skip(reason)
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def overlaps(first: list[float], second: list[float]) -> bool:
    """Whether two boxes cover each other by more than the leading of their lines."""
    wide = min(first[2], second[2]) - max(first[0], second[0])
    tall = min(first[3], second[3]) - max(first[1], second[1])
    return wide > 1.5 and tall > 4.5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_can_be_read(
    kind: str, opened: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bsmeta evaluate", "checkpoint=runs/a b"])
    page = KINDS[kind](tmp_path / kind)
    source = page.read_text()
    drawings = re.findall("<svg.*?</svg>", source, re.DOTALL)
    assert bool(drawings) == (kind != "spelling")
    assert not re.findall(r"(?:fill|stroke|color)[:=]\s*\"?#", "".join(drawings))
    raw = re.sub(r'srcdoc="[^"]*"', "", source)  # the annotated pages, which load nothing
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\((?!#)""", raw)
    if kind != "study":
        assert "<pre>bsmeta evaluate &#39;checkpoint=runs/a b&#39;</pre>" in source
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            opened.open(page, width=width, scheme=scheme)
            found = opened.run(MEASURE)
            where = f"{kind}, {width} px, {scheme}"
            shots = Path(os.environ.get("BSMETA_SHOTS", tmp_path))
            opened.shoot(shots / f"{kind}-{width}-{scheme}.png")
            assert found["page"] == width, where
            assert found["cells"] == [], where
            assert found["outside"] == [], where
            texts = found["texts"]
            assert [one for one in texts if one["pixels"] < SMALLEST_PX] == [], where
            assert [one for one in texts if not one["inside"]] == [], where
            background, on_good = found["background"], found["onGood"]
            faint = [
                one for one in texts
                if contrast(one["fill"], background) < LOWEST_CONTRAST
                and luminance(one["fill"]) != luminance(on_good)
            ]  # fmt: skip
            assert faint == [], where
            level = [one for one in texts if not one["turned"]]
            pairs = [
                (first["name"], first["text"], second["text"])
                for number, first in enumerate(level)
                for second in level[number + 1 :]
                if first["svg"] == second["svg"] and overlaps(first["box"], second["box"])
            ]
            assert pairs == [], where
