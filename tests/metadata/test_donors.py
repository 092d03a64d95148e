"""Values that a document takes from other documents."""

from __future__ import annotations

from bsmeta.metadata.document import Document
from bsmeta.metadata.donors import Donors
from tests.metadata.helpers import entity_record, page


def values(document: Document, key: str) -> list[str]:
    return [str(record.value) for record in document.records(key)]


def test_shuffled_values_come_from_a_single_other_document() -> None:
    documents = [page(i, url=f"url {i}", title=f"title {i}") for i in range(6)]
    donors = Donors(documents, ["url", "title"], seed=0)
    lenders = set()
    for index, document in enumerate(documents):
        substituted = donors.replace_values(index, document, "shuffled")
        assert substituted.text == document.text
        (url,), (title,) = values(substituted, "url"), values(substituted, "title")
        assert url != f"url {index}"
        assert url.removeprefix("url ") == title.removeprefix("title ")
        lenders.add(url)
    assert len(lenders) == 6  # each lends once
    assert donors.replace_values(0, documents[0], "own") is documents[0]


def test_wrong_values_never_come_from_the_same_document() -> None:
    documents = [page(i, site="a" if i % 3 else "b") for i in range(9)]
    donors = Donors(documents, ["site"], seed=4)
    for index, document in enumerate(documents):
        (lent,) = values(donors.replace_values(index, document, "wrong"), "site")
        assert lent != values(document, "site")[0]


def test_matched_values_are_wrong_values_of_the_nearest_length() -> None:
    sites = ["abc", "abc", "abcd", "ab" * 10, "abc", "ba" * 9, "b" * 5]
    documents = [page(i, site=site) for i, site in enumerate(sites)]
    donors = Donors(documents, ["site"], seed=0)
    lent = [
        values(donors.replace_values(i, one, "matched"), "site")[0]
        for i, one in enumerate(documents)
    ]
    assert lent == ["abcd", "abcd", lent[2], "ba" * 9, "abcd", "ab" * 10, "abcd"]
    assert lent[2] in ("abc", "b" * 5)  # both one character away


def test_a_type_without_a_donor_is_left_out() -> None:
    documents = [page(0, site="a", only="x"), page(1, site="a")]
    donors = Donors(documents, ["site", "only"], seed=0)
    assert values(donors.replace_values(0, documents[0], "shuffled"), "site") == ["a"]
    assert not donors.replace_values(0, documents[0], "shuffled").has("only")
    assert not donors.replace_values(0, documents[0], "wrong").has("site")
    # The second document has no value of its own to replace.
    assert not donors.replace_values(1, documents[1], "shuffled").has("only")


def test_local_values_keep_the_positions_of_the_document() -> None:
    documents = [
        Document(
            "abcdef",
            None,
            {"entity": [entity_record("A", 0), entity_record("B", 2), entity_record("C", 4)]},
        ),
        Document("xyz", None, {"entity": [entity_record("X", 1), entity_record("Y", 2)]}),
    ]
    donors = Donors(documents, ["entity"], seed=0)
    substituted = donors.replace_values(0, documents[0], "shuffled")
    shown = [(one.value, one.char_start_idx) for one in substituted.records("entity")]
    assert shown == [("X", 0), ("Y", 2), ("X", 4)]
