"""Finds what rows of a table share: equal texts, their labels, and labels that are nearly equal.

Texts are equal if they differ in white space only. A text in two splits would be trained on and
then counted as a success of the model; a text with two labels cannot be right both times.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import xxhash

from bsmeta.tasks.classification.splits import SPLITS, TRAIN

_LISTED = 5


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
            for text in ambiguous[:_LISTED]
        ]
        more = f"; and {len(ambiguous) - _LISTED:,} more" if len(ambiguous) > _LISTED else ""
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
    more = f", and {len(pairs) - _LISTED:,} more" if len(pairs) > _LISTED else ""
    return [f"labels that may be meant as one: {', '.join(pairs[:_LISTED])}{more}"]
