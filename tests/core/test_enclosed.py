"""What is enclosed is replaced as by a pattern that is not greedy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.enclosed import Finder, remove_enclosed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("a<b>c<d>e", "ace"),
        ("a<b<c>d", "ad"),
        ("a<b>c<d", "ac<d"),
        ("a>b", "a>b"),
        ("<<<", "<<<"),
    ],
)
def test_tags_are_removed(text: str, expected: str) -> None:
    assert remove_enclosed(text, "<", ">") == expected


def test_the_end_may_be_a_pattern() -> None:
    assert remove_enclosed("a<!-- b -->  \nc<!--", "<!--", re.compile(r"-->\s*")) == "ac<!--"


@given(st.text("<>!- a\n"))
def test_enclosed_text_is_removed_as_by_a_regular_expression(text: str) -> None:
    assert remove_enclosed(text, "<!--", "-->") == re.sub("(?s)<!--.*?-->", "", text)
    assert remove_enclosed(text, "<", ">") == re.sub("(?s)<.*?>", "", text)


@given(st.text("ab "), st.lists(st.integers(0, 20)))
def test_a_finder_returns_the_next_match_from_each_position(
    text: str, positions: list[int]
) -> None:
    finder = Finder(text)
    for position in sorted(positions):
        index = text.find("ab", position)
        assert finder.find("ab", position) == (None if index < 0 else (index, index + 2))
        match = re.compile(r"\s+").search(text, position)
        assert finder.find(re.compile(r"\s+"), position) == (
            None if match is None else match.span()
        )
