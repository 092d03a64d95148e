"""The items that pass from stage to stage, and how a stage is applied to them.

A line that cannot be used does not leave the flow where the problem is found: as a `BadLine`, it
passes all other stages unchanged, up to the stage that rejects it.
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
        window_index: Its index in the window.
        number: Its number in the shard.
    """

    window_index: int
    number: int
    line: Line


class BadLine(NamedTuple):
    """A line that cannot be used, and why."""

    source: NumberedLine
    error: BadDocument


@dataclass(slots=True)
class ReadDocument:
    """A decoded document, and the metadata types sampled for it."""

    source: NumberedLine
    document: Document
    types: tuple[str, ...] = ()


@dataclass(slots=True)
class WindowDocument:
    """A document of a window, rendered with the metadata sampled for it, and its chunks.

    Attributes:
        number: Its number in the shard.
        chunks: Empty until it is cut.
    """

    number: int
    rendered: Rendered
    chunks: list[Chunk] = field(default_factory=list)


def number_lines(window: Window) -> Iterator[NumberedLine | BadLine]:
    """Yields the lines of a window; if its shard is damaged after them, also a bad line."""
    for index, (number, line) in enumerate(zip(window.numbers, window.lines, strict=False)):
        yield NumberedLine(index, number, line)

    if window.damage:
        read = len(window.lines)
        number = window.numbers[read] if read < len(window.numbers) else window.numbers[-1] + 1
        nothing = NumberedLine(window_index=read, number=number, line=b"")
        yield BadLine(nothing, BadDocument("damaged_file", window.damage))


def apply_stage(
    stage: Callable[[ReadDocument], Result | None], documents: Iterable[ReadDocument | BadLine]
) -> Iterator[Result | BadLine]:
    """Yields the result of a stage for each document, except those for which it is None.

    If the stage raises `BadDocument`, a bad line takes the place of the document. Bad lines of
    earlier stages pass unchanged.
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
