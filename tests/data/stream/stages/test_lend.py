"""Documents get the values of others."""

from __future__ import annotations

import pytest

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.stream.stages.decode import decode_lines
from bsmeta.data.stream.stages.items import BadLine, number_lines
from bsmeta.data.stream.stages.lend import Lender
from bsmeta.data.stream.window import Window
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.records import BadDocument
from tests.data.stream.stages.helpers import TITLES, title_line, window_of

DECODER = DocumentDecoder(TITLES)


def lent_titles(window: Window, seed: int = 1) -> list[tuple[str, list[str]]]:
    """Text and titles of each good document."""
    lender = Lender(window, DECODER, ["title", "url"], seed)
    titles: list[tuple[str, list[str]]] = []
    for document in decode_lines(number_lines(window), DECODER):
        if not isinstance(document, BadLine):
            lent = lender.lend(document).document
            titles.append((lent.text, [str(record.value) for record in lent.records("title")]))
    return titles


def test_two_documents_exchange_their_values() -> None:
    window = window_of([title_line("one", "A"), title_line("two", "B")])
    assert lent_titles(window) == [("one", ["B"]), ("two", ["A"])]


def test_bad_and_bare_documents_lend_nothing() -> None:
    lines = [title_line("one", "A"), b"{", title_line("bare"), title_line("two", "B")]
    assert lent_titles(window_of(lines)) == [("one", ["B"]), ("bare", []), ("two", ["A"])]


def test_a_value_without_a_donor_is_dropped() -> None:
    assert lent_titles(window_of([title_line("one", "A"), title_line("bare")])) == [
        ("one", []),
        ("bare", []),
    ]


def test_every_value_is_lent_once() -> None:
    window = window_of([title_line(str(number), f"T{number}") for number in range(8)])
    for seed in (1, 2):
        titles = dict(lent_titles(window, seed))
        values = sorted(titles[str(number)][0] for number in range(8))
        assert values == [f"T{number}" for number in range(8)]
        assert all(titles[str(number)] != [f"T{number}"] for number in range(8))
    assert lent_titles(window, 1) != lent_titles(window, 2)


def test_invalid_records_of_the_borrower_make_the_borrower_bad() -> None:
    tags = MetadataConfig(metadata_list=["html"])
    decoder = DocumentDecoder(tags)
    good = (
        b'{"text": "a b", "metadata_html": [{"key": "html", "type": "local", "value": "b", '
        b'"char_start_idx": 0, "char_end_idx": 1}]}'
    )
    wrong = b'{"text": "a b", "metadata_html": [{"key": "html", "type": "local"}]}'
    window = window_of([good, wrong])
    lender = Lender(window, decoder, ["html"], 1)
    first, second = decode_lines(number_lines(window), decoder)
    assert not isinstance(first, BadLine)
    assert not isinstance(second, BadLine)
    lender.lend(first)
    with pytest.raises(BadDocument, match="^wrong_type: metadata_html: "):
        lender.lend(second)
