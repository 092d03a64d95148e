"""Nested values have the path of each value as its name."""

from __future__ import annotations

from bsmeta.training.reporting.flat_values import flatten_values


def test_nested_values_are_named_by_their_path() -> None:
    values = {"loss": 2.0, "parts": {"url": 1.0, "title": {"a": None}}, "empty": {}}
    assert flatten_values(values) == [("loss", 2.0), ("parts/url", 1.0), ("parts/title/a", None)]
