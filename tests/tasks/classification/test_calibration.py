"""The calibration of predicted probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from bsmeta.tasks.classification.calibration import measure_calibration


def test_a_run_that_is_too_sure() -> None:
    probabilities = np.array([[0.95], [0.95], [0.95], [0.95], [0.6], [0.6]])
    is_right = np.array([[True], [True], [False], [False], [True], [False]])
    found = measure_calibration(
        probabilities, is_right, np.arange(6), bin_count=10, resamples=200, seed=1
    )
    assert [(entry.low, entry.high, entry.count) for entry in found.bins] == [
        (0.6, 0.7, 2), (0.9, 1.0, 4)
    ]  # fmt: skip
    assert [entry.share_right.value for entry in found.bins] == [0.5, 0.5]
    assert found.overconfidence.value == pytest.approx((4 * 0.95 + 2 * 0.6) / 6 - 0.5)
    assert found.expected_error.value == pytest.approx((4 * 0.45 + 2 * 0.1) / 6)
    assert found.overconfidence.low <= found.overconfidence.value <= found.overconfidence.high


def test_errors_of_opposite_signs_do_not_cancel_in_the_expected_error() -> None:
    probabilities = np.array([[0.2], [0.2], [0.8], [0.8]])
    is_right = np.array([[True], [True], [False], [False]])
    found = measure_calibration(
        probabilities, is_right, np.arange(4), bin_count=5, resamples=50, seed=1
    )
    assert found.overconfidence.value == pytest.approx(0.0)
    assert found.expected_error.value == pytest.approx(0.8)


def test_bins_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(3)
    probabilities = draw.random((500, 2))
    is_right = draw.random((500, 2)) < probabilities
    found = measure_calibration(
        probabilities, is_right, np.arange(500), bin_count=8, resamples=20, seed=1
    )
    shares, means = calibration_curve(is_right.ravel(), probabilities.ravel(), n_bins=8)
    assert [entry.share_right.value for entry in found.bins] == pytest.approx(shares)
    assert [entry.mean_probability for entry in found.bins] == pytest.approx(means)
    assert sum(entry.count for entry in found.bins) == 1000


def test_a_probability_of_one_is_in_the_last_bin() -> None:
    found = measure_calibration(
        np.ones((3, 1)),
        np.ones((3, 1), bool),
        np.array([0, 0, 1]),
        bin_count=4,
        resamples=9,
        seed=1,
    )
    assert [(entry.low, entry.high, entry.count) for entry in found.bins] == [(0.75, 1.0, 3)]
    assert found.expected_error.value == 0.0
