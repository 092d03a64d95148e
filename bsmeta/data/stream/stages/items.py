"""The items that pass from stage to stage, and the application of a stage to them.

A line that cannot be used is not dropped where the problem is detected: it becomes a `BadLine`,
which passes through the following stages unchanged until a stage rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from bsmeta.data.stream.window import Window
from bsmeta.data.text.chunks import Chunk
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument, Line
from bsmeta.metadata.rendering import Rendered

Result = TypeVar("Result")


class NumberedLine(NamedTuple):
    """A line of a window.

    Attributes:
        window_index: Index of the line in the window.
        number: Number of the line in the shard, from 0.
        line: The content of the line.
    """

    window_index: int
    number: int
    line: Line


class BadLine(NamedTuple):
    """A line that cannot be used, and the reason."""

    source: NumberedLine
    error: BadDocument


@dataclass(slots=True)
class ReadDocument:
    """A decoded document, its line, and the metadata types sampled for it."""

    source: NumberedLine
    document: Document
    types: tuple[str, ...] = ()


@dataclass(slots=True)
class WindowDocument:
    """A document of a window, rendered with the metadata sampled for it, and its chunks.

    Attributes:
        number: Number of the document in the shard, from 0.
        chunks: The chunks of the document; empty until it is cut.
    """

    number: int
    rendered: Rendered
    chunks: list[Chunk] = field(default_factory=list)


def number_lines(window: Window) -> Iterator[NumberedLine | BadLine]:
    """Yields the lines of a window, then a `BadLine` if the shard is damaged after them."""
    for index, (number, line) in enumerate(zip(window.numbers, window.lines, strict=False)):
        yield NumberedLine(index, number, line)

    if window.damage:
        num_read = len(window.lines)
        number = window.numbers[-1] + 1
        if num_read < len(window.numbers):
            number = window.numbers[num_read]
        missing_line = NumberedLine(window_index=num_read, number=number, line=b"")
        yield BadLine(missing_line, BadDocument("damaged_file", window.damage))


def apply_stage(
    stage: Callable[[ReadDocument], Result | None], documents: Iterable[ReadDocument | BadLine]
) -> Iterator[Result | BadLine]:
    """Yields the result of a stage for each document; drops the document if the result is None.

    If the stage raises `BadDocument`, a `BadLine` replaces the document. Bad lines from earlier
    stages pass unchanged.
    """
    for document in documents:
        if isinstance(document, BadLine):
            yield document
            continue

        try:
            result = stage(document)
        except BadDocument as error:
            yield BadLine(document.source, error)
            continue
        if result is not None:
            yield result
