"""Files of JSON lines, with their problems reported together; and training lines.

A training line of Bootleg is a sentence with its mentions. The first generation counts the words of
a mention (`spans`), the second its characters (`char_spans`); both become characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from bsmeta.core.errors import DataError, nearest
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.caseless import caseless
from bsmeta.metadata.records import WholeLine

Form = TypeVar("Form")
Advance = Callable[[int], None]  # called periodically with the number of bytes read

LISTED = 20  # problems that an error lists
LINES = 1000  # lines that are read at a time
ALL_MENTIONS = "final_loss"
"""The slice of every gold mention; lines must not define it. Its metrics have no prefix."""
MEMBER = 0.5  # a mention is in a slice if its value there is greater
_WORD = re.compile(r"\S+")
_INT64 = 1 << 63
_UNUSED = {"doc_sent_idx", "parent_title", "sources"}
"""Fields of Bootleg's own lines that mean nothing to the training."""


class Problems:
    """The problems of a file; reading ends when enough of them are known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: list[str] = []

    def add(self, line: int | None, reason: str) -> None:
        """Adds a problem of a line, numbered from 1; None in a file without lines.

        Raises:
            DataError: If it is the last one to be listed.
        """
        self._found.append(reason if line is None else f"line {line:,}: {reason}")
        if len(self._found) == LISTED:
            self.close()

    def close(self) -> None:
        """Raises a DataError that lists the problems, if there are any."""
        count = len(self._found)
        if count:
            extent = "the first " if count == LISTED else ""
            named = "1 problem" if count == 1 else f"{extent}{count} problems"
            listed = "\n  ".join(self._found)
            raise DataError(f"{self.path}: {named}; correct the file\n  {listed}")


def json_lines(
    path: Path, form: type[Form], problems: Problems, advance: Advance = lambda _: None
) -> Iterator[tuple[int, Form]]:
    """Yields the number of each line of a `.jsonl(.gz|.zst)` file, from 1, and its content.

    Empty lines are skipped. `problems` collects lines that are not of the type `form`, which are
    left out; the caller may add to it, and closes it at the end.

    Raises:
        DataError: If the file cannot be read to its end, or has too many problems.
    """
    return _decoded(_all_lines(path, advance), form, problems)


def _all_lines(path: Path, advance: Advance) -> Iterator[tuple[int, WholeLine]]:
    try:
        reader = LineReader(str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    with closing(reader):
        while not reader.ended:
            yield from _numbered(reader, reader.line, LINES)
            advance(reader.bytes_read)


def _numbered(reader: LineReader, first: int, count: int) -> Iterator[tuple[int, WholeLine]]:
    yield from enumerate(reader.read(first, count), first + 1)
    if reader.damage:
        raise DataError(f"{reader.path}: damaged after line {reader.line:,}: {reader.damage}")


def _decoded(
    lines: Iterable[tuple[int, WholeLine]], form: type[Form], problems: Problems
) -> Iterator[tuple[int, Form]]:
    decoder = JSONDecoder(form)
    for number, line in lines:
        try:
            decoded = decoder.decode(line)
        except msgspec.MsgspecError as error:
            if bytes(line).strip():
                problems.add(number, str(error))
        else:
            yield number, decoded


class Mention(NamedTuple):
    """A place in a sentence (in characters) that means an entity."""

    start: int
    end: int
    alias: str  # look-up key of its candidates in any case, which may differ from the text
    entities: tuple[str, ...]  # the ids that it means: one, or several that are all right
    is_gold: bool  # False for a weak label, which is trained on but not scored
    slices: tuple[str, ...]  # the line's own slices that it is in; none of a weak label


class Line(NamedTuple):
    """A sentence with its mentions."""

    number: int  # of the line in its file, from 1
    sentence: int  # its unique number
    text: str
    document: str  # the one that the line names, or else the number of the sentence
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


class Scan(NamedTuple):
    """What a first pass over a file has found."""

    lines: int
    slices: list[str]
    unused: dict[str, int]  # field that is not used -> lines that have it
    respelled: int  # aliases that are looked up in another form than that of the line


def scan_lines(path: Path, advance: Advance = lambda _: None) -> Scan:
    """Reads the names of all fields and slices; lines that are invalid are left to `read_lines`.

    Raises:
        DataError: If the file cannot be read, or a field is most likely a misspelled one.
    """
    decoder = JSONDecoder(dict[str, msgspec.Raw])
    alias_decoder = JSONDecoder(list[str])
    used = _Raw.__struct_fields__
    unused: Counter[str] = Counter()
    slices: set[str] = set()
    first: dict[str, int] = {}
    number = respelled = 0
    for number, line in _all_lines(path, advance):
        with suppress(msgspec.MsgspecError):
            fields = decoder.decode(line)
            for name in fields.keys() - {*used}:
                unused[name] += 1
                first.setdefault(name, number)
            slices |= decoder.decode(fields.get("slices", b"{}")).keys()
            aliases = alias_decoder.decode(fields.get("aliases", b"[]"))
            respelled += sum(alias != caseless(alias) for alias in aliases)
    problems = Problems(path)
    for name in unused.keys() - _UNUSED:
        if similar := nearest(name, used):
            problems.add(first[name], f"there is no field {name!r}{similar}")
    problems.close()
    return Scan(number, sorted(slices), dict(unused.most_common()), respelled)


def read_lines(path: Path, problems: Problems, advance: Advance = lambda _: None) -> Iterator[Line]:
    """Yields the lines of a file; see `json_lines`."""
    return _valid(json_lines(path, _Raw, problems, advance), problems)


def read_part(reader: LineReader, problems: Problems, first: int, count: int) -> Iterator[Line]:
    """Yields up to `count` lines from line `first` (from 0) of an opened file."""
    return _valid(_decoded(_numbered(reader, first, count), _Raw, problems), problems)


def _valid(lines: Iterable[tuple[int, _Raw]], problems: Problems) -> Iterator[Line]:
    for number, raw in lines:
        reasons = list(_problems(raw))
        for reason in reasons:
            problems.add(number, reason)
        if not reasons:
            yield _line(number, raw)


def _problems(raw: _Raw) -> Iterator[str]:
    name, spans = "char_spans", raw.char_spans
    unit, length = "characters", len(raw.sentence)
    if spans is None:
        name, spans = "spans", raw.spans
        unit, length = "words", len(_WORD.findall(raw.sentence))
    if spans is None:
        yield "neither spans (in words) nor char_spans (in characters)"
        return
    lists: dict[str, list[Any]] = {"aliases": raw.aliases, "qids": raw.qids, name: spans}
    lists["gold"] = raw.gold
    if len({*map(len, lists.values())}) > 1:
        found = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
        yield f"lists of unequal lengths: {found}"
        return
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
    slices, count = raw.slices or {}, len(raw.aliases)
    positions = {str(position) for position in range(count)} if slices else ()
    for name, members in slices.items():
        if name == ALL_MENTIONS:
            yield f"slices: {ALL_MENTIONS} is reserved for all gold mentions; leave it out"
        for place in members:
            if place not in positions:
                yield f"slices: {name} names mention {place!r}; the line has {count} mentions"


def _line(number: int, raw: _Raw) -> Line:
    spans = raw.char_spans
    if spans is None:
        words = word_spans(raw.sentence).tolist()
        spans = [(words[start][0], words[end - 1][1]) for start, end in raw.spans or []]
    slices = (raw.slices or {}).items()
    mentions = []
    for position, (span, alias, own, is_gold) in enumerate(
        zip(spans, raw.aliases, raw.qids, raw.gold, strict=True)
    ):
        entities = (own,) if isinstance(own, str) else tuple(dict.fromkeys(own))
        of = (name for name, members in slices if members.get(str(position), 0.0) > MEMBER)
        mentions.append(Mention(*span, alias, entities, is_gold, tuple(of) if is_gold else ()))
    documents = (raw.document, raw.parent_qid, raw.sent_idx_unq)
    document = next(str(name) for name in documents if name is not None)
    return Line(number, raw.sent_idx_unq, raw.sentence, document, tuple(mentions))


def word_spans(text: str) -> np.ndarray:
    """The characters of each word of a text, int64 [words, 2]."""
    return np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)
