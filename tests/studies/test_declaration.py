"""The declaration of a study counts, even if its file is changed afterward."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.studies.claim_report import format_sentences
from bsmeta.studies.config import ClaimConfig, DownstreamConfig, StudyConfig
from bsmeta.studies.declaration import declare_study, locate_declaration, restore_declared_study
from bsmeta.studies.results import compute_results
from bsmeta.studies.runs import Launcher, list_runs, locate_measurement
from tests.studies.study_files import CLAIM, SMALL_STUDY, finished, loaded


@pytest.fixture
def declared(study: StudyConfig, request: pytest.FixtureRequest) -> StudyConfig:
    """A study of three arms and three seeds, declared before it was measured."""
    declare_study(study)
    measured: StudyConfig = request.getfixturevalue("kept")
    return measured


LATE = (
    "No study.json from before the first run declares the claims: if they, or the seeds, were "
    "chosen by their results, the verdicts do not hold."
)


def test_claims_without_a_declaration_before_the_first_run_are_named(
    declared: StudyConfig,
) -> None:
    """A deleted declaration can be replaced by one of easier claims, but the report says so."""
    assert LATE not in compute_results(declared).notes

    locate_declaration(declared).unlink()
    easier = {
        name: replace(claim, smallest_difference=9.0) for name, claim in declared.claims.items()
    }
    again = replace(declared, claims=easier)
    assert compute_results(again).notes[0] == LATE
    assert compute_results(replace(declared, claims={})).notes == []

    declare_study(again)
    declare_study(again)
    assert json.loads(locate_declaration(declared).read_text())["is_late"] is True
    assert compute_results(again).notes[0] == LATE


def test_a_removed_seed_changes_no_verdict(declared: StudyConfig) -> None:
    whole = format_sentences(compute_results(declared))
    results = compute_results(replace(declared, seeds=[1, 2]))
    assert results.seeds == [1, 2, 3]
    assert format_sentences(results) == whole
    assert results.notes == [
        "Declared before the first run, but no longer among the seeds of the study's file: 3. The "
        "verdicts need everything that was declared, so these measurements count, and claims are "
        "open without them."
    ]


def test_claims_are_open_while_a_removed_seed_is_not_measured(declared: StudyConfig) -> None:
    for arm in declared.arms:
        locate_measurement(declared, arm, 3).unlink()
    results = compute_results(replace(declared, seeds=[1, 2]))
    assert results.seeds == [1, 2]
    assert (
        "**Open**: URL beats text alone: 2 of 3 declared seeds; so far "
        in format_sentences(results)[0]
    )


def test_a_removed_arm_is_named_and_counts(declared: StudyConfig) -> None:
    without = {name: arm for name, arm in declared.arms.items() if name != "shuffled"}
    results = compute_results(replace(declared, arms=without))
    assert "shuffled" in results.arms
    assert "no longer among the arms of the study's file: shuffled." in results.notes[-1]
    assert len(format_sentences(results)) == 3


def test_only_declared_claims_are_tested(declared: StudyConfig) -> None:
    (name, first), *others = declared.claims.items()
    easier = replace(first, smallest_difference=9.0)
    added = replace(first, label="something that was seen")
    changed = {name: easier, **dict(others[1:]), "seen": added}
    study_now, notes = restore_declared_study(replace(declared, claims=changed))
    assert list(study_now.claims) == list(declared.claims)
    assert study_now.claims[name].smallest_difference == first.smallest_difference
    assert len(notes) == 1
    assert f"({', '.join(sorted([name, 'seen', others[0][0]]))})" in notes[0]


def test_removing_runs_from_the_file_does_not_redeclare_a_study(declared: StudyConfig) -> None:
    """Without the arms and seeds of all runs, the file looks like a study not yet begun."""
    other = replace(declared, seeds=[7], claims={})
    with pytest.raises(ConfigurationError, match="added, removed or changed since the first run"):
        declare_study(other)
    with pytest.raises(ConfigurationError, match=r"baseline none, found url"):
        declare_study(replace(declared, baseline="url"))
    coarse = replace(declared.measure, max_documents=3)
    with pytest.raises(ConfigurationError, match=r"holds a study with measure \{"):
        declare_study(
            replace(declared, measure=coarse, results_dir=str(locate_declaration(declared).parent))
        )


def test_a_declaration_older_than_claims_about_tasks_is_read(
    declared: StudyConfig,
) -> None:
    file = locate_declaration(declared)
    older = json.loads(file.read_text())
    del older["downstream"]
    for claim in older["claims"].values():
        for key in ("task", "shots", "prompt", "against_prompt", "score"):
            del claim[key]
    file.write_text(json.dumps(older))
    declare_study(declared)
    whole, notes = restore_declared_study(declared)
    assert (whole, notes) == (declared, [])
    assert [claim.verdict for claim in compute_results(declared).claims] == [
        "supported", "open", "supported",
    ]  # fmt: skip


def test_the_declared_tasks_are_read_instead_of_the_changed_file(study: StudyConfig) -> None:
    quiz = ClaimConfig(label="a", arm="url", task="quiz", shots=5, smallest_difference=0.1)
    tasks = DownstreamConfig(tasks=["quiz"], limit=9)
    declared = replace(study, claims={"quiz": quiz}, downstream=tasks)
    declare_study(declared)
    easier = replace(tasks, limit=2, arms=["none", "url"])
    restored, notes = restore_declared_study(replace(declared, downstream=easier))
    assert restored.downstream == replace(tasks, arms=["none", "url"])
    assert notes == [
        "The tasks (downstream) in the study's file differ from the tasks declared with its "
        "claims: only scores of the declared tasks are read."
    ]


def test_a_damaged_declaration_is_refused(declared: StudyConfig) -> None:
    file = locate_declaration(declared)
    no_claims = json.dumps({"seeds": [1], "arms": {}, "claims": ["url"]})
    seeds_twice = '{"seeds": [1], "seeds": [2], "arms": {}, "claims": {}}'
    for content in ("{", "[]", json.dumps({"seeds": [1]}), no_claims, seeds_twice):
        file.write_text(content)
        with pytest.raises(
            DataError, match=r"study\.json: cannot be read as the declaration"
        ) as error:
            compute_results(declared)
    assert 'an object has the key "seeds" 2 times; expected each key once' in str(error.value)


def test_arms_and_seeds_may_be_added_but_nothing_changed(tmp_path: Path) -> None:
    declare_study(loaded(tmp_path))
    arms = SMALL_STUDY["arms"] | {"title": {"overrides": []}}
    declare_study(loaded(tmp_path, seeds=[1, 2, 3], arms=arms))
    earlier = r"overrides \['max_train_steps=20'\], found \['learning_rate=1'\]"
    with pytest.raises(ConfigurationError, match=f"holds a study with {earlier}"):
        declare_study(loaded(tmp_path, overrides=["learning_rate=1"]))
    changed = SMALL_STUDY["arms"] | {"url": {"overrides": ["learning_rate=1"]}}
    with pytest.raises(
        ConfigurationError, match=r"arms\.url\.overrides .* found \['learning_rate=1'\]"
    ):
        declare_study(loaded(tmp_path, arms=changed))


def test_kept_settings_and_commands_hold_no_secrets(tmp_path: Path) -> None:
    secret = "https://" + "a1" * 12 + "@host.invalid"
    study = loaded(tmp_path, overrides=["max_train_steps=20", f"run_name={secret}"])
    declare_study(study)
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    hidden = "run_name=https://[redacted]@host.invalid"
    assert kept["overrides"] == ["max_train_steps=20", hidden]
    declare_study(study)  # they have not changed
    line = Launcher(study).format_command(list_runs(study)[0])
    assert line is not None
    assert hidden in line
    assert secret not in line


def test_a_start_replaces_the_kept_settings_in_one_operation(tmp_path: Path) -> None:
    declare_study(loaded(tmp_path))
    with (tmp_path / "study" / "study.json").open() as earlier:  # by another task of an array
        declare_study(loaded(tmp_path, seeds=[1, 2, 3]))
        assert json.load(earlier)["seeds"] == [3, 1]
    assert json.loads((tmp_path / "study" / "study.json").read_text())["seeds"] == [1, 2, 3]


def test_claims_are_declared_before_the_first_run(tmp_path: Path) -> None:
    declare_study(loaded(tmp_path, claims={"a": CLAIM}))
    larger = {"a": {**CLAIM, "smallest_difference": 0.02}}
    declare_study(loaded(tmp_path, claims=larger))  # nothing has been run
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    worded = {"a": {**larger["a"], "label": "it helps", "pilot_deviation": 0.01}}
    declare_study(loaded(tmp_path, claims=worded))  # the test is the same
    changes = {
        "a changed": {"a": CLAIM},
        "b added": {**larger, "b": CLAIM},
        "a removed": {},
    }
    for what, claims in changes.items():
        with pytest.raises(ConfigurationError, match=f"claims: {what[0]} added, removed or chan"):
            declare_study(loaded(tmp_path, claims=claims))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["claims"]["a"]["smallest_difference"] == 0.02
    declare_study(loaded(tmp_path, claims=larger, seeds=[3, 1, 7]))
    assert json.loads((tmp_path / "study" / "study.json").read_text())["seeds"] == [3, 1]


def test_the_tasks_of_claims_are_declared_before_the_first_run(tmp_path: Path) -> None:
    quiz = {**CLAIM, "task": "quiz", "shots": 5}
    tasks = {"tasks": ["quiz"], "shots": [5]}
    more = {**tasks, "shots": [0, 5]}
    declare_study(loaded(tmp_path, claims={"a": quiz}, downstream=tasks))
    declare_study(loaded(tmp_path, claims={"a": quiz}, downstream=more))  # nothing has been run
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    declare_study(
        loaded(tmp_path, claims={"a": quiz}, downstream={**more, "arms": ["none", "url"]})
    )
    with pytest.raises(ConfigurationError, match=r"downstream.limit=9, expected None: changed sin"):
        declare_study(loaded(tmp_path, claims={"a": quiz}, downstream={**more, "limit": 9}))
    for other in ({**quiz, "shots": 0}, {**quiz, "score": "accuracy"}, CLAIM):
        with pytest.raises(ConfigurationError, match="claims: a added, removed or changed since"):
            declare_study(loaded(tmp_path, claims={"a": other}, downstream=more))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["claims"]["a"]["task"] == "quiz"
    assert kept["downstream"] == {
        "tasks": ["quiz"], "include_path": None, "shots": [0, 5], "prompts": {}, "limit": None
    }  # fmt: skip


def test_tasks_without_claims_may_change(tmp_path: Path) -> None:
    declare_study(loaded(tmp_path, claims={"a": CLAIM}, downstream={"tasks": ["quiz"]}))
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    declare_study(loaded(tmp_path, claims={"a": CLAIM}, downstream={"tasks": ["riddle"]}))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["downstream"] is None
