"""Sums to rows: what the report prints, as plain dataclasses and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bsmeta.evaluation.arms import TEXT, Comparison
from bsmeta.evaluation.slices import Slice
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

    @property
    def compares(self) -> bool:
        """Whether two arms were compared, and there was something to compare."""
        return self.figures is not None and self.comparison.group != TEXT

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        one = self.comparison
        return {
            "name": one.name,
            "group": one.group,
            "base": asdict(one.base),
            "test": asdict(one.test),
            **_plain(self.figures),
            "by_position": [
                {"first_byte": place.first_byte, **place.figures.as_dict()}
                for place in self.positions
            ],
        }


@dataclass(frozen=True, slots=True)
class SliceRows:
    """The comparisons over the documents of one slice."""

    slice: Slice
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """The slice as JSON has it."""
        return {
            "by": self.slice.by,
            "name": self.slice.name,
            "documents": int(self.slice.members.sum()),
            "comparisons": [
                {"name": row.comparison.name, **_plain(row.figures)} for row in self.rows
            ],
        }


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What was found out about one model.

    Attributes:
        checkpoint: As the user named it.
        model: What was loaded.
        data: The held-out file, its documents and what was left out.
        rows: The comparisons; the first is the text alone.
        slices: The same over some of the documents.
    """

    checkpoint: str
    model: str
    data: dict[str, Any]
    rows: list[Row]
    slices: list[SliceRows] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        """The comparison of this name, if it was made."""
        return next((row for row in self.rows if row.comparison.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """The model as JSON has it."""
        return {
            "checkpoint": self.checkpoint,
            "model": self.model,
            "data": self.data,
            "comparisons": [row.as_dict() for row in self.rows],
            "slices": [one.as_dict() for one in self.slices],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All that an evaluation found out.

    Attributes:
        settings: The evaluation's configuration.
        models: One for each checkpoint, in the order in which they were named.
    """

    settings: dict[str, Any]
    models: list[ModelReport]

    def as_dict(self) -> dict[str, Any]:
        """The content of `evaluation.json`."""
        return {"settings": self.settings, "models": [one.as_dict() for one in self.models]}


@dataclass(frozen=True, slots=True)
class Resampling:
    """The bootstrap's settings: number of resamples, and their seed."""

    resamples: int
    seed: int

    def figures(self, sums: np.ndarray) -> list[Figures | None]:
        """`figures_of` with these settings."""
        return figures_of(sums, resamples=self.resamples, seed=self.seed)


def rows_of(
    comparisons: Sequence[Comparison],
    sums: Mapping[str, np.ndarray],
    position_edges: Sequence[int],
    resampling: Resampling,
) -> list[Row]:
    """Figures of each comparison, in all and by position.

    Args:
        comparisons: In the order of the rows.
        sums: What `PairedEvaluation.run` returns.
        position_edges: First byte of each position bin.
        resampling: The bootstrap.
    """
    rows = []
    for one in comparisons:
        values = sums[one.name]  # [documents, bins, 4]
        stacked = np.concatenate([values.sum(axis=1)[None], values.swapaxes(0, 1)])
        overall, *bins = resampling.figures(stacked)
        positions = [
            PositionBin(first_byte, here)
            for first_byte, here in zip(position_edges, bins, strict=True)
            if here is not None
        ]
        rows.append(Row(one, overall, positions))
    return rows


def slice_rows_of(
    slices: Sequence[Slice],
    comparisons: Sequence[Comparison],
    sums: Mapping[str, np.ndarray],
    resampling: Resampling,
) -> list[SliceRows]:
    """Figures of each comparison over the documents of each slice."""
    made = []
    for one in slices:
        stacked = np.stack([sums[each.name].sum(axis=1) for each in comparisons])
        figures = resampling.figures(stacked * one.members[None, :, None])
        rows = [Row(each, own) for each, own in zip(comparisons, figures, strict=True)]
        made.append(SliceRows(one, rows))
    return made


def _plain(figures: Figures | None) -> dict[str, Any]:
    return figures.as_dict() if figures else {"documents": 0, "bytes": 0}
