"""Writes the sequences of logical streams to the files that `prepared` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import Dataset

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import UserError
from bsmeta.data.counts import count_names
from bsmeta.data.live import LiveStreams
from bsmeta.data.packed import PackedSequence
from bsmeta.data.plan import Position
from bsmeta.data.prepared import TARGET, file_name

BUFFER = 1 << 20


def columns_of(config: DataConfig, vocabulary: int) -> dict[str, dict[str, Any]]:
    """The smallest dtype of each array of `prepared.COLUMNS`, and its number of values per row.

    Args:
        config: The data.
        vocabulary: Number of token ids.
    """
    metadata = config.metadata_config
    kinds: dict[str, tuple[Any, int]] = {
        "tokens": (np.min_scalar_type(vocabulary - 1), 1),
        "marks": (np.uint8, 1),
        "lengths": (np.min_scalar_type(metadata.max_seq_len), 1),
        "types": (np.min_scalar_type((1 << len(metadata.metadata_list)) - 1), 1),
        "documents": (np.uint32, 2),
        "rows": (np.int64, 3),
        "behind": (np.int64, len(Position._fields)),
        "counts": (np.int32, len(count_names(metadata.metadata_list))),
    }
    return {
        name: {"dtype": np.dtype(kind).newbyteorder("<").str, "width": width}
        for name, (kind, width) in kinds.items()
    }


class ColumnFiles:
    """The files of one stream, written row by row.

    Args:
        folder: Where they are written.
        stream: Number of the stream.
        columns: See `columns_of`.
    """

    def __init__(self, folder: Path, stream: int, columns: dict[str, dict[str, Any]]) -> None:
        self._dtypes = {name: np.dtype(one["dtype"]) for name, one in columns.items()}
        self._hashes = {name: xxhash.xxh3_64() for name in columns}
        self._sizes = dict.fromkeys(columns, 0)
        self._files = {
            name: open(folder / file_name(stream, name), "xb", BUFFER)  # noqa: SIM115 (see __exit__)
            for name in columns
        }

    def __enter__(self) -> ColumnFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, **values: Any) -> None:
        """Appends to each array."""
        for name, value in values.items():
            array = np.asarray(value)
            kept = array.astype(self._dtypes[name])
            assert np.array_equal(kept, array), f"{name} does not fit {self._dtypes[name]}"
            data = kept.tobytes()
            self._files[name].write(data)
            self._hashes[name].update(data)
            self._sizes[name] += len(data)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Size and hash of each file, for the manifest."""
        return {
            name: {"bytes": size, "xxh3": self._hashes[name].hexdigest()}
            for name, size in self._sizes.items()
        }


class StreamWriter(Dataset):
    """Writes stream k when item k is requested; the item is the stream's entry in the manifest.

    This way a torch DataLoader writes several streams at a time. An error that the user can fix is
    also returned as an item and raised by the receiver, without a loader process's stack trace.

    Args:
        live: Yields the sequences.
        config: The data.
        columns: See `columns_of`.
        epochs: Number of epochs to prepare.
        folder: Where the files are written.
    """

    def __init__(
        self,
        live: LiveStreams,
        config: DataConfig,
        columns: dict[str, dict[str, Any]],
        epochs: int,
        folder: Path,
    ) -> None:
        self._live = live
        self._columns = columns
        self._count = config.num_streams
        self._epochs = epochs
        self._folder = folder
        self._shards = {shard.name: place for place, shard in enumerate(live.shards)}

    def __len__(self) -> int:
        """Number of streams."""
        return self._count

    def __getitem__(self, stream: int) -> dict[str, Any] | UserError:
        if not 0 <= stream < self._count:
            raise IndexError(stream)
        try:
            return self._write(stream, self._live.sequences(stream, Position(), self._epochs))
        except UserError as error:
            return error

    def _write(self, stream: int, sequences: Iterator[PackedSequence]) -> dict[str, Any]:
        ends = np.zeros(3, np.int64)
        facts = {"sequences": 0, "tokens": 0, "documents": 0}
        with ColumnFiles(self._folder, stream, self._columns) as files:
            for one in sequences:
                ends += (len(one.ids), len(one.lengths), len(one.documents))
                files.add(
                    tokens=one.ids,
                    marks=one.kinds | np.where(one.loss_mask, TARGET, 0).astype(np.uint8),
                    lengths=one.lengths,
                    types=one.types,
                    documents=self._numbers(one.documents),
                    rows=ends,
                    behind=one.behind,
                    counts=one.counts,
                )
                facts["sequences"] += 1
                facts["documents"] += int(one.counts[0])
            facts["tokens"] = int(ends[0])
        return {**facts, "files": files.facts()}

    def _numbers(self, documents: Sequence[str]) -> list[tuple[int, int]]:
        """Names of documents as pairs of numbers: of the shard, and of the document in it."""
        parts = [name.rpartition(":") for name in documents]
        return [(self._shards[shard], int(number)) for shard, _, number in parts]
