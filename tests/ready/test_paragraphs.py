"""The table of the ready-made classifier."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from bsmeta.ready.paragraphs import write_paragraphs


@pytest.mark.parametrize(
    ("max_texts", "sizes"),
    [
        (None, {"train": 5116, "validation": 1228, "test": 416}),
        (100, {"train": 100, "validation": 100, "test": 100}),
    ],
)
def test_no_page_and_no_text_is_in_two_splits(
    tmp_path: Path, max_texts: int | None, sizes: dict[str, int]
) -> None:
    write_paragraphs(tmp_path / "table.jsonl", max_texts)
    rows = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert Counter(row["split"] for row in rows) == sizes
    assert len({row["text"] for row in rows}) == len(rows)
    assert rows[0] == {
        "text": "This is a helper macro for making correct pretty_names() with RTTI off.",
        "label": "Boost",
        "page": "https://www.boost.org/doc/libs/1_81_0/BOOST_TYPE_IN_1_3_41_8_2_6.html",
        "split": "test",
    }

    splits_by_page = defaultdict(set)
    for row in rows:
        splits_by_page[row["page"]].add(row["split"])
    assert {len(splits) for splits in splits_by_page.values()} == {1}
    for split in sizes:
        labels = {row["label"] for row in rows if row["split"] == split}
        assert labels == {"Python", "PostgreSQL", "Boost", "pandas", "SciPy"}
