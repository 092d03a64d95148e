"""Values are written so that Hydra reads the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.config.composing.override_values import format_override_value
from bsmeta.core.errors import ConfigurationError

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(
    lambda text: "${" not in text
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS


def read(written: str) -> Any:
    return OverridesParser.create().parse_override(f"key={written}").value()


@settings(max_examples=300, deadline=None)
@given(SCALARS | st.lists(SCALARS, max_size=4))
def test_written_values_read_back_unchanged(value: Any) -> None:
    assert read(format_override_value(value)) == value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("it's", r"'it\'s'"),
        ("${oc.env:HOME}", r"'\${oc.env:HOME}'"),
        (Path("a/b"), "'a/b'"),
        ({"a": "${b}", "c d": [1, None]}, r'{"a":"\\${b}","c d":[1,null]}'),
        (np.float64(0.5), "0.5"),
        (1e-05, "1e-05"),
        ((True, None), "[true,null]"),
    ],
)
def test_values_are_written_literally(value: Any, written: str) -> None:
    assert format_override_value(value) == written


@pytest.mark.parametrize("value", [object(), b"a", {1, 2}])
def test_values_without_a_notation_are_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a text, a number"):
        format_override_value(value)
