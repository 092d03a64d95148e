"""The sets of labels that the rows of a table have, if a row may have several.

Rows with the same labels share a set, so a table stores each set once: a row has the number of its
set where a row of one label has the number of its label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array

Labels = int | tuple[int, ...]
"""The number of a text's label; or, if a text may have several, their numbers, ascending."""


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
    """Makes the matrix of sets and their labels, int64 [sets, labels], with 1 for each label."""
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
    """Divides rows into splits in which each label has about its share of the rows.

    The iterative stratification of Sechidis et al. 2011: the label with the fewest units left
    comes first, and each of its units goes to the split that most lacks this label; among these, to
    the split that most lacks rows. Units without a label are divided last.

    Args:
        membership: int64 [rows, labels], 1 for each label of a row.
        units: int [rows], from 0 without gaps; no split divides a unit.
        fractions: The share of each split.
        seed: Determines the result together with the rows.

    Returns:
        int8 [rows], the number of the split.
    """
    rows = len(units)
    unit_count = int(units.max()) + 1
    members = csr_array((np.ones(rows, np.int64), (units, np.arange(rows))), (unit_count, rows))
    unit_labels = (members @ membership).tocsr()  # the rows of a unit that have a label
    label_units = (unit_labels > 0).tocsc()
    sizes = np.bincount(units)

    shares = np.array(fractions, float)
    lacking = shares[:, None] * np.asarray(membership.sum(0), float)[None]  # [splits, labels]
    lacking_rows = shares * rows
    unused = shares == 0
    lacking[unused] = -np.inf
    lacking_rows[unused] = -np.inf

    splits = np.full(unit_count, -1, np.int8)
    rank = np.random.default_rng(seed).permutation(unit_count)
    units_left = np.diff(label_units.indptr).astype(float)

    def assign(unit: int, wanted: np.ndarray) -> None:
        """Assigns a unit to the split that most lacks `wanted`, and counts its rows and labels."""
        most = np.flatnonzero(wanted == wanted.max())
        split = most[np.argmax(lacking_rows[most])]
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
        units_left[label] = np.inf  # done
        units_left[units_left == 0] = np.inf

    waiting = np.flatnonzero(splits < 0)
    for unit in waiting[np.argsort(rank[waiting])].tolist():
        assign(unit, lacking_rows)
    assigned: np.ndarray = splits[units]
    return assigned
