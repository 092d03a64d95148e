"""Candidates, their priors without the own document, and the popularity of entities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bsmeta.tasks.disambiguation.data import (
    DocumentCounts,
    compute_popularity_percentiles,
    find_candidates,
)
from bsmeta.tasks.disambiguation.entities import EntityTable


@pytest.fixture(scope="module")
def table(world: Path) -> EntityTable:
    return EntityTable.open(world / "entities")


def numbers(table: EntityTable, *ids: str) -> np.ndarray:
    return np.array([[table.ids.find(one)] for one in ids])


def test_candidates_are_those_of_the_alias_of_a_mention(table: EntityTable) -> None:
    bank, bass = table.aliases.find("bank"), table.aliases.find("bass")
    gold = numbers(table, "bank-money", "bank-river", "seal-river")
    found = find_candidates(table, [bank, bass, -1], gold)
    ids = [[table.ids[e] if e >= 0 else None for e in row] for row in found.entities]
    assert ids == [
        ["bank-river", "bank-money", "unseen"], ["bass-river", "bass-money", None], [None] * 3,
    ]  # fmt: skip
    assert found.gold_position.tolist() == [1, -1, -1]
    # Scores 10, 9 and 1, each with 0.1 added.
    assert found.prior[0, :, 0] == pytest.approx(np.log(np.array([10.1, 9.1, 1.1]) / 20.3))
    assert found.prior[0, :, 1] == pytest.approx(-np.log([1, 2, 3]))
    assert found.floor[0] == pytest.approx([np.log(0.1 / 20.3), -np.log(4)])


def test_the_prior_can_leave_the_own_document_out(table: EntityTable) -> None:
    bank = table.aliases.find("bank")
    river, money = numbers(table, "bank-river", "bank-money")[:, 0].tolist()
    counts = DocumentCounts(
        np.array([7, 7, 7, 8]), np.array([bank] * 4), np.array([river, river, money, money])
    )
    found = find_candidates(
        table,
        [bank, bank, bank],
        np.array([[river], [money], [money]]),
        np.array([7, 8, 9]),
        counts,
    )
    assert np.exp(found.prior[:, :, 0]) == pytest.approx(np.array([
        [8.1 / 17.3, 8.1 / 17.3, 1.1 / 17.3],  # 10 - 2, 9 - 1, 1
        [10.1 / 19.3, 8.1 / 19.3, 1.1 / 19.3],
        [10.1 / 20.3, 9.1 / 20.3, 1.1 / 20.3],
    ]))  # fmt: skip


def test_fewer_candidates_keep_the_entity_of_the_mention(table: EntityTable) -> None:
    bank = table.aliases.find("bank")
    gold = numbers(table, "unseen", "bank-river", "bass-river")
    found = find_candidates(table, [bank] * 3, gold).limit(2)
    ids = [[table.ids[entity] for entity in row] for row in found.entities]
    assert ids == [
        ["bank-river", "unseen"],
        ["bank-river", "bank-money"],
        ["bank-river", "bank-money"],
    ]
    assert found.gold_position.tolist() == [1, 0, -1]
    assert np.exp(found.prior[0, :, 0]) == pytest.approx(np.array([10.1, 1.1]) / 20.3)


def test_several_entities_of_a_mention(table: EntityTable) -> None:
    bank, bass = table.aliases.find("bank"), table.aliases.find("bass")
    pairs = numbers(table, "unseen", "bank-money").T
    alone = np.array([[table.ids.find("seal-river"), -1]])
    found = find_candidates(table, [bank, bass], np.concatenate([pairs, alone]))
    assert found.is_gold.tolist() == [[False, True, True], [False, False, False]]
    assert found.gold_position.tolist() == [1, -1]
    few = found.limit(2)  # both entities, without the most popular candidate
    assert few.entities[0].tolist() == [table.ids.find("bank-money"), table.ids.find("unseen")]
    assert few.is_gold.tolist() == [[True, True], [False, False]]
    assert found.limit(1).entities[0].tolist() == [table.ids.find("bank-money")]


def test_percentiles_of_the_entities_in_the_training_data() -> None:
    counts = np.array([0, 1, 2, 3, 3, 0])
    assert compute_popularity_percentiles(counts) == pytest.approx([0, 0, 1 / 3, 2 / 3, 2 / 3, 0])
    assert compute_popularity_percentiles(np.zeros(2, np.int64)).tolist() == [0, 0]
