"""Archives of arrays beside a model, damaged in each way and made by someone else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.errors import DataError
from bsmeta.data.io.array_archives import ArrayForm, read_array_archive

FORMS = {
    "inputs": ArrayForm(np.float32, ("words", 2)),
    "bias": ArrayForm(np.float32, ("words",)),
    "bytes": ArrayForm(np.uint8, ("",)),
    "shares": ArrayForm(np.float32, ("",), at_least=0, at_most=1),
    "keys": ArrayForm(np.uint64, ("",), is_ascending=True),
}
ARRAYS: dict[str, Any] = {
    "inputs": np.ones((3, 2), np.float32),
    "bias": np.zeros(3, np.float32),
    "bytes": np.arange(5, dtype=np.uint8),
    "shares": np.array([0, 1, 0.5], np.float32),
    "keys": np.array([0, 3, 2**64 - 1], np.uint64),
}


def test_arrays_of_the_expected_forms_are_returned(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, other=np.ones(1), **ARRAYS)
    arrays = read_array_archive(file, FORMS)
    assert arrays.keys() == ARRAYS.keys()
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": np.ones((3, 3), np.float32)},
            r"inputs has the shape \[3, 3\]; expected \[3, 2\]",
        ),
        ({"bias": np.zeros(2, np.float32)}, r"bias has the shape \[2\]; expected \[3\]"),
        ({"bias": np.zeros(3)}, "bias has the type float64; expected float32"),
        ({"bias": np.full(3, np.nan, np.float32)}, "bias has values that are not finite"),
        ({"bytes": np.ones((1, 1), np.uint8)}, r"bytes has the shape \[1, 1\]; expected \[any\]"),
        ({"bytes": np.array([{}], object)}, r"cannot be read \(ValueError\)"),
        ({"shares": np.array([-0.1], np.float32)}, "shares has values below 0"),
        ({"shares": np.array([1.1], np.float32)}, "shares has values above 1"),
        ({"keys": np.array([1, 3, 2], np.uint64)}, "keys is not in ascending order"),
        ({"keys": np.array([1, 2, 2], np.uint64)}, "keys is not in ascending order"),
    ],
)
def test_arrays_of_other_forms_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **{**ARRAYS, **changes})
    with pytest.raises(DataError, match=f"a.npz: .*{message}.*; copy the model again"):
        read_array_archive(tmp_path / "a.npz", FORMS)


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **{**ARRAYS, "bytes": np.zeros(10**7, np.uint8)})
    with pytest.raises(DataError, match="it is compressed; expected no compression"):
        read_array_archive(tmp_path / "a.npz", FORMS)


def test_a_missing_file_or_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(FileNotFoundError\)"):
        read_array_archive(tmp_path / "a.npz", FORMS)
    np.savez(tmp_path / "a.npz", bias=ARRAYS["bias"])
    with pytest.raises(
        DataError, match="lacks inputs, bytes, shares, keys, so another version of bsmeta made"
    ):
        read_array_archive(tmp_path / "a.npz", FORMS)


@given(st.data())
def test_damage_at_any_byte_is_an_error_or_leaves_the_forms(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("damaged") / "a.npz"
    np.savez(file, **ARRAYS)
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:position]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)

    try:
        arrays = read_array_archive(file, FORMS)
    except DataError:
        return
    assert {name: array.dtype for name, array in arrays.items()} == {
        name: np.dtype(form.dtype) for name, form in FORMS.items()
    }
    assert arrays["inputs"].shape == (len(arrays["bias"]), 2)
