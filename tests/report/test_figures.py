"""Figures: every name is text, whatever it contains; colors, looks and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

from bsmeta.report import figures
from tests.report.conftest import cases
from tests.report.made import KINDS
from tests.terminal import ACTING

WITH_FIGURES = ["evaluation", "study", "classification", "disambiguation", "annotation"]
LONGEST = 200  # characters of a title around a name


def list_texts(page: Path) -> list[str]:
    """Returns the texts in the figures of a page."""
    tree = LexborHTMLParser(page.read_text(encoding="utf-8"))
    return [node.text() for node in tree.css("svg text")]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "marks"), cases(WITH_FIGURES, "figures 0", "figures 1"))
def test_names_are_drawn_literally(
    kind: str, marks: str, report_page: Callable[[str, str], Path]
) -> None:
    page = report_page(kind, marks)
    source = page.read_text(encoding="utf-8")
    assert "could not be drawn" not in source
    assert source.count("<figure") == report_page(kind, "plain").read_text().count("<figure") > 0
    texts = list_texts(page)
    assert max(map(len, texts)) < LONGEST
    assert not [text for text in texts if ACTING.search(text.replace("\n", ""))]
    assert "<script>alert" not in source


def test_dollars_are_drawn_as_dollars(tmp_path: Path) -> None:
    page = KINDS["classification"](tmp_path / "page", ("$10 to $20", '#0072b2 id="b"'))
    texts = list_texts(page)
    assert "left$10 to $20" in texts
    assert 'center#0072b2 id="b"' in texts


def test_texts_by_matplotlib_are_not_parsed_as_formulas(
    report_page: Callable[[str, str], Path],
) -> None:
    texts = list_texts(report_page("study", "plain"))
    assert {"URL, with cooldown", "1M"} <= {*texts}
    assert not [text for text in texts if "$" in text or "\\" in text]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31m\u202e", "\\x1b[31m\\u202e"),
        ("x" * 60, "x" * 60),
        ("x" * 61, f"{'x' * 59}…"),
        ("\x00" * 100, f"{chr(92)}x00" * 14 + f"{chr(92)}x0…"),
    ],
)
def test_names_are_short_and_printable(name: str, shown: str) -> None:
    assert figures.shorten_name(name) == shown


def test_a_long_name_is_wrapped_into_few_lines() -> None:
    assert figures.shorten_lines("a\nb") == "a\nb"
    assert figures.shorten_lines("\n" * 500).count("\n") == 4


def test_overlapping_names_of_lines_are_moved_apart() -> None:
    assert figures.spread_values([1, 5, 9], 1, 0, 10) == [1, 5, 9]
    assert figures.spread_values([5, 5, 5], 1, 0, 10) == [4, 5, 6]
    assert figures.spread_values([9.8, 9.9], 1, 0, 10) == [9, 10]
    assert figures.spread_values([0, 0.5, 0.6, 4], 1, 0, 10) == [0, 1, 2, 4]


def test_amounts_on_axes_are_short() -> None:
    amounts = (999_999.7, 12_500, 480, 3.2e15, 2_000_000_000)
    assert [figures.shorten_number(amount) for amount in amounts] == [
        "1M", "12.5k", "480", "3.2e15", "2B"
    ]  # fmt: skip


def test_series_are_distinguishable_without_color() -> None:
    looks = [figures.choose_series_style(number) for number in range(10)]
    assert len({(look.marker, str(look.line)) for look in looks}) == 10


@pytest.mark.parametrize("kind", WITH_FIGURES)
def test_each_entry_of_a_legend_has_a_series(
    kind: str, report_page: Callable[[str, str], Path]
) -> None:
    tree = LexborHTMLParser(report_page(kind, "plain").read_text(encoding="utf-8"))
    drawings = tree.css("svg")
    assert drawings
    for drawing in drawings:
        name = drawing.attributes["aria-label"]
        legends = [node.attributes["id"] or "" for node in drawing.css("g[id*=legend_]")]
        entries = {node.attributes["data-legend"] for node in drawing.css("[data-legend]")}
        series = {node.attributes["data-series"] for node in drawing.css("[data-series]")}
        assert entries <= series, name
        assert bool(entries) >= bool(legends), name


def test_points_have_texts_only_if_every_point_is_drawn() -> None:
    figure, (axes,) = figures.create_figure(2.0)
    axes.set_ylim(0, 4)
    with figures.draw_series(axes, "a & b\n"):
        axes.plot([0, 1, 2], [1.5, float("nan"), 2.25], marker="o")
    source = figures.render_svg(figure, "name")
    assert source.count("<title>") == 2
    assert "<title>a &amp; b\\n: 1.5</title>" in source
    assert "<title>a &amp; b\\n: 2.25</title>" in source
    assert source.count('data-series="') == 1


def test_points_outside_the_figure_have_no_texts() -> None:
    """If a line leaves the figure, the SVG has equally many marks, but for other points."""
    figure, (axes,) = figures.create_figure(2.0)
    with figures.draw_series(axes, "a"):
        axes.plot([0, 1, 2, 3, 4], [1e9, 1e9, 1.5, 1e9, 2.5], marker="o")
    axes.set_ylim(0, 4)
    titles = re.findall("<title>(.*?)</title>", figures.render_svg(figure, "name"))
    assert titles == ["a: 1.5", "a: 2.5"]
