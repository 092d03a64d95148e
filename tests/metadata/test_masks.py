"""Positions without metadata, and which tokens loss is taken of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import make_loss_tables
from bsmeta.data.text.tokens import map_text_positions


def make_array(values: object) -> np.ndarray:
    return np.array(values, np.int32)


def test_positions_map_to_the_text_without_metadata() -> None:
    spans = make_array([(2, 5), (5, 8)])  # ab<x><y>cd
    assert map_text_positions(make_array(range(11)), spans).tolist() == [
        0,
        1,
        2,
        2,
        2,
        2,
        2,
        2,
        2,
        3,
        4,
    ]


def test_loss_is_computed_on_the_configured_types() -> None:
    def wanted(**changes: object) -> tuple[list[bool], list[bool]]:
        config = MetadataConfig(metadata_list=["url", "html"], **changes)  # type: ignore[arg-type]
        outside, body = make_loss_tables(config)
        return outside[:3].tolist(), body[:3].tolist()

    strict = {"treat_local_metadata_as_regular_text": False}
    off, on = [True, False, False], [True, True, True]
    assert wanted() == (off, on)
    assert wanted(**strict) == (off, off)
    assert wanted(loss_on_metadata=True, **strict) == (on, on)
    only_url = {"loss_on_metadata": True, "loss_on_metadata_types": ["url"]}
    assert wanted(**only_url, **strict) == ([True, True, False], [True, True, False])
    assert wanted(**only_url) == ([True, True, False], on)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
def test_positions_agree_with_a_count_of_characters(parts: list[tuple[bool, int]]) -> None:
    spans: list[tuple[int, int]] = []
    is_text: list[bool] = []
    for is_metadata, length in parts:
        if is_metadata:
            spans.append((len(is_text), len(is_text) + length))
        is_text += [not is_metadata] * length
    positions = range(len(is_text) + 1)
    text_positions = map_text_positions(make_array(positions), make_array(spans).reshape(-1, 2))
    assert text_positions.tolist() == [sum(is_text[:at]) for at in positions]
