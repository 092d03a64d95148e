"""Saves and reads decisions on duplicates: the pages of each input file that copy another page.

`_annotation/NAME.duplicates` has a header with a hash of everything that the decisions depend on,
and a line for each duplicate. The workers receive the duplicates with the chunks of pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from bsmeta.annotate.config import DROP, MARK, OFF, AnnotateConfig
from bsmeta.core.files import replace_atomically
from bsmeta.core.parsing import JSONDecoder

EXACT = "exact_duplicate"
NEAR = "near_duplicate"
HELD_OUT = "held_out_copy"


class Duplicate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page that copies another one.

    Attributes:
        number: Index of the page among the records of its input file.
        kind: `EXACT` (same text as an earlier page), `NEAR` (similar to an earlier page) or
            `HELD_OUT` (same as or similar to a held-out page).
        kept: The other page, as `NAME:NUMBER`: the name of its shard, and its index in its file.
        similarity: Estimated Jaccard similarity of their shingles; 1 for the same text.
        is_dropped: Whether the configuration excludes it from the shard; not saved.
    """

    number: int
    kind: str
    kept: str
    similarity: float
    is_dropped: bool = False


class _Header(msgspec.Struct):
    """The first line of a file of duplicates.

    Attributes:
        identity: Hash of everything that the decisions depend on.
    """

    identity: str


_HEADER_DECODER = JSONDecoder(_Header)
_DUPLICATE_DECODER = JSONDecoder(Duplicate)


def looks_for_duplicates(config: AnnotateConfig) -> bool:
    """Whether the configuration enables the search for duplicates or held-out copies."""
    return config.duplicates != OFF or bool(config.held_out)


def marks_duplicates(config: AnnotateConfig) -> bool:
    """Whether the rows of some duplicates are kept, with a record that names the other page."""
    return config.duplicates == MARK or (bool(config.held_out) and config.held_out_copies == MARK)


@dataclass(frozen=True)
class Decisions:
    """The duplicates of an input file, by their index among its records."""

    duplicates: dict[int, Duplicate] = field(default_factory=dict)

    @classmethod
    def read(cls, config: AnnotateConfig, path: Path) -> Decisions:
        """Reads the duplicates of an input file, and decides which are dropped.

        Raises:
            FileNotFoundError: If duplicates are enabled, but no pass has looked for them.
        """
        if not looks_for_duplicates(config):
            return cls()

        _, saved_duplicates = read_duplicates(path)
        duplicates = {}
        for duplicate in saved_duplicates:
            is_dropped = _choose_action(config, duplicate.kind) == DROP
            duplicates[duplicate.number] = msgspec.structs.replace(duplicate, is_dropped=is_dropped)
        return cls(duplicates)

    def hash_dropped(self) -> str:
        """Hashes the dropped pages and their kinds; returns "" if there are none."""
        return _hash_rows(
            (number, duplicate.kind)
            for number, duplicate in self.duplicates.items()
            if duplicate.is_dropped
        )

    def hash_marked(self) -> str:
        """Hashes the duplicates that keep their rows, with all values of their records.

        Returns "" if there are none.
        """
        return _hash_rows(
            (number, duplicate.kind, duplicate.kept, duplicate.similarity)
            for number, duplicate in self.duplicates.items()
            if not duplicate.is_dropped
        )

    def select(self, start: int, count: int) -> dict[int, Duplicate]:
        """Returns the duplicates among `count` records, by their index relative to `start`.

        Args:
            start: Index of the first record.
        """
        return {
            offset: self.duplicates[start + offset]
            for offset in range(count)
            if start + offset in self.duplicates
        }


def _choose_action(config: AnnotateConfig, kind: str) -> str:
    """Returns the action for a kind of duplicate: `MARK`, `DROP` or `OFF`."""
    return config.held_out_copies if kind == HELD_OUT else config.duplicates


def _hash_rows(rows: Iterable[tuple[object, ...]]) -> str:
    """Hashes rows in their order; returns "" if there are none."""
    content = list(rows)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content)) if content else ""


def write_duplicates(path: Path, identity: str, duplicates: Sequence[Duplicate]) -> None:
    """Writes the duplicates of an input file.

    Args:
        identity: Hash of everything that the decisions depend on.
    """
    lines = [msgspec.json.encode(line) for line in (_Header(identity), *duplicates)]
    with replace_atomically(path) as part:
        part.write_bytes(b"\n".join([*lines, b""]))


def read_duplicates(path: Path) -> tuple[str, list[Duplicate]]:
    """Reads the identity and the duplicates that `write_duplicates` wrote.

    Raises:
        FileNotFoundError: If no pass has looked for duplicates.
    """
    header_line, *lines = path.read_bytes().splitlines()
    identity = _HEADER_DECODER.decode(header_line).identity
    return identity, [_DUPLICATE_DECODER.decode(line) for line in lines]


def read_identity(path: Path) -> str | None:
    """Reads the identity that `write_duplicates` wrote; None if the file is missing or damaged."""
    try:
        with path.open("rb") as lines:
            return _HEADER_DECODER.decode(lines.readline()).identity
    except (FileNotFoundError, msgspec.DecodeError):
        return None
