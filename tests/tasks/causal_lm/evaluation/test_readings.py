"""Which bytes of two readings count, and for how much."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.causal_lm.evaluation.readings import Reading, count_lost_bytes, sum_paired

NAN = math.nan
WHOLE = np.array([0])


def reading(*tokens: tuple[int, int, float]) -> Reading:
    starts, ends, nats = zip(*tokens, strict=True)
    return Reading(np.array(starts), np.array(ends), np.array(nats), np.zeros(len(nats), int))


def by_position(*arguments: Any) -> list[list[float]]:
    """Returns the sums of `sum_paired` by position, without the tokens of the second reading."""
    return sum_paired(*arguments)[0, :, :4].tolist()


def test_segments_lie_between_common_boundaries() -> None:
    # without: |ab|cd|ef|, with: |abc|d|ef|; common boundaries at 0, 4, 6
    without = reading((0, 2, NAN), (2, 4, 1.0), (4, 6, 2.0))
    with_metadata = reading((0, 3, 0.5), (3, 4, 0.5), (4, 6, 1.5))
    sums = by_position(without, with_metadata, "abcdef", WHOLE)
    assert sums == [[2, 1, 2.0, 1.5]]  # "ef": 2 bytes, 1 token


def test_differently_split_segments_count_as_a_whole() -> None:
    without = reading((0, 1, 1.0), (1, 3, 2.0))
    with_metadata = reading((0, 2, 0.25), (2, 3, 0.5))
    assert by_position(without, with_metadata, "a€b", WHOLE) == [[5, 2, 3.0, 0.75]]


def test_characters_missing_in_one_reading_do_not_count() -> None:
    without = reading((0, 2, 1.0), (2, 3, 1.0))
    with_metadata = reading((2, 3, 0.5))  # its window begins later
    assert by_position(without, with_metadata, "abc", WHOLE) == [[1, 1, 1.0, 0.5]]


def test_tokens_that_share_a_character_stay_together() -> None:
    # one four-byte character in two tokens, the second of them unscored
    without = reading((0, 1, 1.0), (0, 1, 1.0), (1, 2, 1.0))
    with_metadata = reading((0, 1, 1.0), (0, 1, NAN), (1, 2, 0.0))
    assert by_position(without, with_metadata, "😀b", WHOLE) == [[1, 1, 1.0, 0.0]]


def test_a_segment_belongs_to_the_bin_of_its_first_byte() -> None:
    both = reading((0, 1, 1.0), (1, 3, 2.0), (3, 4, 4.0))
    sums = by_position(both, both, "é€bc", np.array([0, 2, 6]))
    assert sums == [[2, 1, 1.0, 1.0], [4, 1, 2.0, 2.0], [1, 1, 4.0, 4.0]]


def test_the_context_is_the_preceding_text_in_the_window() -> None:
    shown = reading((0, 1, 1.0), (1, 3, 2.0), (3, 4, 4.0))
    shown.shown_from[2] = 1  # the window of the last token begins with the second
    by_document, by_context = sum_paired(shown, shown, "é€bc", np.array([0, 2, 6]))
    assert by_document.tolist() == [[2, 1, 1.0, 1.0, 1], [4, 1, 2.0, 2.0, 1], [1, 1, 4.0, 4.0, 1]]
    # "c" begins at byte 6, four bytes into its window
    assert by_context.tolist() == [[2, 1, 1.0, 1.0, 1], [5, 2, 6.0, 6.0, 2], [0, 0, 0, 0, 0]]


def test_an_empty_text_has_no_bytes() -> None:
    nowhere = np.zeros(0, int)
    empty = Reading(nowhere, nowhere, np.zeros(0), nowhere)
    assert by_position(empty, empty, "", WHOLE) == [[0, 0, 0, 0]]


@st.composite
def tokenizations(draw: st.DrawFn, size: int) -> Reading:
    inner = draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=size))
    marks = sorted({0, size} | {mark for mark in inner if mark < size})
    spans = list(itertools.pairwise(marks))
    nats = draw(
        st.lists(st.sampled_from([NAN, 0.5, 1.0, 3.0]), min_size=len(spans), max_size=len(spans))
    )
    return reading(*((s, e, n) for (s, e), n in zip(spans, nats, strict=True)))


@given(st.data(), st.text(alphabet="aé€😀", min_size=1, max_size=20))
def test_sums_equal_a_search_segment_by_segment(data: st.DataObject, text: str) -> None:
    first = data.draw(tokenizations(len(text)))
    second = data.draw(tokenizations(len(text)))
    edges = np.array([0, 3, 9])
    expected = np.zeros((3, 4))
    common = sorted(({0, *first.ends.tolist()}) & ({0, *second.ends.tolist()}))
    for start, end in itertools.pairwise(common):
        inside = [
            [n for s, n in zip(r.starts, r.nats, strict=True) if start <= s < end]
            for r in (first, second)
        ]
        if any(math.isnan(value) for part in inside for value in part):
            continue
        offset = len(text[:start].encode())
        row = expected[sum(offset >= edge for edge in edges) - 1]
        row += [len(text[start:end].encode()), len(inside[0]), sum(inside[0]), sum(inside[1])]
    paired_sums = sum_paired(first, second, text, edges)
    np.testing.assert_allclose(paired_sums[0, :, :4], expected)
    np.testing.assert_allclose(paired_sums[1], paired_sums[0])  # all is seen from the beginning


def test_bytes_lost_by_either_reading_are_excluded_from_both() -> None:
    text = "one two three"
    starts, ends = np.array([0, 3, 7]), np.array([3, 7, 13])
    nats, shown_from = np.array([1.0, 2.0, 4.0]), np.zeros(3, int)
    lost_in_first, lost_in_second = np.zeros((2, len(text)), bool)
    lost_in_first[0] = True
    lost_in_second[4:6] = True
    whole = Reading(starts, ends, nats, shown_from)
    first = Reading(starts, ends, nats, shown_from, lost_in_first)
    second = Reading(starts, ends, nats, shown_from, lost_in_second)
    edges = np.array([0])
    assert sum_paired(whole, whole, text, edges)[0, 0].tolist() == [13, 3, 7, 7, 3]
    assert sum_paired(first, second, text, edges)[0, 0].tolist() == [6, 1, 4, 4, 1]
    assert sum_paired(whole, second, text, edges)[0, 0].tolist() == [9, 2, 5, 5, 2]
    assert count_lost_bytes(whole, whole, text) == 0
    assert count_lost_bytes(first, second, text) == 7  # "one" and " two"
