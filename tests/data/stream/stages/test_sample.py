"""Which metadata types a document is rendered with."""

from __future__ import annotations

from dataclasses import replace

from bsmeta.data.stream.stages.items import NumberedLine, ReadDocument
from bsmeta.data.stream.stages.sample import WindowSampler
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.sampling import TypeSampler
from tests.data.stream.stages.helpers import TITLES, read, title_line, window_of

HALF = replace(TITLES, metadata_probability=0.5)
LINE = title_line("a text", "A")


def drawn(epoch: int, seed: int, first: int = 0) -> str:
    """For 32 equal documents, x for those that get their title."""
    window = replace(window_of([LINE] * 32, first), epoch=epoch)
    sampler = WindowSampler(TypeSampler(HALF), window, seed)
    decoder = DocumentDecoder(HALF)
    types = []
    for index, number in enumerate(window.numbers):
        document = ReadDocument(NumberedLine(index, number, LINE), decoder.decode(LINE))
        types.append(sampler.sample(document).types)
    assert set(types) == {(), ("title",)}
    return "".join("x" if keys else "." for keys in types)


def test_a_document_gets_the_types_that_it_has() -> None:
    sampler = WindowSampler(TypeSampler(TITLES), window_of([LINE]), 1)
    assert sampler.sample(read(LINE)).types == ("title",)
    assert sampler.sample(read(title_line("a text"))).types == ()


def test_the_draw_depends_on_seed_epoch_and_number_alone() -> None:
    assert drawn(0, 1) == ".x.x...xx.xxx.x.x.xxxxx...xx.xx."
    assert drawn(0, 1, first=8)[:24] == drawn(0, 1)[8:]
    assert len({drawn(0, 1), drawn(1, 1), drawn(0, 2)}) == 3
