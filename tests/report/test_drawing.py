"""Figures are drawn in one place; one that fails costs only itself."""

from __future__ import annotations

import ast
import json
import logging
import warnings
from pathlib import Path

import pytest

from bsmeta.report import figures
from bsmeta.report.drawing import draw_figures
from bsmeta.report.page import Page, Section, write_report
from tests.conftest import REPOSITORY


@figures.style_figure
def draw_broken() -> object:
    figure, (axes,) = figures.create_figure(2.0)
    axes.set_title("$\\frac{$", parse_math=True)
    return figure


@figures.style_figure
def draw_whole() -> object:
    figure, (axes,) = figures.create_figure(2.0)
    axes.plot([0, 1], [0, 1])
    axes.set_title("\U00012345\U00012346 🚀")
    return figure


def raise_error() -> object:
    raise RuntimeError("`no` **way** <b>\nat all")


def write_page(folder: Path) -> list[Path]:
    plots = {"broken": draw_broken, "whole": draw_whole, "impossible": raise_error}
    page = Page("Title", ["Answer."], {"fact": "1"}, [Section(plots=plots)])
    return write_report(page, {"numbers": [1, float("nan")]}, folder)


def test_a_failing_figure_is_named_and_the_rest_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.png").write_bytes(b"of an earlier report")
    assert [file.name for file in write_page(tmp_path)] == [
        "evaluation.json", "evaluation.md", "report.html", "whole.png"
    ]  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "evaluation.json", "evaluation.md", "report.html", "whole.png"
    ]  # fmt: skip
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {
        "answers": ["Answer."],
        "numbers": [1, None],
    }
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


def test_characters_without_a_font_are_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_figures({"whole": draw_whole}, tmp_path, ["png", "pdf"])
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message.startswith("3 characters of names are in no installed font")


def test_files_have_the_layout_of_the_page(tmp_path: Path) -> None:
    """The layout is computed once, since each computation redraws the whole figure."""
    figure, (axes,) = figures.create_figure(2.0)
    axes.plot([0, 1], [0, 1])
    layouts = []

    def note_layout(event: object) -> None:
        layouts.append(axes.get_position().bounds)

    figure.canvas.mpl_connect("draw_event", note_layout)
    drawings = draw_figures({"whole": lambda: figure}, tmp_path, ["png", "pdf"])
    assert list(drawings.files) == ["whole.png", "whole.pdf"]
    assert figure.get_layout_engine() is None
    assert set(layouts) <= {axes.get_position().bounds}


def test_only_one_module_draws_figures() -> None:
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
