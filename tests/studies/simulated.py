"""Measurements of studies that were never trained, with known bits per byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bsmeta.studies.config import StudyConfig
from bsmeta.studies.runs import Measurement
from bsmeta.studies.statistics import StudyMeasurements

BYTES = 100.0


def measurement(
    without: np.ndarray,
    shown: np.ndarray | None = None,
    types: Mapping[str, np.ndarray] | None = None,
    targets: Sequence[int] = (1000,),
    **changes: Any,
) -> Measurement:
    """Returns a run of documents with 100 bytes in each bin.

    Args:
        without: float64 [checkpoints, documents, bins], bits per byte without metadata.
        shown: The same with metadata; None if the arm has none.
        types: By type: float64 [documents, bins].
        targets: Text tokens up to each checkpoint.
    """
    nats = BYTES * math.log(2)
    count = without.shape[1]
    values: dict[str, Any] = {
        "settings": "", "facts": {"shards": "x", "schedule": "constant", "loss": 2.5,
                                  "loss_on_metadata": False, "model": ["", ""], "vocabulary": 9},
        "steps": np.array(targets) // 10, "targets": np.array(targets),
        "tokens": np.array(targets), "flops": np.array(targets, float),
        "digests": np.arange(count, dtype=np.uint64), "lengths": np.full(count, 300),
        "sites": np.full(count, "a.org"), "sizes": np.full(without.shape[1:], BYTES),
        "nats_without": without * nats,
        "nats_with": (without[:0] if shown is None else shown) * nats,
        "nats_by_types": {name: own * nats for name, own in (types or {}).items()},
        "step_documents": np.arange(4, dtype=np.uint16), "logged_targets": np.array(targets),
        "nats_averaged": without[:0],
    }  # fmt: skip
    return Measurement(**{**values, **changes})


def flat(bits: float, documents: int = 20, bins: int = 1) -> np.ndarray:
    """Returns one checkpoint with equal bits for all documents: float64 [1, documents, bins]."""
    return np.full((1, documents, bins), bits)


def measured(study: StudyConfig, runs: Mapping[str, Sequence[Measurement]]) -> StudyMeasurements:
    """Returns the measurements of a study, by arm and seed."""
    return StudyMeasurements(
        study,
        {
            (arm, seed): run
            for arm, own in runs.items()
            for seed, run in zip(study.seeds, own, strict=False)
        },
    )
