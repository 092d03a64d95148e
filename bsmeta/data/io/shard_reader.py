"""The interface of shard readers, which return the documents of any format as lines of JSON.

`lines` reads files of lines, `parquet` reads Parquet files; `shard_lines` chooses between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bsmeta.data.io.file_ref import FileRef
from bsmeta.metadata.records import Line


class ShardReader(ABC):
    """Reads the documents of one shard as lines of JSON, regardless of its format.

    Attributes:
        path: The shard.
        line: Number of the next line, from 0.
        ended: Whether the last call reached the end of the shard, or damage.
        damage: Why no more lines of a truncated or damaged file can be read; "" otherwise.
    """

    def __init__(self, path: str | FileRef) -> None:
        self.path = path
        self.line = 0
        self.ended = False
        self.damage = ""

    def read(self, first: int, count: int) -> Sequence[Line]:
        """Returns up to `count` lines from `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    @abstractmethod
    def take(self, numbers: Sequence[int]) -> Sequence[Line]:
        """Returns the lines with the given numbers; fewer if the shard ends or is damaged.

        Args:
            numbers: Line numbers from 0, increasing.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""
