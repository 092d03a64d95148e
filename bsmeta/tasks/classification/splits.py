"""Divides the source rows of a table among training, validation and test.

Whole texts (equal texts of several rows together), or whole groups of rows, so that neither a text
nor a group is in two splits; stratified by label; determined by the seed. The store keeps the
result, so that it never changes with the version of scikit-learn.

Texts are equal if they differ in white space only. A text in two splits would be trained on and
then counted as a success of the model; a text with two labels cannot be right both times. Both are
described, as are labels that are nearly equal.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import xxhash
from sklearn.model_selection import StratifiedGroupKFold, StratifiedShuffleSplit

from bsmeta.core.errors import DataError
from bsmeta.data.seeds import derive

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
LEFT_OUT = 3
"""Instead of a split: the row's text is in a later split, too, in another group."""

NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""The values of a split column, in lower case."""

_MOST_FOLDS = 100
_MANY_GROUPS = 2000  # scikit-learn takes about a millisecond for each
_LISTED = 10
_SHOWN = 5


def split_rows(
    labels: np.ndarray,
    groups: np.ndarray | None,
    texts: np.ndarray,
    fractions: Sequence[float],
    names: Sequence[str],
    seed: int,
) -> np.ndarray:
    """The split of each source row.

    Args:
        labels: int[rows], the number of each row's label.
        groups: int[rows], the number of each row's group, from 0 without gaps; None: no split
            divides a text, and nothing else is kept together.
        texts: int[rows], the number of each row's text, from 0 without gaps; equal for equal texts.
        fractions: The shares of training, validation and test.
        names: The labels.
        seed: Determines the division.

    Returns:
        int8[rows]: TRAIN, VALIDATION or TEST; LEFT_OUT for a row whose text is in a later split,
        in another group.

    Raises:
        DataError: If a label has fewer texts (or groups) than there are splits.
    """
    wanted = [split for split in range(3) if fractions[split] > 0]
    unit = "text" if groups is None else "group"
    _check_counts(labels, texts if groups is None else groups, unit, len(wanted), names)
    if len(wanted) == 1:
        return np.zeros(len(labels), np.int8)
    state = derive(seed, "splits") % 2**32
    if groups is not None:
        divide = _by_group if groups.max() < _MANY_GROUPS else _by_many_groups
        found = left_out(divide(labels, groups, fractions, state), texts)
    elif texts.max() + 1 < len(texts):
        found = _by_many_groups(labels, texts, fractions, state)
    else:
        found = _by_row(labels, fractions, state)
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
        # At least one row per label, so that no label of a small table need be absent.
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
    """Deals out whole groups, the largest first, each to the split that most lacks its label.

    The label of a group is that of most of its rows. A group that is larger than what any split
    lacks goes where most rows are lacking, which is usually the training. The last groups of a
    label go to the splits that have none.
    """
    label_of = _commonest(labels, groups)
    sizes = np.bincount(groups)
    order = np.random.default_rng(state).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    remaining = np.bincount(label_of, minlength=labels.max() + 1).tolist()  # groups of each label
    wanted = [
        {split: max(round(share * rows), 1) for split, share in enumerate(fractions) if share > 0}
        for rows in np.bincount(label_of, sizes, minlength=len(remaining)).tolist()
    ]
    lacking = [{**rows} for rows in wanted]
    found = np.zeros(len(sizes), np.int8)
    for group in order.tolist():
        label, size = int(label_of[group]), int(sizes[group])
        split = _neediest(lacking[label], wanted[label], size, remaining[label])
        found[group] = split
        lacking[label][split] -= size
        remaining[label] -= 1
    return found[groups]


def _neediest(
    lacking: Mapping[int, int], wanted: Mapping[int, int], size: int, remaining: int
) -> int:
    """The split of the next group of a label.

    Args:
        lacking: Rows that each split still lacks.
        wanted: Rows that it shall have.
        size: Rows of the group.
        remaining: The number of groups of the label that have no split yet, with this one.
    """
    empty = [split for split in lacking if lacking[split] == wanted[split]]
    if remaining <= len(empty):
        return max(empty, key=lacking.__getitem__)
    fitting = [split for split in lacking if lacking[split] >= size]
    if fitting:
        return max(fitting, key=lambda split: lacking[split] / wanted[split])
    return max(lacking, key=lacking.__getitem__)


def _commonest(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The label that most rows of each group have (on a tie the first), int64[groups]."""
    size = int(labels.max()) + 1
    cells, counts = np.unique(groups * size + labels, return_counts=True)
    owners = cells // size
    order = np.lexsort((-(cells % size), counts, owners))
    last = np.append(np.flatnonzero(np.diff(owners[order])), len(order) - 1)
    commonest: np.ndarray = cells[order[last]] % size
    return commonest


