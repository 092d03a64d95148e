"""A detector that flags only what reaches the threshold for a wanted precision."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.task import CALIBRATION, calibrate, saved_threshold

LOGITS = np.array([[3.3], [1.1], [0.7], [-2.0]], np.float32)


def saved(folder: Path, labels: list[int]) -> np.float64:
    """The threshold of a model that was calibrated on `LOGITS`."""
    found = calibrate(LOGITS[:, 0].astype(np.float64), np.array(labels), 0.9)
    (folder / CALIBRATION).write_text(json.dumps(asdict(found)))
    return saved_threshold(folder)


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
        saved_threshold(tmp_path)
