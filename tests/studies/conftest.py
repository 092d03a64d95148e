"""A small study and the measurements of all its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bsmeta.studies.config import ArmConfig, ClaimConfig, MeasureConfig, StudyConfig
from bsmeta.studies.runs import Measurement, hash_settings, locate_measurement
from tests.studies.simulated import flat, measurement

SEEDS = [1, 2, 3]
TARGETS = (1000, 2000, 4000)


@pytest.fixture
def study(tmp_path: Path) -> StudyConfig:
    claims = {
        "beats": ClaimConfig(
            label="URL beats text alone", arm="url", smallest_difference=0.1, pilot_deviation=0.02
        ),
        "content": ClaimConfig(
            label="URL beats its control", arm="url", metadata="with", against="shuffled",
            against_metadata="with", smallest_difference=0.1,
        ),
        "control": ClaimConfig(
            label="the control beats text alone", arm="shuffled", smallest_difference=0.1
        ),
    }  # fmt: skip
    return StudyConfig(
        title="a_study", out_dir=str(tmp_path / "out"), results_dir=str(tmp_path / "kept"),
        config="demo", baseline="none", seeds=SEEDS, curve=[0.25, 0.5, 1.0], claims=claims,
        arms={"none": ArmConfig(label="text alone"), "url": ArmConfig(label="URL"),
              "shuffled": ArmConfig(control_of="url")},
        measure=MeasureConfig(position_edges=[0, 100]),
    )  # fmt: skip


def a_run(bits: list[float], shown: float | None, seed: int, share: float = 1.0) -> Measurement:
    """Returns a curve of three checkpoints; all arms of a seed share its deviation."""
    generator = np.random.default_rng([seed, int(bits[-1] * 1000)])
    without = np.concatenate([flat(point + 0.05 * seed, bins=2) for point in bits])
    without = without + generator.normal(0, 0.001)
    types = None if shown is None else {"url": without[-1] + shown}
    return measurement(
        without, None if shown is None else without + shown, types,
        targets=[round(share * amount) for amount in TARGETS],
    )  # fmt: skip


def save(study: StudyConfig, arm: str, seed: int, run: Measurement) -> None:
    run = replace(run, settings=hash_settings(study, arm, seed))
    run.save(locate_measurement(study, arm, seed))


@pytest.fixture
def kept(study: StudyConfig) -> StudyConfig:
    """The study with the measurements of all runs, and no other files."""
    for seed in SEEDS:
        save(study, "none", seed, a_run([4.0, 3.0, 2.0], None, seed))
        save(study, "url", seed, a_run([3.5, 2.75, 1.5], -0.25, seed))
        save(study, "shuffled", seed, a_run([4.0, 3.0, 2.002], 0.0, seed, share=0.5))
    return study
