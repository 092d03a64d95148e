"""Splits are stratified, and neither a folded text nor a group is in two of them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bsmeta.config.classification import ClassificationConfig
from bsmeta.tasks.classification.checks import value_problems
from bsmeta.tasks.classification.splits import split_rows
from bsmeta.tasks.classification.store import open_examples
from tests.tasks.classification.helpers import bert_tokenizer, data_config, write_csv

LEANINGS = Path(__file__).resolve().parents[4] / "shared/data/classification/leanings.csv"
SPLITS = ("train", "validation", "test")
TOKENIZER = bert_tokenizer()
FRACTIONS = [0.8, 0.1, 0.1]


def test_each_label_has_its_share_of_each_split() -> None:
    labels = np.repeat([0, 1, 2], [700, 200, 100])
    found = split_rows(labels, None, FRACTIONS, ("a", "b", "c"), seed=1)
    counts = [np.bincount(labels[found == split]).tolist() for split in range(3)]
    assert counts == [[560, 160, 80], [70, 20, 10], [70, 20, 10]]


def test_the_seed_determines_the_splits() -> None:
    labels = np.arange(200) % 2
    first = split_rows(labels, None, FRACTIONS, ("a", "b"), seed=1)
    assert (first == split_rows(labels, None, FRACTIONS, ("a", "b"), seed=1)).all()
    assert (first != split_rows(labels, None, FRACTIONS, ("a", "b"), seed=2)).any()


def test_a_fraction_of_zero_is_no_split() -> None:
    labels = np.arange(100) % 2
    for groups in (None, np.arange(100) // 4):
        found = split_rows(labels, groups, [0.9, 0, 0.1], ("a", "b"), seed=0)
        assert 5 <= (found == 2).sum() <= 15
        assert not (found == 1).any()
        assert not split_rows(labels, groups, [1, 0, 0], ("a", "b"), seed=0).any()


@given(
    labels=st.lists(st.integers(0, 2), min_size=30, max_size=200),
    groups=st.none() | st.integers(3, 40),
    fractions=st.sampled_from(
        [[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.7, 0, 0.3], [0.6, 0.15, 0.25]]
    ),
    seed=st.integers(0, 9),
)
def test_groups_are_whole_and_no_split_is_empty(
    labels: list[int], groups: int | None, fractions: list[float], seed: int
) -> None:
    numbers = np.array([*labels, *(range(3))])
    owners = None if groups is None else np.arange(len(numbers)) * 7 % groups
    units = np.arange(len(numbers)) if owners is None else owners
    assume(all(len({*units[numbers == label].tolist()}) >= 3 for label in range(3)))
    found = split_rows(numbers, owners, fractions, "abc", seed)
    assert {*found.tolist()} == {n for n in range(3) if fractions[n]}
    if owners is not None:
        for first, second in combinations(range(3), 2):
            assert not {*owners[found == first]} & {*owners[found == second]}


def test_many_groups_are_divided_alike() -> None:
    groups = np.repeat(np.arange(5000), 1 + np.arange(5000) % 7)
    labels = (groups % 5 < 2).astype(int)
    labels[groups < 4] = 2
    labels[5::4000] = 3  # in five groups, and in none of them the commonest
    found = split_rows(labels, groups, FRACTIONS, "abcd", seed=3)
    shares = np.bincount(found) / len(found)
    assert shares == pytest.approx(FRACTIONS, abs=0.01)
    for split in range(3):
        assert np.mean(labels[found == split] == 1) == pytest.approx(np.mean(labels == 1), abs=0.02)
        for other in range(split):
            assert not {*groups[found == split]} & {*groups[found == other]}
    assert (found == split_rows(labels, groups, FRACTIONS, "abcd", seed=3)).all()


@pytest.mark.parametrize("split_by", [None, "address"])
@pytest.mark.skipif(not LEANINGS.exists(), reason=f"{LEANINGS} is not on this machine")
def test_the_splits_of_the_addresses(tmp_path: Path, split_by: str | None) -> None:
    config = data_config(
        LEANINGS, database=str(tmp_path / "a.sqlite"), label_column="leaning", split_by=split_by
    )
    examples = open_examples(config, TOKENIZER)
    rows, groups, shares = {}, {}, {}
    for split in SPLITS:
        chunks = examples.read(examples.chunks(split))
        rows[split] = {chunk.source for chunk in chunks}
        assert rows[split] == {*examples.sources(split).tolist()}
        groups[split] = {*examples.groups(split)}
        counts = examples.label_counts(split)
        shares[split] = counts["liberal"] / sum(counts.values())
    assert sum(map(len, rows.values())) == 5845
    for first, second in combinations(SPLITS, 2):
        assert not rows[first] & rows[second]
        assert not groups[first] & groups[second]
    if split_by:
        assert [len(groups[split]) for split in SPLITS] == [54, 6, 5]
        assert all(0.5 < share < 0.6 for share in shares.values())
    else:
        assert [len(rows[split]) for split in SPLITS] == [4675, 585, 585]
        assert max(shares.values()) - min(shares.values()) < 0.002


def test_a_column_with_the_splits(tmp_path: Path) -> None:
    names = ["train", "Training", "dev", "val", " test ", "TEST", "validation", "train"]
    rows = [(f"stop {n}", "ab"[n // 2 % 2], name) for n, name in enumerate(names)]
    csv = write_csv(tmp_path / "table.csv", rows, ["text", "label", "part"])
    config = data_config(csv, split_column="part", split_by="text")
    assert not list(value_problems(ClassificationConfig(data_config=config)))
    examples = open_examples(config, TOKENIZER)
    assert [examples.sources(split).tolist() for split in SPLITS] == [[1, 2, 8], [3, 4, 7], [5, 6]]
