"""Machines and order as other explanations of a difference, and the order of a study's runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.environment import hash_machine_name
from bsmeta.studies.conditions import compute_permutation_p_value
from bsmeta.studies.config import StudyConfig
from bsmeta.studies.declaration import declare_study, locate_declaration, restore_declared_order
from bsmeta.studies.report import write_report
from bsmeta.studies.results import Results, compute_results
from bsmeta.studies.runs import Launcher, list_runs
from tests.studies.conftest import save
from tests.studies.simulated import flat, measurement

SEEDS = list(range(1, 13))


def start(machine: str, minute: int, **changes: object) -> dict[str, object]:
    return {
        "machine": machine, "processor": "Xeon", "commit": "a" * 40, "is_clean": True,
        "started": f"2026-01-01T00:{minute:02}:00.000+00:00", "ended": None, **changes,
    }  # fmt: skip


def results(
    study: StudyConfig,
    machines: list[str],
    deviations: dict[str, float],
    starts: dict[tuple[str, int], list[dict[str, object]]] | None = None,
) -> Results:
    """A study of twelve seeds, trained in order, whose URL effect depends on the machine.

    Args:
        machines: The machine of each seed.
        deviations: By machine: what the URL changes, besides 0.002 times a normal draw per seed.
        starts: Of single runs, in place of a start on the machine of the seed.
    """
    study = replace(study, seeds=SEEDS, curve=[1.0])
    generator = np.random.default_rng(5)
    for number, (seed, machine) in enumerate(zip(SEEDS, machines, strict=True)):
        level = 2 + generator.normal(0, 0.05)
        for place, arm in enumerate(study.arms):
            gain = deviations[machine] + generator.normal(0, 0.002) if arm == "url" else 0.0
            text = flat(level + gain + generator.normal(0, 0.002), bins=2)
            run = measurement(text, None if arm == "none" else text)
            given = (starts or {}).get((arm, seed), [start(machine, 4 * number + place)])
            save(study, arm, seed, replace(run, facts={**run.facts, "trained": given}))
    return compute_results(study)


@pytest.mark.long
def test_an_effect_that_depends_on_the_machine_is_named(study: StudyConfig) -> None:
    study_results = results(study, ["a"] * 6 + ["b"] * 6, {"a": 0.0, "b": 0.02})
    by_name = {(tested.name, tested.factor): tested for tested in study_results.conditions}
    by_machine = by_name["URL beats text alone", "machine"]
    assert by_machine.counts == {"a": 6, "b": 6}
    assert by_machine.means["b"] - by_machine.means["a"] == pytest.approx(0.02, abs=0.005)
    assert by_machine.p_value == pytest.approx(2 / 924)  # both extremes of all divisions in half
    assert any(
        note.startswith("URL beats text alone: the difference depends on the machine of the seeds")
        for note in study_results.notes
    )
    write_report(study_results, Path("study.yaml"), {}, [])
    text = (Path(study.out_dir) / "report.md").read_text()
    assert "### Machine and order" in text
    raw = json.loads((Path(study.out_dir) / "results.json").read_text())
    assert {tested["factor"] for tested in raw["conditions"]} == {"machine", "order"}


def test_machines_without_an_effect_are_not_named(study: StudyConfig) -> None:
    study_results = results(study, ["a", "b"] * 6, {"a": 0.01, "b": 0.01})
    assert {tested.factor for tested in study_results.conditions} == {"machine", "order"}
    named = [note for note in study_results.notes if "depends on" in note]
    assert len(named) == sum((tested.p_value or 1) <= 0.05 for tested in study_results.conditions)
    assert not any("depends on the machine" in note for note in named)


def test_on_one_machine_only_the_order_is_tested(study: StudyConfig) -> None:
    study_results = results(study, ["a"] * 12, {"a": 0.01})
    assert {tested.factor for tested in study_results.conditions} == {"order"}
    assert study_results.conditions[0].counts == {"first half": 6, "second half": 6}


def test_arms_of_a_seed_on_different_machines_are_named(study: StudyConfig) -> None:
    study_results = results(
        study, ["a"] * 12, {"a": 0.0},
        {("url", 3): [start("b", 9, is_clean=False, commit="b" * 40)]},
    )  # fmt: skip
    assert study_results.notes[-3:] == [
        "The arms of seed 3 were trained on different machines: a difference between them may be "
        "one of machines.",
        "The runs were trained by 2 commits of the code: aaaaaaaa, bbbbbbbb.",
        "The code of 1 runs had changes that are in no commit.",
    ]


def test_older_measurements_are_compared_without_their_machines(kept: StudyConfig) -> None:
    study_results = compute_results(kept)
    assert study_results.conditions == []
    assert study_results.shared[-1] == (
        "Machine and times of 9 of 9 runs are not recorded (measurements that are older than the "
        "record), so no difference is tested against machine or order."
    )


def test_the_permutation_test_holds_its_level() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(300):
        values = generator.normal(size=8)
        p_value = compute_permutation_p_value([values[:4], values[4:]])
        assert p_value is not None
        rejected += p_value <= 0.05
    assert rejected <= 27  # 99.9% of binomial draws of 300 at 5%


def test_few_seeds_have_no_p_value() -> None:
    assert compute_permutation_p_value([np.array([1.0, 2.0]), np.array([3.0])]) is None
    assert compute_permutation_p_value([np.arange(3.0)]) is None
    assert compute_permutation_p_value([np.arange(3.0), np.arange(3.0)]) is None  # at best 2 of 20
    separated = compute_permutation_p_value([np.arange(4.0), np.arange(4.0) + 10])
    assert separated == pytest.approx(2 / 70)


def test_a_run_whose_other_arms_ran_on_another_machine_warns(
    study: StudyConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch script fails at once here; the warning is printed before."""
    text = flat(2.0, bins=2)
    here = [start(hash_machine_name(), 0)]
    for seed, starts in ((1, here), (2, [start("elsewhere", 1)])):
        run = measurement(text)
        save(study, "none", seed, replace(run, facts={**run.facts, "trained": starts}))
    launcher = Launcher(study)
    monkeypatch.setattr(launcher, "build_command", lambda run: ["false"])
    launcher.launch_all([run for run in list_runs(study) if run.arm == "url" and run.seed < 3])
    printed = capsys.readouterr().out
    assert "url seed 2: other arms of seed 2 were trained on another machine" in printed
    assert "url seed 1: other arms" not in printed


