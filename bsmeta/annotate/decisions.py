"""Decisions on duplicates: for each input file, its pages that copy another page.

They are in `_annotation/NAME.duplicates`: a line that identifies everything they depend on, and a
line for each duplicate. The workers receive them with the chunks of pages.
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
        number: Its number among the records of its input file, from 0.
        kind: Whether its text is the same as an earlier page's, or similar, or the same as or
            similar to a held-out page's.
        kept: The other page: the name of its file's shard, a colon, and its number.
        similarity: Estimated Jaccard similarity of their shingles; 1 for the same text.
        is_dropped: Whether it gets no row, which the configuration decides; not in files.
    """

    number: int
    kind: str
    kept: str
    similarity: float
    is_dropped: bool = False


class _Header(msgspec.Struct):
    identity: str


_HEADER = JSONDecoder(_Header)
_DUPLICATE = JSONDecoder(Duplicate)


def looks_for_duplicates(config: AnnotateConfig) -> bool:
    """Returns whether pages are compared with others."""
    return config.duplicates != OFF or bool(config.held_out)


def marks_duplicates(config: AnnotateConfig) -> bool:
    """Returns whether rows say which page they copy."""
    return config.duplicates == MARK or (bool(config.held_out) and config.held_out_copies == MARK)


@dataclass(frozen=True)
class Decisions:
    """The duplicates of an input file, by their number."""

    duplicates: dict[int, Duplicate] = field(default_factory=dict)

    @classmethod
    def read(cls, config: AnnotateConfig, path: Path) -> Decisions:
        """Reads the duplicates that were found in a file, and decides which are dropped."""
        if not looks_for_duplicates(config):
            return cls()
        _, duplicates = read_duplicates(path)
        return cls(
            {
                duplicate.number: msgspec.structs.replace(
                    duplicate, is_dropped=_choose_action(config, duplicate.kind) == DROP
                )
                for duplicate in duplicates
            }
        )

    def identify_dropped(self) -> str:
        """Hashes the dropped pages and their kinds; empty if there is none."""
        return _hash_rows(
            (number, duplicate.kind)
            for number, duplicate in self.duplicates.items()
            if duplicate.is_dropped
        )

    def identify_marked(self) -> str:
        """Hashes the duplicates that have a row, with all that their rows say about them."""
        return _hash_rows(
            (number, duplicate.kind, duplicate.kept, duplicate.similarity)
            for number, duplicate in self.duplicates.items()
            if not duplicate.is_dropped
        )

    def select(self, start: int, count: int) -> dict[int, Duplicate]:
        """Returns the duplicates among `count` records, by their number after `start`."""
        return {
            number: self.duplicates[start + number]
            for number in range(count)
            if start + number in self.duplicates
        }


def _choose_action(config: AnnotateConfig, kind: str) -> str:
    return config.held_out_copies if kind == HELD_OUT else config.duplicates


def _hash_rows(rows: Iterable[tuple[object, ...]]) -> str:
    content = list(rows)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content)) if content else ""


def write_duplicates(path: Path, identity: str, duplicates: Sequence[Duplicate]) -> None:
    """Writes the duplicates of a file, with all that they depend on, as a hash."""
    lines = [msgspec.json.encode(line) for line in (_Header(identity), *duplicates)]
    with replace_atomically(path) as part:
        part.write_bytes(b"\n".join([*lines, b""]))


def read_duplicates(path: Path) -> tuple[str, list[Duplicate]]:
    """Reads the duplicates of a file; returns their identity, too.

    Raises:
        FileNotFoundError: If there are none, because no pass has looked for them.
    """
    header, *lines = path.read_bytes().splitlines()
    return _HEADER.decode(header).identity, [_DUPLICATE.decode(line) for line in lines]


def read_identity(path: Path) -> str | None:
    """Reads the identity of the duplicates of a file; None if there are none."""
    try:
        with path.open("rb") as lines:
            return _HEADER.decode(lines.readline()).identity
    except (FileNotFoundError, msgspec.DecodeError):
        return None
