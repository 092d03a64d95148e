"""Read lines with TensorFlow's tf.data (`data_config.reader=tf`), from any supported file system.

Returns the windows of the native reader, with these differences: TensorFlow cannot start in the
middle of a file, so a resumed stream, or one of several that share a shard, reads the shard again
up to its window; carriage returns are dropped from lines (JSON has none inside a string); and if
compressed data is damaged, not merely truncated, some lines before the damage are also lost: those
in TensorFlow's buffer (`BUFFER`), and those in the same window.

TensorFlow is imported when the source is created, but its runtime starts only in the process that
reads, because its threads would not survive the fork of the loader processes.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.files import DamagedFileError, content
from bsmeta.data.io.lines import LONGEST_LINE, OVERLONG
from bsmeta.data.io.shards import (
    PARQUET,
    SUFFIXES,
    Shard,
    check_is_listed,
    entries_of,
    is_excluded,
    list_shards,
    shard_names,
    with_samples,
)
from bsmeta.data.stream.live import Source
from bsmeta.data.stream.plan import Share, step_of
from bsmeta.data.stream.windows import PlacedWindow, Window

READ_AHEAD = 1  # windows: each may be tens of megabytes
BUFFER = 1 << 20  # bytes per read of a file


@lru_cache(maxsize=1)
def tensorflow() -> Any:
    """Import TensorFlow without log output and without GPUs, which are reserved for training.

    Raises:
        ConfigurationError: If it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 logs everything, 3 only fatal errors
    try:
        import tensorflow
    except ImportError as error:
        raise ConfigurationError(
            "data_config.reader=tf needs TensorFlow, which cannot be imported; "
            f"pip install tensorflow-cpu, or use reader=native: {error}"
        ) from error
    tensorflow.get_logger().setLevel("ERROR")
    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


@contextlib.contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turns TensorFlow's errors into a `DataError`, whose message begins with `what`."""
    try:
        yield
    except tensorflow().errors.OpError as error:
        raise DataError(f"{what}: {error.message}") from error


class TensorFlowSource(Source):
    """Reads lines with tf.data, from any file system that TensorFlow supports."""

    def __init__(self, config: DataConfig) -> None:
        super().__init__(config)
        self._tf = tensorflow()

    def shards(self) -> list[Shard]:
        """The training shards; refuses those whose format is not supported."""
        entries = entries_of(self._config)
        if any("://" in entry for entry in entries):
            shards = self._list(entries)
        else:
            shards = list_shards(self._config)
        for shard in shards:
            if str(shard.path).endswith((".zst", PARQUET)):
                raise ConfigurationError(
                    f"data_config.reader=tf cannot read {shard.path}, only .gz and plain lines; "
                    "use reader=native"
                )
        return shards

    def with_samples(self, shards: Sequence[Shard]) -> list[Shard]:
        return with_samples(shards, self._open, self._cache)

    def first_lines(self, shard: Shard, count: int) -> list[bytes]:
        return list(itertools.islice(self._lines(shard), count))

    def has_line(self, shard: Shard, line: int) -> bool:
        return next(itertools.islice(self._lines(shard), line, None), None) is not None

    def windows(
        self, epoch: int, order: Sequence[Share], place: int, number: int
    ) -> Iterator[PlacedWindow]:
        while place < len(order):
            blocks = self._blocks(order[place:], number)
            intact = True
            while intact and place < len(order):
                share = order[place]
                check_is_listed(share.shard, self._open)
                reader = ShareReader(share, number, blocks, self._config.window_documents)
                while not reader.ended:
                    yield place, reader.number, reader.read(epoch)
                place, number, intact = place + 1, 0, reader.intact

    def _blocks(self, shares: Sequence[Share], number: int) -> Iterator[np.ndarray]:
        """Lines of some shares, window by window, with an empty block after each share.

        Shards are opened and read in order, in parallel with their processing.

        Args:
            number: The window of the first share to start with.
        """
        data, count = self._tf.data, self._config.window_documents
        last = data.Dataset.from_tensors(self._tf.constant([], self._tf.string))

        def windows(path: Any, compression: Any, own: Any, first: Any) -> Any:
            low, high, run, cycle, step = (own[column] for column in range(5))

            def is_own(line: Any, _: Any) -> Any:
                slot = line // run % cycle * step % cycle
                return (low <= slot) & (slot < high)

            lines = data.TextLineDataset(path, compression_type=compression, buffer_size=BUFFER)
            lines = lines.enumerate().filter(is_own).map(lambda _, line: line)
            return lines.batch(count).skip(first).concatenate(last)

        own = [
            (share.low, share.high, share.run, share.cycle, step_of(share.cycle))
            for share in shares
        ]
        firsts = np.zeros(len(shares), np.int64)
        firsts[0] = number
        table = data.Dataset.from_tensor_slices(
            (
                [str(share.shard.path) for share in shares],
                ["GZIP" if str(share.shard.path).endswith(".gz") else "" for share in shares],
                np.array(own, np.int64),
                firsts,
            )
        )
        blocks = table.interleave(
            windows, cycle_length=1, num_parallel_calls=data.AUTOTUNE, deterministic=True
        )
        return blocks.prefetch(READ_AHEAD).as_numpy_iterator()

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO]:
        with _named_errors(f"{path} cannot be read"), self._tf.io.gfile.GFile(path, "rb") as file:
            yield file

    def _list(self, entries: Sequence[str]) -> list[Shard]:
        """`list_shards` for file systems that only TensorFlow supports."""
        gfile = self._tf.io.gfile
        found = sorted({path for entry in entries for path in self._expand(entry)})
        kept = [path for path in found if not is_excluded(path, self._config)]
        if not kept:
            raise DataError(
                f"data_config.train_file={self._config.train_file} leaves no training shard: all "
                f"of its {len(found)} files are the validation file or excluded; add other files"
            )
        with _named_errors(f"data_config.train_file={self._config.train_file}"):
            sizes = [gfile.stat(path).length for path in kept]
        shards = map(Shard, shard_names(kept), kept, sizes)
        return sorted(shards, key=lambda shard: shard.name)

    def _expand(self, entry: str) -> list[str]:
        gfile = self._tf.io.gfile
        with _named_errors(f"data_config.train_file: {entry}"):
            pattern = f"{entry.rstrip('/')}/*" if gfile.isdir(entry) else entry
            files = [path for path in gfile.glob(pattern) if path.endswith(SUFFIXES)]
        if not files:
            raise DataError(f"data_config.train_file: {entry} matches no file ending in {SUFFIXES}")
        return files

    def _lines(self, shard: Shard) -> Iterator[bytes]:
        """The lines of a shard, one by one, without starting TensorFlow's runtime."""
        rest = b""
        with self._open(str(shard.path)) as file:
            try:
                for block in content(str(shard.path), file):
                    *lines, rest = (rest + block).split(b"\n")
                    yield from lines
            except DamagedFileError:
                return  # reported when the shard is read
        if rest:
            yield rest


