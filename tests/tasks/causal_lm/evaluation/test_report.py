"""The report of an evaluation, on its page and on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.report import (
    draw_positions,
    print_report,
    write_report,
)
from bsmeta.tasks.causal_lm.evaluation.results import Report
from tests.tasks.causal_lm.evaluation.helpers import HIGH, LOW, controlled_model


def test_the_sentence_is_in_every_form_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_evaluated = controlled_model(LOW, {"matched": LOW, "separator": HIGH})
    report = Report(
        {"bootstrap_resamples": 1_000, "seed": 1, "windows": "sliding"}, [make_evaluated]
    )
    files = write_report(report, tmp_path, None)
    print_report(report, files)

    words = "Its strongest control (wrong, same length) changes the bits per byte by -0.0150"

    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert words in (tmp_path / "evaluation.md").read_text()
    assert words in (tmp_path / "report.html").read_text()
    (answer,) = json.loads((tmp_path / "evaluation.json").read_text())["answers"]
    assert answer == make_headline(make_evaluated)


def test_junk_arms_are_left_out_of_the_plot_by_position() -> None:
    """Their cost would flatten all other curves."""
    model = controlled_model(LOW, {"matched": HIGH, "form": [4.0, 5.0] * 20})
    figure = draw_positions(model)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "all together", "all together (wrong, same length)"
    ]  # fmt: skip
    by_position, by_context = figure.axes
    assert by_position.get_ylim()[1] < 0.1
    assert not by_position.get_shared_y_axes().joined(by_position, by_context)
