"""Reads files of JSON lines, and training lines in particular, and collects their problems.

A training line of Bootleg is a sentence with its mentions. The first generation has the spans of
mentions in words (`spans`), the second in characters (`char_spans`); both become characters.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from bsmeta.core.errors import DataError, suggest_nearest
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.caseless import make_caseless
from bsmeta.metadata.records import WholeLine

logger = logging.getLogger(__name__)

Form = TypeVar("Form")
Advance = Callable[[int], None]
"""A function that is called periodically with the number of bytes read."""

MAX_PROBLEMS = 20
"""Maximum number of problems that an error lists."""
LINE_BATCH_SIZE = 1000
"""Number of lines that are read together."""

ALL_MENTIONS = "final_loss"
"""The slice of all gold mentions, whose metrics have no prefix; lines must not define it."""
SLICE_THRESHOLD = 0.5
"""A mention is in a slice if its value in `slices` is greater."""

_WORD = re.compile(r"\S+")
_INT64_LIMIT = 1 << 63
_KNOWN_UNUSED = {"doc_sent_idx", "parent_title", "sources"}
"""Fields of Bootleg's own lines that training does not use."""


class Problems:
    """Collects the problems of a file, and raises them as one error.

    The error is raised by `close`, or as soon as there are `MAX_PROBLEMS`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._messages: list[str] = []

    def add(self, line: int | None, reason: str) -> None:
        """Adds a problem.

        Args:
            line: Number of the line, from 1; None: the file has no lines.

        Raises:
            DataError: If there are now `MAX_PROBLEMS` problems.
        """
        self._messages.append(reason if line is None else f"line {line:,}: {reason}")
        if len(self._messages) == MAX_PROBLEMS:
            self.close()

    def close(self) -> None:
        """Raises a DataError that lists the problems, if there are any."""
        count = len(self._messages)
        if count:
            extent = "the first " if count == MAX_PROBLEMS else ""
            problems = "1 problem" if count == 1 else f"{extent}{count} problems"
            messages = "\n  ".join(self._messages)
            raise DataError(f"{self.path}: {problems}; correct the file\n  {messages}")


class UnusedFields:
    """Counts the fields of lines that their type lacks; those that misspell a field are problems.

    Args:
        form: The type of the lines.
        problems: Receives the misspelled fields, each with its first line.
        known_unused: Fields that are never misspellings.

    Attributes:
        counts: Number of lines by unused field.
    """

    def __init__(
        self,
        form: type[msgspec.Struct],
        problems: Problems,
        known_unused: Collection[str] = frozenset(),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._fields = form.__struct_fields__
        self._problems = problems
        self._known_unused = known_unused
        self._decoder = JSONDecoder(dict[str, msgspec.Raw])

    def count_line(self, number: int, line: WholeLine) -> None:
        """Counts the unused fields of a line; other JSON than objects has none."""
        with suppress(msgspec.MsgspecError):
            self.count(number, self._decoder.decode(line))

    def count(self, number: int, names: Iterable[str]) -> None:
        """Counts the unused ones of the fields of a line.

        Raises:
            DataError: If there are now `MAX_PROBLEMS` problems.
        """
        for name in names:
            if name in self._fields:
                continue
            self.counts[name] += 1
            if self.counts[name] == 1 and name not in self._known_unused:
                similar = suggest_nearest(name, self._fields)
                if similar:
                    self._problems.add(number, f"there is no field {name!r}{similar}")


def warn_of_unused_fields(path: Path, counts: Mapping[str, int]) -> None:
    """Logs the fields of a file that are not used, with their numbers of lines."""
    if counts:
        fields = ", ".join(f"{name} ({count:,} lines)" for name, count in counts.items())
        logger.warning("%s: fields that are not used: %s", path, fields)


def read_json_lines(
    path: Path,
    form: type[Form],
    problems: Problems,
    advance: Advance = lambda _: None,
    unused: UnusedFields | None = None,
) -> Iterator[tuple[int, Form]]:
    """Yields the number (from 1) and the content of each line of a `.jsonl(.gz|.zst)` file.

    Empty lines are skipped.

    Args:
        form: The type of the content. Lines of other types are skipped, and added to `problems`.
        problems: The caller may add further problems, and must close it at the end.
        unused: Counts the fields of each line that `form` lacks; None: they are ignored.

    Raises:
        DataError: If the file cannot be read to its end, or has `MAX_PROBLEMS` problems.
    """
    return _decode_lines(_read_all_lines(path, advance), form, problems, unused)


def _read_all_lines(path: Path, advance: Advance) -> Iterator[tuple[int, WholeLine]]:
    """Yields the number (from 1) and the bytes of each line of a file."""
    try:
        reader = LineReader(str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    with closing(reader):
        while not reader.ended:
            yield from _read_numbered(reader, reader.line, LINE_BATCH_SIZE)
            advance(reader.bytes_read)


def _read_numbered(reader: LineReader, first: int, count: int) -> Iterator[tuple[int, WholeLine]]:
    """Yields up to `count` lines from line `first` (from 0) on, with their numbers from 1."""
    yield from enumerate(reader.read(first, count), first + 1)
    if reader.damage:
        raise DataError(f"{reader.path}: damaged after line {reader.line:,}: {reader.damage}")


def _decode_lines(
    lines: Iterable[tuple[int, WholeLine]],
    form: type[Form],
    problems: Problems,
    unused: UnusedFields | None = None,
) -> Iterator[tuple[int, Form]]:
    decoder = JSONDecoder(form)
    for number, line in lines:
        if unused is not None:
            unused.count_line(number, line)
        try:
            decoded = decoder.decode(line)
        except msgspec.MsgspecError as error:
            if bytes(line).strip():
                problems.add(number, str(error))
        else:
            yield number, decoded


class Mention(NamedTuple):
    """A mention of an entity in a sentence."""

    start: int  # in characters
    end: int
    alias: str  # by which its candidates are looked up; may differ from the text
    entities: tuple[str, ...]  # ids of its meanings: one, or several that are all right
    is_gold: bool  # False for a weak label, which is trained on but not scored
    slices: tuple[str, ...]  # slices of the line that contain it; none for a weak label


class Line(NamedTuple):
    """A sentence with its mentions."""

    number: int  # of the line in its file, from 1
    sentence: int  # `sent_idx_unq`
    text: str
    document: str  # `document` or `parent_qid`, or else the number of the sentence
    mentions: tuple[Mention, ...]


class _RawLine(msgspec.Struct):
    """The fields of a training line that are used."""

    sentence: str
    sent_idx_unq: Annotated[int, msgspec.Meta(ge=-_INT64_LIMIT, le=_INT64_LIMIT - 1)]
    aliases: list[str]
    qids: list[str | list[str]]
    gold: list[bool]
    spans: list[tuple[int, int]] | None = None
    char_spans: list[tuple[int, int]] | None = None
    slices: dict[str, dict[str, float]] | None = None
    document: str | int | None = None
    parent_qid: str | int | None = None


class FileScan(NamedTuple):
    """The results of a first pass over a file."""

    lines: int  # number of lines
    slices: list[str]  # names of the slices that lines define
    unused: dict[str, int]  # number of lines by unused field
    respelled: int  # aliases that are not in their caseless form


def scan_lines(path: Path, advance: Advance = lambda _: None) -> FileScan:
    """Collects the names of fields and slices of a file; invalid lines are ignored.

    Raises:
        DataError: If the file cannot be read, or an unknown field is similar to a known one.
    """
    decoder = JSONDecoder(dict[str, msgspec.Raw])
    alias_decoder = JSONDecoder(list[str])

    problems = Problems(path)
    unused = UnusedFields(_RawLine, problems, _KNOWN_UNUSED)
    slices: set[str] = set()
    number = 0
    respelled = 0
    for number, line in _read_all_lines(path, advance):
        with suppress(msgspec.MsgspecError):
            fields = decoder.decode(line)
            unused.count(number, fields)
            slices |= decoder.decode(fields.get("slices", b"{}")).keys()
            aliases = alias_decoder.decode(fields.get("aliases", b"[]"))
            respelled += sum(alias != make_caseless(alias) for alias in aliases)

    problems.close()
    counts = dict(unused.counts.most_common())
    return FileScan(number, sorted(slices), counts, respelled)


def read_lines(path: Path, problems: Problems, advance: Advance = lambda _: None) -> Iterator[Line]:
    """Yields the lines of a file; see `read_json_lines`."""
    return _convert_lines(read_json_lines(path, _RawLine, problems, advance), problems)


def read_part(reader: LineReader, problems: Problems, first: int, count: int) -> Iterator[Line]:
    """Yields up to `count` lines from line `first` (from 0) of an opened file."""
    raw_lines = _decode_lines(_read_numbered(reader, first, count), _RawLine, problems)
    return _convert_lines(raw_lines, problems)


def _convert_lines(lines: Iterable[tuple[int, _RawLine]], problems: Problems) -> Iterator[Line]:
    """Yields the valid lines; adds the problems of the others to `problems`."""
    for number, raw in lines:
        reasons = list(_find_problems(raw))
        for reason in reasons:
            problems.add(number, reason)
        if not reasons:
            yield _convert_line(number, raw)


def _find_problems(raw: _RawLine) -> Iterator[str]:
    """Yields the problems of a line: spans, lists of unequal lengths, entities and slices."""
    if raw.char_spans is not None:
        name = "char_spans"
        spans = raw.char_spans
        unit = "characters"
        length = len(raw.sentence)
    elif raw.spans is not None:
        name = "spans"
        spans = raw.spans
        unit = "words"
        length = len(_WORD.findall(raw.sentence))
    else:
        yield "neither spans (in words) nor char_spans (in characters)"
        return

    lists: dict[str, list[Any]] = {
        "aliases": raw.aliases,
        "qids": raw.qids,
        name: spans,
        "gold": raw.gold,
    }
    if len({*map(len, lists.values())}) > 1:
        lengths = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
        yield f"lists of unequal lengths: {lengths}"
        return

    for position, (start, end) in enumerate(spans):
        if not 0 <= start < end <= length:
            yield (
                f"{name}[{position}] is [{start}, {end}]; the sentence has {length} {unit}, and a "
                "mention has one or more"
            )
        elif unit == "characters" and raw.sentence[start:end].isspace():
            yield f"{name}[{position}] is [{start}, {end}], which is only white space"

    for position, qids in enumerate(raw.qids):
        if not qids:
            yield f"qids[{position}] is empty; expected an id, or a list of those that are right"

    if raw.slices:
        yield from _find_slice_problems(raw.slices, len(raw.aliases))


def _find_slice_problems(slices: dict[str, dict[str, float]], count: int) -> Iterator[str]:
    """Yields the problems of the slices of a line.

    Args:
        count: Number of mentions of the line.
    """
    positions = {str(position) for position in range(count)}
    for name, members in slices.items():
        if name == ALL_MENTIONS:
            yield f"slices: {ALL_MENTIONS} is reserved for all gold mentions; leave it out"
        for position in members:
            if position not in positions:
                yield f"slices: {name} names mention {position!r}; the line has {count} mentions"


def _convert_line(number: int, raw: _RawLine) -> Line:
    """Converts a valid line; spans become characters."""
    spans = raw.char_spans
    if spans is None:
        words = find_word_spans(raw.sentence).tolist()
        spans = [(words[start][0], words[end - 1][1]) for start, end in raw.spans or []]

    mentions = []
    fields = zip(spans, raw.aliases, raw.qids, raw.gold, strict=True)
    for position, ((start, end), alias, qids, is_gold) in enumerate(fields):
        entities = (qids,) if isinstance(qids, str) else tuple(dict.fromkeys(qids))
        slices = _list_slices(raw, position) if is_gold else ()
        mentions.append(Mention(start, end, alias, entities, is_gold, slices))

    document_names = (raw.document, raw.parent_qid, raw.sent_idx_unq)
    document = next(str(name) for name in document_names if name is not None)
    return Line(number, raw.sent_idx_unq, raw.sentence, document, tuple(mentions))


def _list_slices(raw: _RawLine, position: int) -> tuple[str, ...]:
    """Lists the slices of a line that contain the mention at a position."""
    slices = raw.slices or {}
    key = str(position)
    return tuple(
        name for name, members in slices.items() if members.get(key, 0.0) > SLICE_THRESHOLD
    )


def find_word_spans(text: str) -> np.ndarray:
    """Returns the start and end of each word of a text in characters, int64 [words, 2]."""
    return np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)
