"""Texts of entities and windows around mentions, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.texts import EntityTexts, cut_window, load_tokenizer

PARTS = ("title", "types", "relations", "description")


def test_the_text_of_an_entity(world: Path, encoder: Path) -> None:
    table, tokenizer = EntityTable.open(world / "entities"), load_tokenizer(str(encoder))
    entity = table.ids.find("bass-money")

    def read(parts: tuple[str, ...], length: int = 40, is_masked: bool = False) -> str:
        texts = EntityTexts(table, tokenizer, parts, length)
        return tokenizer.decode(texts.tokens(entity, is_masked))

    parts = "[ent_type] money [ent_kg] near bank ( money ) [ent_desc] coin loan price"
    whole = f"[CLS] bass {parts} [SEP]"
    assert read(PARTS) == whole
    assert read(PARTS, is_masked=True) == whole.replace("bass", "[MASK]")
    assert read(("title",)) == "[CLS] bass [SEP]"
    assert read(("title", "description"), length=5) == "[CLS] bass [ent_desc] coin [SEP]"


@pytest.mark.parametrize(
    ("start", "end", "length", "expected"),
    [
        (4, 5, 7, [2, 3, -1, 4, -2, 5, 6]),
        (0, 1, 7, [-1, 0, -2, 1, 2, 3, 4]),
        (9, 10, 7, [5, 6, 7, 8, -1, 9, -2]),
        (2, 9, 8, [0, 1, -1, 2, 3, -2, 4, 5]),  # of a long mention, its beginning
        (4, 5, 20, [0, 1, 2, 3, -1, 4, -2, 5, 6, 7, 8, 9]),
    ],
)
def test_a_window_has_the_mention_between_markers(
    start: int, end: int, length: int, expected: list[int]
) -> None:
    assert cut_window(np.arange(10), start, end, (-1, -2), length).tolist() == expected
