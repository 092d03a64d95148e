"""Sets of labels of texts that may have several labels, as arrays and in stratified splits.

The database stores each distinct set once, and for a row the index of its set where it otherwise
has the index of its label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array

Labels = int | tuple[int, ...]
"""Index of a text's label; or, if a text may have several labels, their indexes, ascending."""


def make_truth(labels: Sequence[Labels], label_count: int, *, has_several: bool) -> np.ndarray:
    """Makes the array of the true labels of texts.

    Returns:
        int64 [texts]; with several labels a text, bool [texts, labels].
    """
    if not has_several:
        return np.array(labels, np.int64)

    truth = np.zeros((len(labels), label_count), bool)
    for row, numbers in enumerate(labels):
        assert isinstance(numbers, tuple)
        truth[row, list(numbers)] = True
    return truth


def make_membership(sets: Iterable[Sequence[int]], label_count: int) -> csr_array:
    """Makes the sparse indicator matrix of the labels of sets, int64 [sets, labels]."""
    ends = [0]
    columns: list[int] = []
    for numbers in sets:
        columns.extend(numbers)
        ends.append(len(columns))
    ones = np.ones(len(columns), np.int64)
    return csr_array((ones, columns, ends), (len(ends) - 1, label_count))


def split_label_sets(
    membership: csr_array, units: np.ndarray, fractions: Sequence[float], seed: int
) -> np.ndarray:
    """Divides rows into splits, stratified by each label.

    The iterative stratification of Sechidis et al. 2011: repeatedly, the units of the label with
    the fewest remaining units are assigned, each to the split that lacks most rows with this label
    or, on a tie, most rows. Units without a label are assigned last.

    Args:
        membership: int64 [rows, labels], 1 for each label of a row.
        units: int [rows], indexes without gaps; rows of a unit are in the same split.
        fractions: The share of each split.
        seed: Seed of the order of the units.

    Returns:
        int8 [rows], the index of the split.
    """
    rows = len(units)
    unit_count = int(units.max()) + 1
    members = csr_array((np.ones(rows, np.int64), (units, np.arange(rows))), (unit_count, rows))
    unit_labels = (members @ membership).tocsr()  # number of rows of each unit with each label
    label_units = (unit_labels > 0).tocsc()
    sizes = np.bincount(units)

    shares = np.array(fractions, float)
    lacking = shares[:, None] * np.asarray(membership.sum(0), float)[None]  # [splits, labels]
    lacking_rows = shares * rows
    unused = shares == 0
    lacking[unused] = -np.inf
    lacking_rows[unused] = -np.inf

    splits = np.full(unit_count, -1, np.int8)  # of each unit; -1: not yet assigned
    rank = np.random.default_rng(seed).permutation(unit_count)
    units_left = np.diff(label_units.indptr).astype(float)  # of each label; inf: none

    def assign(unit: int, needs: np.ndarray) -> None:
        """Assigns a unit to the split with the highest entry of `needs`, and updates all needs."""
        neediest = np.flatnonzero(needs == needs.max())
        split = neediest[np.argmax(lacking_rows[neediest])]
        splits[unit] = split
        lacking_rows[split] -= sizes[unit]
        entries = slice(unit_labels.indptr[unit], unit_labels.indptr[unit + 1])
        columns = unit_labels.indices[entries]
        lacking[split, columns] -= unit_labels.data[entries]
        units_left[columns] -= 1

    units_left[units_left == 0] = np.inf
    while np.isfinite(units_left).any():
        label = int(np.argmin(units_left))
        candidates = label_units.indices[label_units.indptr[label] : label_units.indptr[label + 1]]
        waiting = candidates[splits[candidates] < 0]
        for unit in waiting[np.argsort(rank[waiting])].tolist():
            assign(unit, lacking[:, label])
        units_left[label] = np.inf
        units_left[units_left == 0] = np.inf

    waiting = np.flatnonzero(splits < 0)
    for unit in waiting[np.argsort(rank[waiting])].tolist():
        assign(unit, lacking_rows)
    assigned: np.ndarray = splits[units]
    return assigned
