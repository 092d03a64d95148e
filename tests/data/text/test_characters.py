"""Counts over characters: their bytes, and the spans that contain them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.text.characters import count_coverage, measure_utf8_lengths


def test_characters_have_one_to_four_bytes() -> None:
    assert measure_utf8_lengths("aé€😀").tolist() == [1, 2, 3, 4]
    assert measure_utf8_lengths("").tolist() == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_lengths_are_those_of_the_encoded_characters(text: str) -> None:
    assert measure_utf8_lengths(text).tolist() == [len(character.encode()) for character in text]


def test_each_character_counts_the_spans_that_contain_it() -> None:
    starts, ends = np.array([0, 1, 1, 3]), np.array([2, 3, 1, 4])
    assert count_coverage(starts, ends, 5).tolist() == [1, 2, 1, 1, 0]
