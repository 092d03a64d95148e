"""Units of the differences that claims are about, and the side of 0 on which they are as claimed.

A claim is tested with its difference below 0 as claimed, whatever its unit. Tables, sentences and
figures show it in its own unit, with its own sign: a higher accuracy is above 0.
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
        is_higher_better: Whether a difference is above 0 as claimed.
    """

    name: str
    is_higher_better: bool = False

    @property
    def side(self) -> str:
        """The side of 0 on which a difference is as claimed."""
        return "above 0" if self.is_higher_better else "below 0"

    def convert_to_unit(self, tested: Bounded) -> Estimate:
        """Returns a difference, tested as below 0 if as claimed, with its own sign."""
        value = read_value(tested)
        if self.is_higher_better:
            return Estimate(-value, Interval(-tested.high, -tested.low))
        return Estimate(value, Interval(tested.low, tested.high))


TEXT_BITS = Unit("bits per byte")
ANSWER_BITS = Unit("bits per byte of the right answers")
ACCURACIES = Unit("accuracy", is_higher_better=True)


def find_unit(claim: ClaimConfig) -> Unit:
    """Returns the unit of a claim's difference."""
    if not claim.task:
        return TEXT_BITS
    return ACCURACIES if claim.score == ACCURACY else ANSWER_BITS
