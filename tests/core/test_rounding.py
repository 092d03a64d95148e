"""Quotients and multiples that are rounded up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.rounding import divide_up, round_up_to_multiple


def test_quotients_are_rounded_up() -> None:
    assert [divide_up(number, 4) for number in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_numbers_are_rounded_up_to_a_multiple() -> None:
    assert [round_up_to_multiple(number, 64) for number in (0, 1, 64, 65)] == [0, 64, 64, 128]


@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_the_rounded_quotient_is_the_smallest_that_covers_the_dividend(
    dividend: int, divisor: int
) -> None:
    quotient = divide_up(dividend, divisor)
    assert (quotient - 1) * divisor < dividend <= quotient * divisor
    assert round_up_to_multiple(dividend, divisor) == quotient * divisor
