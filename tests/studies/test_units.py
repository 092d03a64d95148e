"""A difference is tested below 0 as claimed, and shown with the sign of its unit."""

from __future__ import annotations

import pytest

from bsmeta.report.inference import Estimate, Interval
from bsmeta.studies.config import ClaimConfig
from bsmeta.studies.units import ACCURACIES, ANSWER_BITS, TEXT_BITS, Unit, find_unit

TESTED = Estimate(-0.25, Interval(-0.5, 0.125))


@pytest.mark.parametrize(
    ("claim", "unit"),
    [
        (ClaimConfig(arm="url"), TEXT_BITS),
        (ClaimConfig(arm="url", task="quiz"), ANSWER_BITS),
        (ClaimConfig(arm="url", task="quiz", score="accuracy"), ACCURACIES),
    ],
)
def test_the_unit_follows_from_the_task_and_its_score(claim: ClaimConfig, unit: Unit) -> None:
    assert find_unit(claim) == unit


def test_fewer_bits_are_shown_as_negative() -> None:
    assert TEXT_BITS.side == "below 0"
    assert TEXT_BITS.convert_to_unit(TESTED) == TESTED


def test_a_higher_accuracy_is_shown_as_positive() -> None:
    assert ACCURACIES.side == "above 0"
    assert ACCURACIES.convert_to_unit(TESTED) == Estimate(0.25, Interval(-0.125, 0.5))
