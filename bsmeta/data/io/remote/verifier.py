"""Verifies the content of a remote file against its listed hash."""

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
        content_hash: The hash of the bytes so far.
        listed_hash: The hash that the store lists, in hexadecimal.
        is_doubtful: Called if the hashes differ; returns whether the store may list something other
            than a hash of the content.
    """

    content_hash: Hash
    listed_hash: str
    is_doubtful: Callable[[], bool] = lambda: False

    def update(self, data: bytes) -> None:
        """Adds the next bytes of the file."""
        self.content_hash.update(data)

    def matches_hash(self) -> bool | None:
        """Returns whether the content has the listed hash.

        None if the hashes differ, but the store may list something else than a content hash.
        """
        if self.content_hash.hexdigest() == self.listed_hash:
            return True
        return None if self.is_doubtful() else False