class ShareReader:
    """Takes the windows of one share out of the blocks of tf.data.

    Args:
        number: The window to start with.
        blocks: Lines of its windows, and an empty block; then those of other shares.

    Attributes:
        number: The next window.
        ended: Whether the share has no more windows.
        intact: Whether the blocks of other shares can be read after it.
    """

    def __init__(self, share: Share, number: int, blocks: Iterator[np.ndarray], count: int) -> None:
        self._share = share
        self._blocks = blocks
        self._count = count
        self.number = number
        self.ended = False
        self.intact = True
        self._is_whole = number == 0 and share.is_whole
        self._size = 0  # bytes of lines, including their ends

    def read(self, epoch: int) -> Window:
        """The next window."""
        errors, shard = tensorflow().errors, self._share.shard
        numbers = self._share.documents(self.number, self._count)
        self.number += 1
        damage = ""
        try:
            lines = next(self._blocks).tolist()
            lines = [line if len(line) <= LONGEST_LINE else OVERLONG for line in lines]
            self.ended = len(lines) < self._count
            if lines and self.ended:
                next(self._blocks)  # the empty block
        except errors.DataLossError as error:
            self.ended, self.intact = True, False
            return Window(epoch, shard, numbers, [], f"cannot be decompressed: {error.message}")
        except errors.OpError as error:
            raise DataError(f"{shard.path} cannot be read: {error.message}") from error
        self._size += sum(map(len, lines)) + len(lines)
        if self.ended and str(shard.path).endswith(".gz") and not self._is_complete():
            damage, whole = find_truncation(str(shard.path))
            if damage:
                lines = lines[: bisect.bisect_left(numbers, whole)]
        return Window(epoch, shard, numbers, lines, damage)

    def _is_complete(self) -> bool:
        """Whether all content was read, as far as the end of the file reveals it.

        TensorFlow mistakes a truncated file for a short one. A gzip file ends with the size of its
        last member (RFC 1952, section 2.3.1), usually its only one; the last line may lack an end.
        """
        if not self._is_whole or not self._share.shard.size:
            return False
        with tensorflow().io.gfile.GFile(self._share.shard.path, "rb") as file:
            file.seek(max(file.size() - 4, 0))
            size = int.from_bytes(file.read(4), "little")
        return size in {self._size % 2**32, (self._size - 1) % 2**32}


def find_truncation(path: str) -> tuple[str, int]:
    """The reason why a gzip file cannot be read to its end ("" if it can), and its whole lines.

    Makes another pass over it, with a decompressor that detects truncation.
    """
    lines = 0
    with tensorflow().io.gfile.GFile(path, "rb") as file:
        try:
            for block in content(path, file):
                lines += block.count(b"\n")
        except DamagedFileError as error:
            return str(error), lines
    return "", lines
