"""The interface of the readers of a shard: lines of JSON, whatever its format.

`lines` reads files of lines, `parquet` reads Parquet files; `shard_lines` chooses between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bsmeta.data.io.file_ref import FileRef
from bsmeta.metadata.records import Line


class ShardReader(ABC):
    """The documents of one shard as lines of JSON, whatever its format.

    Attributes:
        line: Number of the next line.
        ended: Whether the last `read` reached the end of what can be read.
        damage: Why no further line can be read, in a truncated or damaged file; else empty.
    """

    def __init__(self, path: str | FileRef) -> None:
        self.path = path
        self.line = 0
        self.ended = False
        self.damage = ""

    def read(self, first: int, count: int) -> Sequence[Line]:
        """Up to `count` lines from line `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    @abstractmethod
    def take(self, numbers: Sequence[int]) -> Sequence[Line]:
        """The lines with these numbers, which increase; fewer if the shard ends or is damaged."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""
