"""What is compared of a study, finished or not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.studies.config import StudyConfig
from bsmeta.studies.declaration import declare_study
from bsmeta.studies.results import compute_results, find_largest_block
from bsmeta.studies.runs import find_measurement, locate_measurement
from tests.studies.conftest import save


def test_the_largest_complete_block_is_compared(study: StudyConfig) -> None:
    runs = [("none", seed) for seed in (1, 2, 3)] + [("url", seed) for seed in (1, 2, 3)]
    assert find_largest_block(study, [*runs, ("shuffled", 1)]) == (["none", "url"], [1, 2, 3])
    assert find_largest_block(study, [*runs[:5], ("shuffled", 1), ("shuffled", 2)]) == (
        ["none", "url", "shuffled"],
        [1, 2],
    )
    assert find_largest_block(study, runs[:3])[0] == []
    assert find_largest_block(study, runs[3:])[0] == []


def test_a_measurement_made_with_other_settings_is_refused(kept: StudyConfig) -> None:
    changed = replace(kept, overrides=["learning_rate=1"])
    with pytest.raises(DataError, match="url-seed1.npz: made with other settings"):
        find_measurement(changed, "url", 1)
    path = locate_measurement(kept, "url", 1)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="url-seed1.npz: not a measurement that can be read"):
        compute_results(kept)


def test_a_measurement_without_a_field_is_refused(kept: StudyConfig) -> None:
    path = locate_measurement(kept, "url", 1)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"]))
    del header["facts"]
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})
    with pytest.raises(
        DataError, match="url-seed1.npz: not a measurement that can be read .*facts"
    ):
        find_measurement(kept, "url", 1)


def test_runs_on_other_data_are_not_compared(kept: StudyConfig) -> None:
    run = find_measurement(kept, "url", 2)
    assert run is not None
    save(kept, "url", 2, replace(run, facts={**run.facts, "shards": "others"}))
    with pytest.raises(DataError, match="url seed 2 were trained on other shards than none seed 1"):
        compute_results(kept)


def test_seeds_added_later_are_named(study: StudyConfig, request: pytest.FixtureRequest) -> None:
    declare_study(replace(study, seeds=[1, 2]))
    kept = request.getfixturevalue("kept")
    declare_study(kept)
    notes = compute_results(kept).notes
    assert len(notes) == 1
    assert notes[0].startswith("Seeds 3 were added after the first run had been started")
