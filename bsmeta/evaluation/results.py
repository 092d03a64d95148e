"""Sums to rows: what the report prints, as plain dataclasses and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bsmeta.evaluation.arms import Comparison
from bsmeta.evaluation.statistics import Figures, figures_of


@dataclass(frozen=True, slots=True)
class PositionBin:
    """One comparison over the text that begins `first_byte` bytes into a document."""

    first_byte: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; `figures` is None where no document could be compared."""

    comparison: Comparison
    figures: Figures | None
    positions: list[PositionBin] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        figures = self.figures.as_dict() if self.figures else {"documents": 0, "bytes": 0}
        return {
            "name": self.comparison.name,
            "group": self.comparison.group,
            "base": list(self.comparison.base.types),
            "test": list(self.comparison.test.types),
            **figures,
            "by_position": [
                {"first_byte": one.first_byte, **one.figures.as_dict()} for one in self.positions
            ],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All that an evaluation found out.

    Attributes:
        checkpoint: As the user named it.
        model: What was loaded.
        settings: The evaluation's configuration.
        data: The held-out file, its documents and what was left out.
        rows: The comparisons.
    """

    checkpoint: str
    model: str
    settings: dict[str, Any]
    data: dict[str, Any]
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """The content of `evaluation.json`."""
        return {
            **{name: getattr(self, name) for name in ("checkpoint", "model", "settings", "data")},
            "comparisons": [row.as_dict() for row in self.rows],
        }


def rows_of(
    comparisons: Sequence[Comparison],
    sums: Mapping[str, np.ndarray],
    position_edges: Sequence[int],
    *,
    resamples: int,
    seed: int,
) -> list[Row]:
    """Figures of each comparison, in all and by position.

    Args:
        comparisons: In the order of the rows.
        sums: What `PairedEvaluation.run` returns.
        position_edges: First byte of each position bin.
        resamples: Bootstrap resamples.
        seed: Seed of the resamples.
    """
    rows = []
    for one in comparisons:
        values = sums[one.name]  # [documents, bins, 4]
        stacked = np.concatenate([values.sum(axis=1)[None], values.swapaxes(0, 1)])
        overall, *bins = figures_of(stacked, resamples=resamples, seed=seed)
        positions = [
            PositionBin(first_byte, here)
            for first_byte, here in zip(position_edges, bins, strict=True)
            if here is not None
        ]
        rows.append(Row(one, overall, positions))
    return rows
