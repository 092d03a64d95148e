"""Vectors of entities on disk, each computed once: memory-mapped, filled as they are asked for.

A folder belongs to one encoder and one form of texts, by the hash in its name. Beside the vector of
an entity stands the hash of its text: one that was added or changed is computed, the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash

from bsmeta.core.files import unwritable
from bsmeta.core.progress import exclusively, reporting

Encode = Callable[[np.ndarray], Sequence[np.ndarray] | np.ndarray]
"""Computes the vectors of entities from their numbers."""

VECTORS, HASHES = "vectors.f{bits}", "texts.u64"
_AT_ONCE = 4096
_WHAT = "the vectors of entities"


def folder_name(*parts: Any) -> str:
    """The name of a folder of vectors: a hash of what determines them (JSON-serializable)."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """The xxh3 of some weights, in hexadecimal."""
    content = xxhash.xxh3_128()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


class EntityVectors:
    """The vectors of a table's entities.

    Args:
        folder: Where they are kept; created if it does not exist.
        count: The number of entities of the table, which may have grown.
        size: The size of a vector; a shorter one is followed by zeros.
        text: The text of an entity.
        encode: Computes vectors.
        dtype: The type of their numbers.

    Attributes:
        size: The size of a vector.
        dtype: The type of their numbers.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        size: int,
        text: Callable[[int], str],
        encode: Encode,
        dtype: str = "<f4",
    ) -> None:
        self._folder = folder
        self._lock = folder / "lock"
        kind = np.dtype(dtype)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with exclusively(self._lock, _WHAT):
                name = VECTORS.format(bits=8 * kind.itemsize)
                self._vectors = _grown(folder / name, kind, (count, size))
                self._hashes = _grown(folder / HASHES, np.dtype("<u8"), (count,))
        except OSError as error:
            raise unwritable(folder, error) from error
        self.size = size
        self.dtype = kind
        self._text = text
        self._encode = encode
        self._is_current = np.zeros(count, bool)

    def get(self, entities: np.ndarray) -> np.ndarray:
        """The vectors of entities, [entities, size]; the missing ones are computed.

        Of several processes that lack some, one computes them while the others wait.
        """
        asked = np.unique(entities[~self._is_current[entities]])
        if len(asked):
            hashes = np.fromiter(map(self._text_hash, reporting(asked.tolist())), np.uint64)
            if (self._hashes[asked] != hashes).any():
                try:
                    with exclusively(self._lock, _WHAT):
                        self._compute(asked, hashes)
                except OSError as error:
                    raise unwritable(self._folder, error) from error
            self._is_current[asked] = True
        return np.asarray(self._vectors[entities])

    def _text_hash(self, entity: int) -> int:
        return (
            xxhash.xxh3_64_intdigest(self._text(entity).encode()) or 1
        )  # 0 means that there is no vector

    def _compute(self, asked: np.ndarray, hashes: np.ndarray) -> None:
        is_missing = self._hashes[asked] != hashes  # another process may have been first
        asked, hashes = asked[is_missing], hashes[is_missing]
        for start in range(0, len(asked), _AT_ONCE):
            chosen = slice(start, start + _AT_ONCE)
            _write(self._vectors, asked[chosen], self._encode(asked[chosen]))
            _write(self._hashes, asked[chosen], hashes[chosen])


def _write(array: np.memmap, rows: np.ndarray, values: Sequence[np.ndarray] | np.ndarray) -> None:
    """Writes rows of an array, or their first values, into its file.

    A file is written, not its mapping: on a full disk, that would end the process by a signal.
    """
    with Path(str(array.filename)).open("r+b") as file:
        for row, value in zip(rows.tolist(), values, strict=True):
            file.seek(row * array.strides[0])
            file.write(value.tobytes())


def _grown(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap:
    """The array in a file, which is extended with zeros if it is shorter."""
    size = int(np.prod(shape)) * dtype.itemsize
    with path.open("ab") as file:
        if file.tell() < size:
            file.truncate(size)
    return np.memmap(path, dtype, mode="r", shape=shape)
