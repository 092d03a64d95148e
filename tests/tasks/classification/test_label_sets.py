"""Sets of labels, and splits in which each label has its share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.tasks.classification.label_sets import make_membership, make_truth, split_label_sets

ROWS = st.lists(
    st.tuples(st.sets(st.integers(0, 5), max_size=4), st.integers(0, 30)), min_size=1, max_size=80
)


def test_the_true_labels_of_texts() -> None:
    assert make_truth([2, 0], 3, has_several=False).tolist() == [2, 0]
    assert make_truth([(0, 2), ()], 3, has_several=True).tolist() == [
        [True, False, True],
        [False, False, False],
    ]
    assert make_truth([], 3, has_several=True).shape == (0, 3)


def test_the_membership_of_sets() -> None:
    assert make_membership([(0, 2), (), (1,)], 3).toarray().tolist() == [
        [1, 0, 1],
        [0, 0, 0],
        [0, 1, 0],
    ]


def split(
    sets: list[tuple[int, ...]], units: list[int], fractions: list[float], seed: int = 1
) -> np.ndarray:
    _, numbers = np.unique(units, return_inverse=True)
    return split_label_sets(make_membership(sets, 6), numbers, fractions, seed)


def test_each_label_has_its_share_of_each_split() -> None:
    draw = np.random.default_rng(3)
    truth = draw.random((2000, 6)) < [0.5, 0.2, 0.1, 0.05, 0.02, 0.01]
    sets = [tuple(np.flatnonzero(row).tolist()) for row in truth]
    splits = split(sets, list(range(2000)), [0.7, 0.1, 0.2])
    for number, share in enumerate((0.7, 0.1, 0.2)):
        counts = truth[splits == number].sum(0)
        assert counts == pytest.approx(share * truth.sum(0), abs=3)
        assert (splits == number).sum() == pytest.approx(share * 2000, abs=40)


def test_a_label_with_few_rows_is_trained_on() -> None:
    sets = [(0,)] * 50 + [(1,)] + [(0, 2)]
    splits = split(sets, list(range(52)), [0.8, 0.1, 0.1])
    assert splits[50:].tolist() == [0, 0]


@settings(deadline=None)
@given(ROWS, st.integers(0, 3))
def test_every_row_has_a_split_that_does_not_divide_its_unit(
    rows: list[tuple[set[int], int]], seed: int
) -> None:
    sets = [tuple(sorted(labels)) for labels, _ in rows]
    units = [unit for _, unit in rows]
    splits = split(sets, units, [0.8, 0.0, 0.2], seed)
    assert {*splits.tolist()} <= {0, 2}
    for unit in {*units}:
        assert len({*splits[np.array(units) == unit].tolist()}) == 1
    assert split(sets, units, [0.8, 0.0, 0.2], seed).tolist() == splits.tolist()
