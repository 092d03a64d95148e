"""What is compared of an unfinished study, the tables and words of a report, and its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.studies.claim_report import answer, claim_tables, declared_table, sentences
from bsmeta.studies.config import ClaimConfig, StudyConfig
from bsmeta.studies.declaration import declare
from bsmeta.studies.report import effect_table, exploratory_tables, write_report
from bsmeta.studies.results import largest_block, results_of
from bsmeta.studies.runs import (
    find_measurement,
    measurement_path,
)
from tests.studies.conftest import a_run, save


def test_the_largest_complete_block_is_compared(study: StudyConfig) -> None:
    runs = [("none", seed) for seed in (1, 2, 3)] + [("url", seed) for seed in (1, 2, 3)]
    assert largest_block(study, [*runs, ("shuffled", 1)]) == (["none", "url"], [1, 2, 3])
    assert largest_block(study, [*runs[:5], ("shuffled", 1), ("shuffled", 2)]) == (
        ["none", "url", "shuffled"],
        [1, 2],
    )
    assert largest_block(study, runs[:3])[0] == []
    assert largest_block(study, runs[3:])[0] == []


def test_a_measurement_is_read_as_it_was_written(study: StudyConfig) -> None:
    run = a_run([4.0, 3.0, 2.0], -0.25, seed=1)
    save(study, "url", 1, run)
    found = find_measurement(study, "url", 1)
    assert found is not None
    assert found.facts == run.facts
    assert found.steps.tolist() == [100, 200, 400]
    assert found.sites.tolist() == ["a.org"] * 20
    assert np.allclose(found.without, run.without, rtol=1e-6)
    assert list(found.types) == ["url"]
    assert measurement_path(study, "url", 1).stat().st_size < 10_000
    assert find_measurement(study, "url", 2) is None


def test_a_measurement_made_with_other_settings_is_refused(kept: StudyConfig) -> None:
    changed = replace(kept, overrides=["learning_rate=1"])
    with pytest.raises(DataError, match="url-seed1.npz: made with other settings"):
        find_measurement(changed, "url", 1)
    path = measurement_path(kept, "url", 1)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="url-seed1.npz: not a measurement that can be read"):
        results_of(kept)


def test_runs_on_other_data_are_not_compared(kept: StudyConfig) -> None:
    run = find_measurement(kept, "url", 2)
    assert run is not None
    save(kept, "url", 2, replace(run, facts={**run.facts, "shards": "others"}))
    with pytest.raises(DataError, match="url seed 2 were trained on other shards than none seed 1"):
        results_of(kept)


def test_the_words_and_tables_of_a_study(kept: StudyConfig) -> None:
    results = results_of(kept)
    words = sentences(results)
    assert len(words) == 3
    assert words[0].startswith("**Supported**: URL beats text alone: -0.4990 bits per byte")
    assert words[0].endswith("after correction for 3 claims.")
    # with metadata -0.25 more, and the control at half the tokens: at the same text tokens
    assert words[1].startswith("**Open**: URL beats its control: shuffled was trained on 2,000")
    assert words[2].startswith("**Supported**: the control beats text alone: -0.99")
    claims, declared, precision = claim_tables(results)
    assert answer(results) == "3 claims are declared: 2 supported, 1 open."
    assert claims.texts()[0][5] == "supported"
    assert claims.texts()[1][1:] == ["–", "–", "–", "–", "open"]
    assert declared.texts()[0] == ["URL beats text alone", "0.1000", "0.0200, 0.0000", "72%",
                                "URL, without metadata", "text alone"]  # fmt: skip
    assert precision.texts()[1][1:] == ["–", "–", "–"]
    rows = effect_table(results).texts()  # the largest gain first
    assert [row[:2] for row in rows] == [
        ["shuffled", "without"], ["shuffled", "with"], ["URL", "with"], ["URL", "without"],
    ]  # fmt: skip
    assert rows[3][2].startswith("-0.4990 (")
    assert rows[3][4] == "above 0%"
    assert rows[0][4].startswith("50%")
    assert results.shared[1] == (
        "shuffled: the same initial weights; the same documents in 100% of the steps; 0.50 times "
        "the text tokens; 0.50 times the total tokens, 0.50 times the FLOPs, 0.50 times the steps."
    )
    assert results.shared[0].startswith(
        "URL: the same initial weights; the same documents in 100% of the steps; the same text "
        "tokens after every logged step; 1.00 times the total tokens"
    )


def test_a_report_needs_the_measurements_alone(kept: StudyConfig) -> None:
    files = write_report(results_of(kept), Path("study.yaml"), {"none seed 1": "train.sh"}, [])
    assert {file.name for file in files} >= {"report.md", "report.html", "claims.pdf", "gains.png"}
    text = (Path(kept.out_dir) / "report.md").read_text()
    claims, exploratory = (
        text.index(heading)
        for heading in (
            "## What the declared claims come to",
            "## Exploratory: no claim was declared about what follows",
        )
    )
    assert claims < text.index("URL beats text alone") < exploratory
    assert claims < text.index("### Declared claims") < exploratory
    assert exploratory < text.index("### Against text alone")
    assert "data saved" not in text[:exploratory]
    raw = json.loads((Path(kept.out_dir) / "results.json").read_text())
    assert [claim["verdict"] for claim in raw["claims"]] == ["supported", "open", "supported"]
    assert raw["claims"][0]["difference"]["value"] == pytest.approx(-0.5, abs=0.01)
    assert raw["claims"][1]["at_once"] == [None, None]


def test_without_claims_nothing_is_decided(kept: StudyConfig) -> None:
    results = results_of(replace(kept, claims={}))
    assert sentences(results) == [
        "No claim was declared: nothing is tested, and everything below is exploratory."
    ]
    assert claim_tables(results) == []
    assert exploratory_tables(results)[0].title == "Bits per byte"


def test_seeds_added_later_are_named(kept: StudyConfig) -> None:
    declare(replace(kept, seeds=[1, 2]))
    declare(kept)
    notes = results_of(kept).notes
    assert len(notes) == 1
    assert notes[0].startswith("Seeds 3 were added after the first run had been started")


def test_the_declared_claims_before_any_run(study: StudyConfig) -> None:
    saving = ClaimConfig(
        label="saves a tenth", arm="url", at=0.5, saves=0.1, bytes=[100], minus_bytes=[0, 100],
        smallest_difference=0.02,
    )  # fmt: skip
    (row,) = declared_table(replace(study, claims={"a": saving})).texts()
    assert row == [
        "saves a tenth",
        "0.0200",
        "–",
        "–",
        "URL, without metadata, after 50% of the text tokens, bytes from 100 on minus bytes 0 to "
        "99",
        "text alone, after 56% of the text tokens",
    ]
