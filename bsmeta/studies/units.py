"""Defines the units of claimed differences, and on which side of 0 they are as claimed.

In tests, every difference is below 0 if it is as claimed. Tables, sentences and figures show it in
its unit, with the sign of that unit: a higher accuracy is above 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.report.inference import Bounded, Estimate, Interval, read_value
from bsmeta.studies.config import ACCURACY, ClaimConfig


@dataclass(frozen=True)
class Unit:
    """A unit of differences.

    Attributes:
        name: Its name in tables and sentences.
        is_higher_better: Whether a claim expects a difference above 0; otherwise, below 0.
    """

    name: str
    is_higher_better: bool = False

    @property
    def side(self) -> str:
        """The side of 0 on which a difference supports a claim."""
        return "above 0" if self.is_higher_better else "below 0"

    def convert_to_unit(self, difference: Bounded) -> Estimate:
        """Converts a difference from the sign of tests (below 0: as claimed) to the unit's sign."""
        value = read_value(difference)
        if self.is_higher_better:
            return Estimate(-value, Interval(-difference.high, -difference.low))
        return Estimate(value, Interval(difference.low, difference.high))


TEXT_BITS = Unit("bits per byte")
ANSWER_BITS = Unit("bits per byte of the right answers")
ACCURACIES = Unit("accuracy", is_higher_better=True)


def find_unit(claim: ClaimConfig) -> Unit:
    """Returns the unit of a claim's difference."""
    if not claim.task:
        return TEXT_BITS
    return ACCURACIES if claim.score == ACCURACY else ANSWER_BITS
