"""The unrounded numbers of cells."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.report.cells import Cell, find_sort_value, format_exact_numbers
from bsmeta.report.inference import Estimate, Interval


@pytest.mark.parametrize(
    ("cell", "exact", "value"),
    [
        (1_234_567, "1,234,567", 1_234_567.0),
        (-0.006721982, "-0.006721982", -0.006721982),
        (1e-17, "1e-17", 1e-17),
        (np.float64(0.25), "0.25", 0.25),
        (np.int64(1200), "1,200", 1200.0),
        (Interval(0.125, 2.0), "0.125 to 2.0", 0.125),
        (Estimate(0.5, Interval(-0.125, math.inf)), "0.5 (-0.125 to inf)", 0.5),
    ],
)
def test_numbers_have_all_their_digits(cell: Cell, exact: str, value: float) -> None:
    assert format_exact_numbers(cell) == exact
    assert find_sort_value(cell) == value


@given(st.floats(allow_nan=False))
def test_exact_numbers_round_trip(number: float) -> None:
    assert float(format_exact_numbers(number)) == number


@pytest.mark.parametrize("cell", ["5", "", None, math.nan])
def test_cells_without_a_number_have_no_exact_value(cell: Cell) -> None:
    assert format_exact_numbers(cell) == ""


@pytest.mark.parametrize("cell", ["5", None])
def test_texts_have_no_number_to_sort_by(cell: Cell) -> None:
    with pytest.raises(TypeError, match="has no number"):
        find_sort_value(cell)
