"""Verifies the content of a remote file by its hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    """The interface of hashlib's hash objects."""

    def update(self, data: bytes, /) -> None:
        """Adds data to be hashed."""

    def hexdigest(self) -> str:
        """Returns the hash of the data so far, in hexadecimal."""


@dataclass(frozen=True)
class Verifier:
    """Compares the content of a file with its listed hash.

    Attributes:
        computed: The hash of the bytes so far.
        expected: The hash that the store lists, in hexadecimal.
        is_doubtful: Called if the hashes differ; returns whether the listed one may not be a hash
            of the content at all.
    """

    computed: Hash
    expected: str
    is_doubtful: Callable[[], bool] = lambda: False

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the file."""
        self.computed.update(data)

    def is_right(self) -> bool | None:
        """Returns whether the content has the listed hash; None if the latter may not be a hash."""
        if self.computed.hexdigest() == self.expected:
            return True
        return None if self.is_doubtful() else False
