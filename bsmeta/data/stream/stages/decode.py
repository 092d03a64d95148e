"""First stage: the lines of a window become documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bsmeta.data.stream.stages.items import BadLine, NumberedLine, ReadDocument
from bsmeta.metadata.decoding import Decoder
from bsmeta.metadata.records import BadDocument


def decode_lines(
    lines: Iterable[NumberedLine | BadLine], decoder: Decoder
) -> Iterator[ReadDocument | BadLine]:
    """Yields the document of each line, or a `BadLine` if the line cannot be decoded."""
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue

        try:
            document = decoder.decode(line.line)
        except BadDocument as error:
            yield BadLine(line, error)
            continue
        yield ReadDocument(line, document)
