"""Divides the source rows of a table among training, validation and test.

Whole source rows, or whole groups of them, so that neither a folded text nor a group is in two
splits; stratified by label; determined by the seed. The store keeps the result, so that it never
changes with the version of scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, StratifiedShuffleSplit

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.data.seeds import derive

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)

NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""The values of a split column, in lower case."""

_MOST_FOLDS = 100
_MANY_GROUPS = 2000  # scikit-learn takes about a millisecond for each
_LISTED = 10


def check_fractions(fractions: Sequence[float]) -> None:
    """Refuses fractions that do not divide a table.

    Raises:
        ConfigurationError: Naming `data_config.split_fractions`.
    """
    valid = len(fractions) == 3 and fractions[0] > 0 and min(fractions) >= 0
    if not valid or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise ConfigurationError(
            f"data_config.split_fractions={list(fractions)}: expected the shares of training "
            "(above 0), validation and test, whose sum is 1, such as [0.8, 0.1, 0.1]",
            ["data_config.split_fractions"],
        )


def split_rows(
    labels: np.ndarray,
    groups: np.ndarray | None,
    fractions: Sequence[float],
    names: Sequence[str],
    seed: int,
) -> np.ndarray:
    """The split of each source row.

    Args:
        labels: int[rows], the number of each row's label.
        groups: int[rows], the number of each row's group, from 0 without gaps; None: each row by
            itself.
        fractions: The shares of training, validation and test.
        names: The labels.
        seed: Determines the division.

    Returns:
        int8[rows]: TRAIN, VALIDATION or TEST.

    Raises:
        DataError: If a label has fewer rows (or groups) than there are splits.
    """
    wanted = [split for split in range(3) if fractions[split] > 0]
    _check_counts(labels, groups, len(wanted), names)
    if len(wanted) == 1:
        return np.zeros(len(labels), np.int8)
    state = derive(seed, "splits") % 2**32
    if groups is None:
        found = _by_row(labels, fractions, state)
    elif groups.max() < _MANY_GROUPS:
        found = _by_group(labels, groups, fractions, state)
    else:
        found = _by_many_groups(labels, groups, fractions, state)
    missing = [SPLITS[split] for split in wanted if not (found == split).any()]
    if missing:
        raise _too_few(labels, fractions, f"no row for {' and '.join(missing)}")
    return found


def _by_row(labels: np.ndarray, fractions: Sequence[float], state: int) -> np.ndarray:
    found = np.zeros(len(labels), np.int8)
    rest = np.arange(len(labels))
    for split in (TEST, VALIDATION):
        if fractions[split] == 0:
            continue
        # Of a small table at least as many rows as labels, so that none needs to be without.
        size = max(math.floor(fractions[split] * len(labels) + 0.5), len(np.unique(labels)))
        splitter = StratifiedShuffleSplit(1, test_size=size, random_state=state)
        try:
            keep, taken = next(splitter.split(rest, labels[rest]))
        except ValueError as error:
            raise _too_few(labels, fractions, str(error)) from error
        found[rest[taken]] = split
        rest = np.sort(rest[keep])
    return found


def _by_group(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Makes folds of whole groups with about the same labels, and deals out the folds."""
    number_of_groups = len(np.unique(groups))
    exact = math.lcm(
        *(Fraction(fraction).limit_denominator(_MOST_FOLDS).denominator for fraction in fractions)
    )
    folds = min(exact, _MOST_FOLDS, number_of_groups, int(np.bincount(labels).min()))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=state)
    order = splitter.split(np.zeros(len(labels)), labels, groups)
    found = np.zeros(len(labels), np.int8)
    for split in (TEST, VALIDATION):
        number = max(1, round(fractions[split] * folds)) if fractions[split] > 0 else 0
        for _ in range(number):
            _, taken = next(order)
            found[taken] = split
    return found


def _by_many_groups(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Divides the groups as if each had one row, with the label that most of its rows have."""
    size = int(labels.max()) + 1
    counts = np.bincount(groups * size + labels, minlength=(groups.max() + 1) * size)
    commonest = counts.reshape(-1, size).argmax(1)
    number = np.bincount(commonest, minlength=size)
    commonest[number[commonest] < len(SPLITS)] = number.argmax()  # too few to divide
    return _by_row(commonest, fractions, state)[groups]


def _too_few(labels: np.ndarray, fractions: Sequence[float], reason: str) -> DataError:
    return DataError(
        f"{len(labels):,} rows are too few to divide into data_config.split_fractions="
        f"{list(fractions)}: {reason}. Choose larger fractions, set a fraction to 0, or divide the "
        "rows yourself: data_config.split_column"
    )


def _check_counts(
    labels: np.ndarray, groups: np.ndarray | None, splits: int, names: Sequence[str]
) -> None:
    """Refuses labels with fewer rows or groups than splits: some split could not have them."""
    if groups is None:
        counts, unit = np.bincount(labels, minlength=len(names)), "row"
    else:
        pairs = np.unique(groups * len(names) + labels)
        counts, unit = np.bincount(pairs % len(names), minlength=len(names)), "group"
    few = [f"{names[n]} ({counts[n]})" for n in np.flatnonzero(counts < splits).tolist()]
    if few:
        more = f" and {len(few) - _LISTED:,} more" if len(few) > _LISTED else ""
        raise DataError(
            f"{len(few)} of {len(names)} labels have fewer {unit}s than there are splits "
            f"({splits}): {', '.join(few[:_LISTED])}{more}. Is data_config.label_column the column "
            "of the labels? Merge or remove rare labels, set a fraction of "
            "data_config.split_fractions to 0, or divide the rows yourself: "
            "data_config.split_column"
        )
