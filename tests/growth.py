"""How the processor time of a function grows with the length of its text.

Where time is linear, a text of twice the length takes twice as long; where it grows with the
square, four times. Only such ratios are judged, never a time by itself, of the time of this thread,
of the fastest of several runs, and the lowest of several such ratios: the load of the machine does
not matter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

LIMIT = 3.0
"""Ratio of the times at lengths 2n and n that is refused: between linear, 2, and quadratic, 4."""

SHORT = (16, 20, 26, 34, 44, 56, 72, 94, 122, 160, 208)
"""Steps so small that even an exponential time is noticed before it takes seconds."""

_MEASURABLE_S = 0.002
_ENOUGH_S = 0.01  # of a suspicious run: longer texts would show no more
_SUSPICIOUS = 1.5  # times the growth of a linear function
_RUNS = 3
_ROUNDS = 5


def measure_growth(
    run: Callable[[str], object], make: Callable[[int], str], lengths: Sequence[int]
) -> float:
    """Measures how the processor time of a function grows when its text doubles.

    Most functions are so fast at all lengths, or grow so evenly, that one run of each is enough.

    Args:
        run: The function.
        make: Makes a text of about a number of characters.
        lengths: Characters of the texts, ascending. A limit that bounds what grows faster must be
            less than half of the last.

    Returns:
        The ratio of the times at the last length and at its half, or, where time has grown too
        fast before, at that length; 0 if it cannot exceed the limit.
    """
    judged = lengths[-1]
    shorter_s = _seconds(run, make(lengths[0]))
    for shorter, length in pairwise(lengths):
        seconds = _seconds(run, make(length))
        is_suspicious = seconds > _SUSPICIOUS * shorter_s * length / shorter
        shorter_s = seconds
        if is_suspicious and seconds > _ENOUGH_S:
            judged = length
            break
    if not is_suspicious or seconds < _MEASURABLE_S:
        return 0.0

    texts = make(judged // 2), make(judged)
    return min(_ratio(run, *texts) for _ in range(_ROUNDS))


def _ratio(run: Callable[[str], object], shorter: str, longer: str) -> float:
    """Returns the ratio of the times of two texts, in one short period.

    Where processes share caches, a longer text may lose more to the others than a shorter one, but
    not in every period: time that grows with the square does so in all of them.
    """
    runs = [(_seconds(run, shorter), _seconds(run, longer)) for _ in range(_RUNS)]
    return min(long for _, long in runs) / min(short for short, _ in runs)


def _seconds(run: Callable[[str], object], text: str) -> float:
    """Returns the processor time of a run, without garbage collection.

    These walk over all objects of the process, and a longer text may cause one more of them.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        run(text)
        return time.thread_time() - start
    finally:
        if is_collecting:
            gc.enable()
