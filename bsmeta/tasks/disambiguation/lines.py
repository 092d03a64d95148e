"""Files of JSON lines, decoded line by line, with their problems reported together; and training
lines.

A training line of either generation is a sentence with its mentions.

The first generation counts the words of a mention (`spans`), the second its characters
(`char_spans`); both become characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np

from bsmeta.core.errors import DataError, nearest
from bsmeta.data.io.lines import IndexCache, LineReader

Form = TypeVar("Form")

LISTED = 20
"""Problems that an error lists."""

LINES = 1000
"""Lines that are read at a time."""

ALL_MENTIONS = "final_loss"
"""The slice of every gold mention; lines must not define it. Its metrics have no prefix."""

MEMBER = 0.5
"""A mention is in a slice if its value there is greater."""

_WORD = re.compile(r"\S+")

_INT64 = 1 << 63

_UNUSED = ("doc_sent_idx", "parent_title", "sources")
"""Fields of Bootleg's own lines that mean nothing to the training."""


class Problems:
    """The problems of a file; reading ends when enough of them are known.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[str] = []

    def add(self, line: int | None, reason: str) -> None:
        """Adds a problem of a line, numbered from 1; None in a file without lines.

        Raises:
            DataError: If it is the last one to be listed.
        """
        self._found.append(reason if line is None else f"line {line:,}: {reason}")
        if len(self._found) == LISTED:
            self._raise("the first ")

    def close(self) -> None:
        """Ends the file.

        Raises:
            DataError: If there are problems.
        """
        if self._found:
            self._raise("")

    def _raise(self, extent: str) -> None:
        count = len(self._found)
        named = "1 problem" if count == 1 else f"{extent}{count} problems"
        listed = "\n  ".join(self._found)
        raise DataError(f"{self._path}: {named}; correct the file\n  {listed}")


class JsonLines(Generic[Form]):
    """The lines of a `.jsonl(.gz|.zst)` file, decoded as a type; empty lines are skipped.

    Args:
        path: The file.
        form: The type of a line.
        problems: Collects lines that are not of this type, which are left out.
        advance: Called periodically with the number of bytes read.
    """

    def __init__(
        self,
        path: Path,
        form: type[Form],
        problems: Problems,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(form)
        self._problems = problems
        self._advance = advance

    def __iter__(self) -> Iterator[tuple[int, Form]]:
        """Yields the number of each line, from 1, and its content.

        Raises:
            DataError: If the file cannot be read to its end.
        """
        with open_lines(self._path) as reader:
            while not reader.ended:
                yield from self.part(reader, reader.line, LINES)
                self._advance(reader.bytes_read)

    def part(self, reader: LineReader, first: int, count: int) -> Iterator[tuple[int, Form]]:
        """Yields up to `count` lines from line `first` (from 0) of an opened file; see above."""
        for number, line in enumerate(reader.read(first, count), first + 1):
            try:
                decoded = self._decoder.decode(line)
            except UnicodeDecodeError as error:
                wrong = error.object[error.start]
                self._problems.add(number, f"not UTF-8: {error.reason} (0x{wrong:02x})")
                continue
            except (msgspec.MsgspecError, RecursionError) as error:
                if bytes(line).strip():
                    self._problems.add(number, str(error))
                continue
            yield number, decoded
        if reader.damage:
            raise DataError(f"{self._path}: damaged after line {reader.line:,}: {reader.damage}")


@contextmanager
def open_lines(path: Path, indexes: IndexCache | None = None) -> Iterator[LineReader]:
    """A reader of the lines of a file, closed in the end.

    Raises:
        DataError: If the file cannot be opened.
    """
    try:
        reader = LineReader(str(path), indexes)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield reader
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class Mention:
    """A place in a sentence that means an entity.

    Attributes:
        position: Its position among the mentions of the line, from 0.
        start: Its first character in the sentence.
        end: The character after its last one.
        alias: The look-up key of its candidates, which may differ from the text.
        entities: The ids of the entities that it means: one, or several that are all right.
        is_gold: False for a weak label, which is trained on but not scored.
        slices: The line's own slices that it is in; a weak label is in none.
    """

    position: int
    start: int
    end: int
    alias: str
    entities: tuple[str, ...]
    is_gold: bool
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence with its mentions.

    Attributes:
        number: The number of the line in its file, from 1.
        sentence: The unique number of the sentence.
        text: The sentence.
        document: The document that it is from: `document`, or in Bootleg's lines `parent_qid`; the
            sentence's number if the line names none.
        mentions: The mentions, in the order of the line.
    """

    number: int
    sentence: int
    text: str
    document: str
    mentions: tuple[Mention, ...]


class _Raw(msgspec.Struct):
    sentence: str
    sent_idx_unq: Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)]
    aliases: list[str]
    qids: list[str | list[str]]
    gold: list[bool]
    spans: list[tuple[int, int]] | None = None
    char_spans: list[tuple[int, int]] | None = None
    slices: dict[str, dict[str, float]] | None = None
    document: str | int | None = None
    parent_qid: str | int | None = None


FIELDS = _Raw.__struct_fields__


"""The fields of a line."""


@dataclass(frozen=True)
class Scan:
    """What a first pass over a file has found.

    Attributes:
        lines: The number of its lines.
        slices: The names of the slices that lines define, sorted.
        unused: The fields that are not used, each with the number of lines that have it.
    """

    lines: int
    slices: list[str]
    unused: dict[str, int]


