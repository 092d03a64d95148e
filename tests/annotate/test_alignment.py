"""Extracts of a text are found in it again, whatever their white space and separators."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.annotate.alignment import Text

TEXT = """Home About Contact
The history of the bridge
The bridge (built 1874-1877) is 300 m long. It was painted red.
Length 300 m
Width 12 m
See also: other bridges
Home Imprint"""


def found(extract: str, text: str = TEXT) -> list[str]:
    return [text[start:end] for start, end in Text(text).align(extract)]


@pytest.mark.parametrize(
    ("extract", "expected"),
    [
        ("", []),
        (TEXT, [TEXT]),
        ("  ".join(TEXT.split()), [TEXT]),
        (
            "The history of the bridge\n\nThe bridge ( built 1874 - 1877 ) is 300 m long.",
            ["The history of the bridge\nThe bridge (built 1874-1877) is 300 m long."],
        ),
        (
            "# The history of the bridge\n| Length | 300 m |\n| Width | 12 m |",
            ["The history of the bridge", "Length 300 m\nWidth 12 m"],
        ),
        (
            "The bridge (built 1874-1877) is 300 m long. See also: other bridges",
            ["The bridge (built 1874-1877) is 300 m long.", "See also: other bridges"],
        ),
        ("nothing of this is in it", []),
    ],
)
def test_what_is_found(extract: str, expected: list[str]) -> None:
    assert found(extract) == expected


def test_a_repeated_menu_is_not_taken_for_the_content() -> None:
    lines = [f"Paragraph {n} says {n * n} things about topic {n % 7}." for n in range(40)]
    menu = "Home\nAbout\n" * 10
    text = menu + "\n".join(lines) + "\n" + menu
    extract = "\n\n".join(lines[5:30])
    start = text.index(lines[5])
    assert Text(text).align(extract) == [(start, text.index(lines[29]) + len(lines[29]))]


@pytest.mark.parametrize("words", ["a ", "a b "])
def test_repeated_words(words: str) -> None:
    text = (words * 100_000).strip()
    assert Text(text).align(text) == [(0, len(text))]
    Text(text).align(text[: len(text) // 2])


WORDS = [f"w{number}" for number in range(50)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=200), st.randoms(use_true_random=False))
def test_spans_are_disjoint_and_have_only_words_of_the_extract(
    words: list[str], rng: random.Random
) -> None:
    text = "".join(word + rng.choice([" ", "\n", ". ", ", ", "-"]) for word in words).strip()
    parts = [word for word in words if rng.random() < 0.8]
    spans = Text(text).align(" | ".join(parts))
    assert [place for span in spans for place in span] == sorted(
        {place for span in spans for place in span}
    )
    left = iter(parts)
    for start, end in spans:
        for word in text[start:end].replace("-", " ").replace(".", " ").replace(",", " ").split():
            assert any(word == other for other in left), "the words are in the extract's order"


def test_most_of_an_extract_is_found() -> None:
    rng = random.Random(1)
    vocabulary = [f"word{number}" for number in range(300)]
    lines = [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 30))) for _ in range(300)]
    kept = [line for line in lines if rng.random() < 0.6]
    text = "\n".join(lines)
    length = sum(end - start for start, end in Text(text).align("\n- ".join(kept)))
    assert 0.98 < length / len("\n".join(kept)) <= 1
