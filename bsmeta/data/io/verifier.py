"""The comparison of the content of a remote file with its hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    """A hash as those of hashlib."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Verifier:
    """Compares the content of a file with its hash.

    Attributes:
        is_doubtful: Whether a hash that differs may not be one of the content.
    """

    found: Hash
    expected: str
    is_doubtful: Callable[[], bool] = lambda: False

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the file."""
        self.found.update(data)

    def is_right(self) -> bool | None:
        """Whether all bytes have the hash; None if the hash is not one of the content."""
        if self.found.hexdigest() == self.expected:
            return True
        return None if self.is_doubtful() else False
