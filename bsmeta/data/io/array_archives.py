"""The gate for archives of NumPy (`.npz`) that lie beside a model, which may be someone else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.data.io.archives import has_compressed_member


@dataclass(frozen=True)
class ArrayForm:
    """The expected form of an array.

    Attributes:
        dtype: Its type; floating-point numbers must be finite.
        shape: The length of each axis. An axis may have a name instead, and must then have the same
            length in all arrays of the archive; "" stands for any length.
        at_least: The lowest possible value; None: any.
        at_most: The highest possible value; None: any.
        is_ascending: Whether each value is larger than the one before it, as a binary search needs.
    """

    dtype: type[np.generic]
    shape: tuple[int | str, ...]
    at_least: float | None = None
    at_most: float | None = None
    is_ascending: bool = False


def read_array_archive(file: Path, forms: Mapping[str, ArrayForm]) -> dict[str, np.ndarray]:
    """Reads an archive that `np.savez` has written, and checks its arrays.

    Compressed archives are refused, because a small one may fill the memory.

    Args:
        forms: Each expected array; others are ignored.

    Raises:
        DataError: If the file is missing or damaged, or an array is missing or has another form.
    """
    arrays: dict[str, np.ndarray] = {}
    missing: list[str] = []
    try:
        is_compressed = has_compressed_member(file)
        if not is_compressed:
            with np.load(file, allow_pickle=False) as loaded:
                missing = [name for name in forms if name not in loaded.files]
                arrays = {name: loaded[name] for name in forms if name not in missing}
    except Exception as error:  # NumPy and zipfile raise many types of errors for damaged files
        raise _make_damage_error(file, f"it cannot be read ({type(error).__name__})") from error

    if is_compressed:
        raise _make_damage_error(file, "it is compressed; expected no compression")

    if missing:
        raise DataError(
            f"{file}: lacks {', '.join(missing)}, so another version of bsmeta made the model, or "
            "the file is damaged; train or build the model again with this version, or copy it "
            "again"
        )

    lengths: dict[str, int] = {}
    for name, form in forms.items():
        problem = _find_form_problem(arrays[name], form, lengths)
        if problem:
            raise _make_damage_error(file, f"{name} {problem}")
    return arrays


def _find_form_problem(array: Any, form: ArrayForm, lengths: dict[str, int]) -> str:
    """Returns how an array differs from its form; "" if it does not.

    Args:
        lengths: The lengths of named axes; those of this array are added.
    """
    if not isinstance(array, np.ndarray) or array.dtype != form.dtype:
        found_type = getattr(array, "dtype", type(array).__name__)
        return f"has the type {found_type}; expected {np.dtype(form.dtype)}"

    expected_shape: list[int | None] = []  # None: any length
    for position, axis in enumerate(form.shape):
        if isinstance(axis, str) and axis and position < array.ndim:
            lengths.setdefault(axis, array.shape[position])
        expected_shape.append(axis if isinstance(axis, int) else lengths.get(axis))

    has_axes = array.ndim == len(expected_shape)
    pairs = zip(array.shape, expected_shape, strict=False)
    if not has_axes or any(expected not in (None, length) for length, expected in pairs):
        shape = ", ".join("any" if length is None else str(length) for length in expected_shape)
        return f"has the shape {list(array.shape)}; expected [{shape}]"

    return _find_value_problem(array, form)


def _find_value_problem(array: np.ndarray, form: ArrayForm) -> str:
    """Returns how the values of an array differ from its form; "" if they do not."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "has values that are not finite"
    if form.at_least is not None and (array < form.at_least).any():
        return f"has values below {form.at_least:g}"
    if form.at_most is not None and (array > form.at_most).any():
        return f"has values above {form.at_most:g}"
    if form.is_ascending and (array[1:] <= array[:-1]).any():
        return "is not in ascending order"
    return ""


def _make_damage_error(file: Path, problem: str) -> DataError:
    return DataError(f"{file}: {problem}; copy the model again")
