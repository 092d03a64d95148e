"""The sums that travel beside the tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bsmeta.data.stream.counts import count_documents, count_skipped, list_count_names
from bsmeta.data.stream.reasons import REASONS

KEYS = ["title", "url"]


def test_names_have_the_order_of_the_counts() -> None:
    names = list_count_names(KEYS)
    assert names[:5] == [
        "documents",
        "documents_with_metadata",
        "documents/title",
        "documents/url",
        "bad_documents/bad_content_spans",
    ]
    assert names[-4:] == [
        "test_overlap",
        "empty_text",
        "half_used_at_phase_switch",
        "metadata_tokens_left_out",
    ]
    assert len(names) == 4 + len(REASONS) + 4


def test_a_document_counts_with_its_first_chunk() -> None:
    types = np.array([3, 3, 0, 2], np.int32)
    opens = np.array([True, False, True, True])
    counts = count_documents(types, opens, KEYS)
    assert counts[:, :4].tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1]]
    assert counts.shape == (4, len(list_count_names(KEYS)))
    assert not counts[:, 4:].any()


def test_skipped_documents_count_under_their_reason() -> None:
    counts = count_skipped(Counter(not_json=2, empty_text=1), KEYS)
    named = dict(zip(list_count_names(KEYS), counts.tolist(), strict=True))
    assert {name: count for name, count in named.items() if count} == {
        "bad_documents/not_json": 2,
        "empty_text": 1,
    }


def test_a_reason_without_a_count_raises_an_error() -> None:
    with pytest.raises(AssertionError):
        count_skipped(Counter(too_odd=1), KEYS)