def scan_lines(path: Path, advance: Callable[[int], None] = lambda _: None) -> Scan:
    """Reads the names of all fields and slices; lines that are invalid are left to `read_lines`.

    Raises:
        DataError: If the file cannot be read, or a field is most likely a misspelled one.
    """
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    unused: Counter[str] = Counter()
    slices: set[str] = set()
    first: dict[str, int] = {}
    with open_lines(path) as reader:
        while not reader.ended:
            start = reader.line + 1
            for number, line in enumerate(reader.read(reader.line, LINES), start):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    fields = decoder.decode(line)
                    for name in fields.keys() - {*FIELDS}:
                        unused[name] += 1
                        first.setdefault(name, number)
                    slices |= decoder.decode(fields.get("slices", b"{}")).keys()
            advance(reader.bytes_read)
        if reader.damage:
            raise DataError(f"{path}: damaged after line {reader.line:,}: {reader.damage}")
        count = reader.line
    problems = Problems(path)
    for name in unused.keys() - {*_UNUSED}:
        if similar := nearest(name, FIELDS):
            problems.add(first[name], f"there is no field {name!r}{similar}")
    problems.close()
    return Scan(count, sorted(slices), dict(unused.most_common()))


def read_lines(
    path: Path, problems: Problems, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Line]:
    """Yields the lines of a file.

    Args:
        path: A `.jsonl(.gz|.zst)` file.
        problems: Collects the lines that are invalid, which are left out. The caller may add
            to it, and closes it at the end.
        advance: Called periodically with the number of bytes read.

    Raises:
        DataError: If the file cannot be read, or has too many problems.
    """
    return _valid(JsonLines(path, _Raw, problems, advance), problems)


def read_part(
    path: Path, problems: Problems, reader: LineReader, first: int, count: int
) -> Iterator[Line]:
    """Yields up to `count` lines from line `first` (from 0) of an opened file; see `read_lines`."""
    return _valid(JsonLines(path, _Raw, problems).part(reader, first, count), problems)


def _valid(lines: Iterable[tuple[int, _Raw]], problems: Problems) -> Iterator[Line]:
    for number, raw in lines:
        reasons = list(_problems(raw))
        for reason in reasons:
            problems.add(number, reason)
        if not reasons:
            yield _line(number, raw)


def _problems(raw: _Raw) -> Iterator[str]:
    """Yields the problems of a line."""
    spans = raw.spans if raw.char_spans is None else raw.char_spans
    if spans is None:
        yield "neither spans (in words) nor char_spans (in characters)"
        return
    name = "spans" if raw.char_spans is None else "char_spans"
    lists: dict[str, list[Any]] = {
        "aliases": raw.aliases,
        "qids": raw.qids,
        name: spans,
        "gold": raw.gold,
    }
    if len({len(values) for values in lists.values()}) > 1:
        found = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
        yield f"lists of unequal lengths: {found}"
        return
    unit = "words" if raw.char_spans is None else "characters"
    length = len(_WORD.findall(raw.sentence)) if unit == "words" else len(raw.sentence)
    for position, (start, end) in enumerate(spans):
        if not 0 <= start < end <= length:
            yield (
                f"{name}[{position}] is [{start}, {end}]; the sentence has {length} {unit}, and a "
                "mention has one or more"
            )
        elif unit == "characters" and raw.sentence[start:end].isspace():
            yield f"{name}[{position}] is [{start}, {end}], which is only white space"
    for position, own in enumerate(raw.qids):
        if not own:
            yield f"qids[{position}] is empty; expected an id, or a list of those that are right"
    yield from _slice_problems(raw.slices or {}, len(raw.aliases))


def _slice_problems(slices: Mapping[str, Mapping[str, float]], mentions: int) -> Iterator[str]:
    positions = {str(position) for position in range(mentions)} if slices else {}
    for name, members in slices.items():
        if name == ALL_MENTIONS:
            yield f"slices: {ALL_MENTIONS} is reserved for all gold mentions; leave it out"
        for position in members:
            if position not in positions:
                yield f"slices: {name} names mention {position!r}; the line has {mentions} mentions"


def _line(number: int, raw: _Raw) -> Line:
    spans = raw.char_spans
    if spans is None:
        words = word_spans(raw.sentence).tolist()
        spans = [(words[start][0], words[end - 1][1]) for start, end in raw.spans or []]
    slices = raw.slices or {}
    mentions = tuple(
        Mention(
            position=position,
            start=start,
            end=end,
            alias=alias,
            entities=(own,) if isinstance(own, str) else tuple(dict.fromkeys(own)),
            is_gold=is_gold,
            slices=_slices_of(position, slices) if is_gold and slices else (),
        )
        for position, ((start, end), alias, own, is_gold) in enumerate(
            zip(spans, raw.aliases, raw.qids, raw.gold, strict=True)
        )
    )
    document = raw.document if raw.document is not None else raw.parent_qid
    document = raw.sent_idx_unq if document is None else document
    return Line(number, raw.sent_idx_unq, raw.sentence, str(document), mentions)


def word_spans(text: str) -> np.ndarray:
    """The characters of each word of a text, int64 [words, 2]."""
    return np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)


def _slices_of(position: int, slices: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    key = str(position)
    return tuple(name for name, members in slices.items() if members.get(key, 0.0) > MEMBER)