def list_seeds(study: StudyConfig) -> list[int]:
    return list(dict.fromkeys(run.seed for run in list_runs(study)))


def test_seeds_are_trained_in_a_random_order_and_their_arms_together(study: StudyConfig) -> None:
    study = replace(study, seeds=SEEDS)
    order = list_seeds(study)
    assert sorted(order) == SEEDS
    assert order != SEEDS
    assert [run.seed for run in list_runs(study)] == [seed for seed in order for _ in study.arms]
    assert list_seeds(study) == order  # the same on every machine
    assert list_seeds(replace(study, title="another")) != order
    more = list_seeds(replace(study, seeds=[*SEEDS, 13, 14]))
    assert [seed for seed in more if seed <= 12] == order  # added seeds leave the others in order
    assert list_seeds(replace(study, random_order=False)) == SEEDS


def test_a_declared_study_keeps_its_order(study: StudyConfig) -> None:
    study = replace(study, seeds=SEEDS)
    declare_study(study)
    assert restore_declared_order(replace(study, random_order=False)).random_order
    declared = json.loads(locate_declaration(study).read_text())
    del declared["random_order"]  # as before the key existed
    locate_declaration(study).write_text(json.dumps(declared))
    assert list_seeds(restore_declared_order(study)) == SEEDS


def test_a_study_that_was_started_without_a_declaration_keeps_its_order(kept: StudyConfig) -> None:
    assert not locate_declaration(kept).exists()
    assert not restore_declared_order(kept).random_order


def test_a_new_study_has_the_configured_order(study: StudyConfig) -> None:
    assert restore_declared_order(study).random_order
    assert not restore_declared_order(replace(study, random_order=False)).random_order
