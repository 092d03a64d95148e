"""A detector that flags only what reaches the threshold for a wanted precision."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.task import CALIBRATION_FILE, calibrate_threshold, read_saved_threshold

LOGITS = np.array([[3.3], [1.1], [0.7], [-2.0]], np.float32)


def saved(folder: Path, labels: list[int]) -> np.float64:
    """The threshold of a model that was calibrated on `LOGITS`."""
    found = calibrate_threshold(LOGITS[:, 0].astype(np.float64), np.array(labels), 0.9)
    (folder / CALIBRATION_FILE).write_text(json.dumps(asdict(found)))
    return read_saved_threshold(folder)


def test_what_reaches_the_threshold_is_flagged(tmp_path: Path) -> None:
    least = saved(tmp_path, [1, 1, 0, 0])
    assert (least < LOGITS).tolist() == [[True], [True], [False], [False]]


def test_nothing_is_flagged_without_a_threshold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        least = saved(tmp_path, [0, 1, 0, 0])
    assert not (least < LOGITS).any()
    assert (
        "no threshold has a precision of 0.900: the highest is 0.500, at recall 1.000; nothing is "
        "flagged"
    ) in caplog.text


def test_a_model_without_a_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"calibration.json cannot be read.*\(val_splits\)"):
        read_saved_threshold(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("threshold", "0.5"), ("threshold", float("nan")), ("precision", 2), ("flagged", -1)],
)
def test_an_edited_calibration_is_refused(tmp_path: Path, key: str, value: object) -> None:
    saved(tmp_path, [1, 1, 0, 0])
    file = tmp_path / CALIBRATION_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(DataError, match="calibration.json cannot be read"):
        read_saved_threshold(tmp_path)


def test_the_threshold_with_the_wanted_precision_and_the_highest_recall() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.6, 0.1])
    labels = np.array([1, 0, 1, 1, 0, 1])
    found = calibrate_threshold(scores, labels, 0.6)
    assert (found.threshold, found.precision, found.recall, found.flagged) == (0.1, 4 / 6, 1.0, 6)
    strict = calibrate_threshold(scores, labels, 0.9)
    assert (strict.threshold, strict.precision, strict.recall) == (0.9, 1.0, 0.25)


def test_a_precision_that_no_threshold_has() -> None:
    found = calibrate_threshold(np.array([0.9, 0.5, 0.2]), np.array([0, 1, 0]), 0.95)
    assert (found.threshold, found.precision, found.recall) == (None, 0.5, 1.0)
    assert calibrate_threshold(np.array([0.9]), np.array([0]), 0.5).threshold is None
