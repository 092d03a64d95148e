"""Colors: every text can be read on every background, and every graphic can be seen."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from bsmeta.report import palette
from bsmeta.tasks.classification.report import MAX_OPACITY
from tests.conftest import REPOSITORY
from tests.report.contrast import LOWEST_CONTRAST, contrast

BACKGROUNDS = ("page", "raised", "chunk", "content", "mention", "highlight")
LOWEST_OF_GRAPHICS = 3.0
MANY_TYPES = 60
TEMPLATES = sorted((REPOSITORY / "bsmeta").rglob("*.html.j2"))
SCHEMES = {"light": palette.LIGHT, "dark": palette.DARK}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out_on_every_background(scheme: str) -> None:
    colors = SCHEMES[scheme]
    number = list(SCHEMES).index(scheme)
    backgrounds = {name: colors[name] for name in BACKGROUNDS}
    for name, pair in palette.list_type_colors(MANY_TYPES).items():
        backgrounds[name] = pair[number]
    pairs = {
        (text, name): contrast(colors[text], background)
        for text, (name, background) in itertools.product(("ink", "muted"), backgrounds.items())
    }
    assert len(pairs) == 2 * (6 + MANY_TYPES)
    assert {pair: value for pair, value in pairs.items() if value < LOWEST_CONTRAST} == {}
    # Links, and the inverted text of what is shown below the pointer.
    for background in ("page", "raised"):
        assert contrast(colors["good"], colors[background]) >= LOWEST_CONTRAST
    assert contrast(colors["page"], colors["ink"]) >= LOWEST_CONTRAST


@pytest.mark.parametrize("scheme", SCHEMES)
def test_graphics_stand_out_from_the_page(scheme: str) -> None:
    colors = SCHEMES[scheme]
    graphics = [name for name in colors if name.startswith("series-")]
    assert len(graphics) == len(palette.SERIES) == 10
    for name in (*graphics, "good", "bad"):
        assert contrast(colors[name], colors["page"]) >= LOWEST_OF_GRAPHICS, name


def test_types_have_different_colors() -> None:
    colors = palette.list_type_colors(MANY_TYPES)
    assert list(colors)[:2] == ["type-1", "type-2"]
    assert colors["type-1"] == ("#cfe3f4", "#1e364b")
    assert len({light for light, _ in colors.values()}) == MANY_TYPES
    assert len({dark for _, dark in colors.values()}) == MANY_TYPES


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_templates_use_only_colors_of_the_palette(template: Path) -> None:
    source = template.read_text()
    literal = re.findall(r"#[0-9a-fA-F]{3,8}\b(?!\w)|\b(?:rgba?|hsla?|hwb|lab|oklch)\(", source)
    # Raw pages in their frames are drawn as browsers draw them: on white.
    assert [color for color in literal if color != "#fff"] == []
    assert literal.count("#fff") == (template.name == "pages.html.j2")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_counts_stand_out_on_the_darkest_cell_of_a_confusion_matrix(scheme: str) -> None:
    colors = SCHEMES[scheme]
    cell, page = (bytes.fromhex(colors[name][1:]) for name in ("good", "page"))
    mixed = bytes(
        round(MAX_OPACITY * of_cell + (1 - MAX_OPACITY) * of_page)
        for of_cell, of_page in zip(cell, page, strict=True)
    )
    assert contrast(colors["ink"], f"#{mixed.hex()}") >= LOWEST_CONTRAST
