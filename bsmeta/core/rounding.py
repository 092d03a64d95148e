"""Integer arithmetic that rounds up: quotients and multiples."""

from __future__ import annotations


def divide_up(dividend: int, divisor: int) -> int:
    """Returns the quotient, rounded up to a whole number."""
    return -(-dividend // divisor)


def round_up_to_multiple(number: int, step: int) -> int:
    """Returns the smallest multiple of `step` that is not below a number."""
    return divide_up(number, step) * step
