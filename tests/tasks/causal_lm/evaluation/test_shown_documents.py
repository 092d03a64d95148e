"""The documents at both ends of the order, with their tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from bsmeta.tasks.causal_lm.evaluation.shown_documents import (
    MAX_TOKENS,
    compute_differences,
    select_extremes,
)
from tests.tasks.causal_lm.evaluation.conftest import call
from tests.tasks.causal_lm.evaluation.helpers import make_sums


@pytest.mark.parametrize(
    ("values", "indices"),
    [
        ([0.5, -1, 2, 0, -2, 1], [4, 1, 5, 2]),
        ([0.5, math.nan, -1, 2, math.nan], [2, 0, 3]),
        ([3.0], [0]),
        ([math.nan], []),
        ([], []),
    ],
)
def test_extremes_are_the_lowest_and_the_highest(values: list[float], indices: list[int]) -> None:
    assert select_extremes(np.array(values, float), 2) == indices


@given(st.lists(st.floats()), st.integers(0, 5))
def test_extremes_rise_and_are_selected_once(values: list[float], count: int) -> None:
    numbers = np.array(values, float)
    indices = select_extremes(numbers, count)
    finite = int((~np.isnan(numbers)).sum())
    assert len(indices) == len({*indices}) == min(2 * count, finite)
    chosen = numbers[indices]
    assert (np.diff(chosen[np.isfinite(chosen)]) >= 0).all()
    if indices:
        assert chosen[0] == np.nanmin(numbers)
        assert chosen[-1] == (np.nanmax(numbers))


def test_differences_are_per_byte() -> None:
    sums = make_sums(np.array([0.5, -0.25]))
    sums = np.concatenate([sums, np.zeros((1, sums.shape[1]))])
    differences = compute_differences(sums)
    assert differences[:2] == pytest.approx([0.5, -0.25])
    assert math.isnan(differences[2])


def test_the_page_shows_documents_as_the_model_reads_them(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ("bootstrap_resamples=20", "comparisons=[each,all]", "controls=[]")
    assert call(monkeypatch, f"checkpoint={run_folder}", *short) == 0
    out = run_folder / "evaluation"
    lines = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    bits = {
        line["document"]: (line["nats_with"] - line["nats_without"]) / math.log(2) / line["bytes"]
        for line in lines
        if line["comparison"] == "all"
    }
    ordered = sorted(bits, key=lambda name: bits[name])

    page = LexborHTMLParser((out / "report.html").read_text())
    summaries = [node.text() for node in page.css(".shown summary")]
    shown = [*ordered[:3], *ordered[-3:]]
    assert [summary.partition(": ")[2].partition(" (")[0] for summary in summaries] == shown
    assert summaries[0].startswith(f"{bits[shown[0]]:+.4f} bits per byte: ")
    for name, chunk in zip(shown, page.css(".shown .chunk"), strict=True):
        number = int(name.rpartition(":")[2])
        text = chunk.text()
        assert f"https://site{number % 3}.org/page/{number}" in text
        assert f"Page {number}" in text
        tokens = chunk.css("i")
        assert 0 < len(tokens) <= MAX_TOKENS
        assert "out k" in (tokens[0].attributes["class"] or "")
        assert (tokens[0].attributes["data-t"] or "").startswith("token 0: id ")
    table = page.css("table[data-filterable] tbody tr")
    assert len(table) == len([line for line in lines if line["comparison"] != "text"])
    assert table[0].css("th")[0].text() == ordered[0]
