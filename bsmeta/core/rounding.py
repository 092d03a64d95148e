"""Integer arithmetic that rounds up: quotients and multiples."""

from __future__ import annotations


def divide_up(dividend: int, divisor: int) -> int:
    """Returns the quotient of two integers, rounded up."""
    return -(-dividend // divisor)


def round_up_to_multiple(number: int, step: int) -> int:
    """Returns the smallest multiple of `step` that is at least `number`."""
    return divide_up(number, step) * step
