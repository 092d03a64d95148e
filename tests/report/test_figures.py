"""Figures: every name is text, whatever it contains, and a figure that fails costs only itself."""

from __future__ import annotations

import ast
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

from bsmeta.report import figures
from bsmeta.report.drawing import draw_figures
from bsmeta.report.page import Page, Section, write_report
from tests.conftest import REPOSITORY
from tests.report.conftest import cases
from tests.report.made import KINDS
from tests.terminal import ACTING

WITH_FIGURES = ["evaluation", "study", "classification", "disambiguation", "annotation"]
LONGEST = 200  # characters of a title around a name


def texts_of(page: Path) -> list[str]:
    """The texts of the figures of a page."""
    tree = LexborHTMLParser(page.read_text(encoding="utf-8"))
    return [node.text() for node in tree.css("svg text")]


@pytest.mark.parametrize(("kind", "marks"), cases(WITH_FIGURES, "figures 0", "figures 1"))
def test_names_are_drawn_as_they_are(
    kind: str, marks: str, report_page: Callable[[str, str], Path]
) -> None:
    page = report_page(kind, marks)
    source = page.read_text(encoding="utf-8")
    assert "could not be drawn" not in source
    assert source.count("<figure") == report_page(kind, "plain").read_text().count("<figure") > 0
    texts = texts_of(page)
    assert max(map(len, texts)) < LONGEST
    assert not [text for text in texts if ACTING.search(text.replace("\n", ""))]
    assert "<script>alert" not in source


def test_dollars_are_dollars(tmp_path: Path) -> None:
    page = KINDS["classification"](tmp_path / "page", ("$10 to $20", '#0072b2 id="b"'))
    texts = texts_of(page)
    assert "left$10 to $20" in texts
    assert 'center#0072b2 id="b"' in texts


def test_texts_of_matplotlib_itself_are_no_formulas(
    report_page: Callable[[str, str], Path],
) -> None:
    texts = texts_of(report_page("study", "plain"))
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
    assert figures.short_name(name) == shown


def test_a_name_has_few_lines() -> None:
    assert figures.name_lines("a\nb") == "a\nb"
    assert figures.name_lines("\n" * 500).count("\n") == 4


@figures.styled
def broken() -> object:
    figure, (axes,) = figures.canvas(2.0)
    axes.set_title("$\\frac{$", parse_math=True)
    return figure


@figures.styled
def whole() -> object:
    figure, (axes,) = figures.canvas(2.0)
    axes.plot([0, 1], [0, 1])
    axes.set_title("\U00012345\U00012346 🚀")
    return figure


def impossible() -> object:
    raise RuntimeError("`no` **way** <b>\nat all")


def written(folder: Path) -> list[Path]:
    plots = {"broken": broken, "whole": whole, "impossible": impossible}
    page = Page("Title", ["Answer."], {"fact": "1"}, [Section(plots=plots)])
    return write_report(page, {"numbers": [1, float("nan")]}, folder)


def test_a_figure_that_fails_is_named_and_all_else_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.png").write_bytes(b"of an earlier report")
    assert [file.name for file in written(tmp_path)] == [
        "evaluation.json", "evaluation.md", "report.html", "whole.png"
    ]  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "evaluation.json", "evaluation.md", "report.html", "whole.png"
    ]  # fmt: skip
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"numbers": [1, None]}
    page, source = ((tmp_path / name).read_text() for name in ("evaluation.md", "report.html"))
    reason = "RuntimeError: \\`no\\` \\*\\*way\\*\\* &lt;b&gt;↵at all"
    assert f"The figure `impossible` could not be drawn: {reason}\n" in page
    assert "The figure `broken` could not be drawn: ValueError: " in page
    assert "![whole](whole.png)" in page
    assert "broken.png" not in page
    assert "The figure <code>broken</code> could not be drawn: ValueError: " in source
    assert "&lt;b&gt;" in source
    assert source.count("<figure") == 1
    assert "the figure broken could not be drawn: ValueError" in caplog.text


def test_characters_without_a_font_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_figures({"whole": whole}, tmp_path, ["png", "pdf"])
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message.startswith("3 characters of names are in no installed font")


def test_all_figures_are_drawn_in_one_place() -> None:
    for path in [
        *(REPOSITORY / "bsmeta").rglob("*.py"),
        *(REPOSITORY / "experiments").glob("*/*.py"),
    ]:
        tree = ast.parse(path.read_text())
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        saves = {name for name in called if name.endswith(".savefig")}
        assert not saves or path.name == "figures.py", path
        draws = called & {"figures.svg", "figures.save"}
        assert not draws or path.name == "drawing.py", path
