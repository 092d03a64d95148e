"""Tokens that touch metadata, against an implementation that looks at each character."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.masks import (
    inside_span,
    loss_tables,
    text_positions,
    token_kinds,
    token_runs,
)


def array(values: object) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_token_has_the_kind_of_its_first_metadata_character() -> None:
    #       0123456789
    text = "ab<x><y>cd"
    spans, kinds = array([(2, 5), (5, 8)]), np.array([3, 1], np.uint8)
    starts, ends = array([0, 1, 3, 4, 7, 9, 10]), array([1, 3, 4, 7, 9, 10, 10])
    tokens = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    assert tokens == ["a", "b<", "x", "><y", ">c", "d", ""]
    assert token_kinds(starts, ends, spans, kinds).tolist() == [0, 3, 3, 3, 1, 0, 0]
    assert token_runs(starts, ends, spans).tolist() == [-1, 0, 0, 0, 1, -1, -1]


def test_cuts_inside_an_inserted_string_are_told() -> None:
    spans = array([(2, 5), (5, 8)])
    inside = inside_span(array(range(11)), spans)
    assert np.flatnonzero(inside).tolist() == [3, 4, 6, 7]


def test_positions_in_the_text_without_metadata() -> None:
    spans = array([(2, 5), (5, 8)])  # ab<x><y>cd
    assert text_positions(array(range(11)), spans).tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4]


def test_loss_is_taken_on_the_types_that_are_asked_for() -> None:
    def wanted(**changes: object) -> tuple[list[bool], list[bool]]:
        config = MetadataConfig(metadata_list=["url", "html"], **changes)  # type: ignore[arg-type]
        outside, body = loss_tables(config)
        return outside[:3].tolist(), body[:3].tolist()

    strict = {"treat_local_metadata_as_regular_text": False}
    off, on = [True, False, False], [True, True, True]
    assert wanted() == (off, on)
    assert wanted(**strict) == (off, off)
    assert wanted(loss_on_metadata=True, **strict) == (on, on)
    only_url = {"loss_on_metadata": True, "loss_on_metadata_types": ["url"]}
    assert wanted(**only_url, **strict) == ([True, True, False], [True, True, False])
    assert wanted(**only_url) == ([True, True, False], on)


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Characters' rows (-1: text), the spans and kinds of rows, and tokens over them."""
    parts = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
    rows: list[int] = []
    spans: list[tuple[int, int]] = []
    for is_metadata, length in parts:
        if is_metadata:
            spans.append((len(rows), len(rows) + length))
        rows += [len(spans) - 1 if is_metadata else -1] * length
    cuts = draw(st.lists(st.integers(0, len(rows)), max_size=12))
    bounds = sorted([0, len(rows), *cuts])
    kinds = draw(st.lists(st.integers(1, 255), min_size=len(spans), max_size=len(spans)))
    table = array(spans).reshape(-1, 2)
    return rows, table, np.array(kinds, np.uint8), array(bounds[:-1]), array(bounds[1:])


@settings(deadline=None)
@given(texts())
def test_masks_agree_with_a_look_at_each_character(case: tuple) -> None:
    rows, spans, kinds, starts, ends = case
    expected_runs = []
    for start, end in zip(starts, ends, strict=True):
        touched = [row for row in rows[start:end] if row >= 0]
        expected_runs.append(touched[0] if touched else -1)
    expected_kinds = [0 if row < 0 else int(kinds[row]) for row in expected_runs]
    assert token_runs(starts, ends, spans).tolist() == expected_runs
    assert token_kinds(starts, ends, spans, kinds).tolist() == expected_kinds

    every = array(range(len(rows) + 1))
    inside = [0 < at < len(rows) and rows[at - 1] == rows[at] >= 0 for at in every]
    assert inside_span(every, spans).tolist() == inside
    in_text = [sum(row < 0 for row in rows[:at]) for at in every]
    assert text_positions(every, spans).tolist() == in_text