def left_out(splits: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The splits, but LEFT_OUT for each row whose text is also in a later split.

    The order is training, validation, test, so the test split is always complete.

    Args:
        splits: int8[rows].
        texts: int[rows], from 0 without gaps.
    """
    latest = np.zeros(texts.max() + 1, np.int8)
    np.maximum.at(latest, texts, splits)
    return np.where(splits < latest[texts], LEFT_OUT, splits).astype(np.int8)


def _too_few(labels: np.ndarray, fractions: Sequence[float], reason: str) -> DataError:
    return DataError(
        f"{len(labels):,} rows are too few to divide into data_config.split_fractions="
        f"{list(fractions)}: {reason}. Choose larger fractions, set a fraction to 0, or divide the "
        "rows yourself: data_config.split_column"
    )


def _check_counts(
    labels: np.ndarray, groups: np.ndarray, unit: str, splits: int, names: Sequence[str]
) -> None:
    """Refuses labels with fewer texts or groups than splits: some split could not have them."""
    pairs = np.unique(groups * len(names) + labels)
    counts = np.bincount(pairs % len(names), minlength=len(names))
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


def text_key(text: str) -> int:
    """A hash of 64 bits that is equal for texts that differ in white space only."""
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode())


def first_rows(texts: np.ndarray) -> dict[int, int]:
    """For each row that shares its text with others, the first of them, by position.

    Args:
        texts: int[rows], from 0 without gaps.
    """
    _, first = np.unique(texts, return_index=True)
    shared = np.flatnonzero(np.bincount(texts)[texts] > 1)
    return dict(zip(shared.tolist(), first[texts[shared]].tolist(), strict=True))


def repeats(
    rows: np.ndarray, texts: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> list[str]:
    """Describes repeated texts, and those with several labels; [] if there are none.

    Args:
        rows: int[rows], their numbers in the file.
        texts: int[rows], from 0 without gaps.
        labels: int[rows].
        names: The labels.
    """
    distinct = int(texts.max()) + 1
    if distinct == len(texts):
        return []
    notes = [
        f"{len(texts) - distinct:,} of {len(texts):,} rows repeat the text of an earlier row "
        "(compared without differences in white space)"
    ]
    cells, first = np.unique(texts * len(names) + labels, return_index=True)
    owners = cells // len(names)
    ambiguous = np.flatnonzero(np.bincount(owners) > 1)
    if len(ambiguous):
        shown = [
            " and ".join(
                f"row {rows[row]:,} ({names[labels[row]]})"
                for row in np.sort(first[owners == text])[:2]
            )
            for text in ambiguous[:_SHOWN]
        ]
        more = f"; and {len(ambiguous) - _SHOWN:,} more" if len(ambiguous) > _SHOWN else ""
        verb = "text has" if len(ambiguous) == 1 else "texts have"
        notes.append(f"{len(ambiguous):,} {verb} more than one label: {'; '.join(shown)}{more}")
    return notes


def leaks(splits: np.ndarray, texts: np.ndarray) -> list[str]:
    """Describes how much of each held-out split is also in the training split.

    Args:
        splits: int[rows].
        texts: int[rows], from 0 without gaps.
    """
    notes = []
    for split in range(TRAIN + 1, len(SPLITS)):
        own = texts[splits == split]
        seen = int(np.isin(own, texts[splits == TRAIN]).sum())
        if seen:
            notes.append(
                f"{seen:,} of {len(own):,} rows of the {SPLITS[split]} split have a text that is "
                "also in the training split: scores on them are too high"
            )
    return notes


def similar_labels(names: Sequence[str]) -> list[str]:
    """Describes labels that differ only in case, white space or the form of their characters."""
    plain = {
        name: " ".join(unicodedata.normalize("NFKC", name).casefold().split()) for name in names
    }
    pairs = [
        f"{first!r} and {second!r}"
        for first, second in pairwise(sorted(names, key=lambda name: (plain[name], name)))
        if plain[first] == plain[second]
    ]
    if not pairs:
        return []
    more = f", and {len(pairs) - _SHOWN:,} more" if len(pairs) > _SHOWN else ""
    return [f"labels that may be meant as one: {', '.join(pairs[:_SHOWN])}{more}"]
