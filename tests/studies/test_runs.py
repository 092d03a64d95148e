"""The runner of a study: what it starts, what it keeps, and what it refuses."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.studies.config import StudyConfig, load_study
from bsmeta.studies.declaration import declare_study
from bsmeta.studies.runs import (
    Launcher,
    Progress,
    Run,
    check_study,
    drop_replaced_overrides,
    find_measurement,
    hash_settings,
    list_curve_steps,
    list_overrides,
    list_runs,
    locate_measurement,
    read_progress,
)
from tests.launching.helpers import EXPERIMENTS, environment, list_pasted
from tests.studies.conftest import a_run, save
from tests.studies.simulated import flat, measurement
from tests.studies.study_files import BRANCHED, CLAIM, NONE, URL, finished, loaded, study_file
from tests.waiting import STUCK_S

STUDY = [sys.executable, str(EXPERIMENTS / "study.py")]

SHORT = ["max_train_steps=20", "num_warmup_steps=2"]


def study_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STUDY, "study.yaml", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def test_runs_are_ordered_by_seed_with_baseline_first_and_branches_last(
    tmp_path: Path,
) -> None:
    assert [run.folder.name for run in list_runs(loaded(tmp_path))] == [
        "none-seed3", "url-seed3", "short-seed3", "none-seed1", "url-seed1", "short-seed1",
    ]  # fmt: skip


def test_a_study_starts_the_runs_of_its_file_in_order(tmp_path: Path) -> None:
    study_file(tmp_path)
    done = study_command(tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [shlex.split(line) for line in lines[:2]] == [
        [
            "BSMETA_RESUME=",
            "BSMETA_CONFIG=demo",
            f"{EXPERIMENTS}/train.sh",
            "max_train_steps=20",
            types,
            "seed=3",
            "extra_steps_to_eval_save_at=[2,10,20]",
            "keep_last_checkpoints=0",
            "export_steps=null",
            "log_documents=true",
            f"out_dir='{tmp_path}/study/runs/{name}-seed3'",
            "resume_from_checkpoint_dir=latest",
        ]
        for name, types in (("none", NONE), ("url", URL))
    ]
    assert lines[2] == "# short seed 3: needs other runs"
    assert len(lines) == 6
    assert not (tmp_path / "study").exists()


@pytest.mark.long
def test_the_printed_commands_can_be_pasted(tmp_path: Path) -> None:
    sep = 'data_config.metadata_config.metadata_sep=" ; $x \'s"'
    study_file(tmp_path, overrides=["max_train_steps=20", sep])
    done = study_command(tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    started = list_pasted(done.stdout.splitlines()[1], tmp_path)
    own = f"out_dir='{tmp_path}/study/runs/url-seed3'"
    assert {"max_train_steps=20", sep, URL, "seed=3", own} <= {*started}


def test_the_commands_of_a_report_can_be_pasted(tmp_path: Path) -> None:
    (run, *_) = list_runs(study := loaded(tmp_path))
    line = Launcher(study).format_command(run)
    assert line is not None
    assert "seed=3" in list_pasted(f"{line}  # {run.name}", tmp_path)


def test_a_configuration_file_is_composed_as_by_the_runs(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("defaults: [demo, _self_]\nmax_train_steps: 40\n")
    arms = {"none": {"overrides": ["max_train_steps=60"]}, "url": {"overrides": [URL]}}
    study = loaded(tmp_path, config=str(own), overrides=[], arms=arms)
    none, url = list_runs(study)[:2]
    assert "extra_steps_to_eval_save_at=[6,31,60]" in (list_overrides(study, none) or [])
    assert "extra_steps_to_eval_save_at=[4,21,40]" in (list_overrides(study, url) or [])
    with pytest.raises(ConfigurationError, match=r"arm short: .*\n.*nonsense_key"):
        check_study(loaded(tmp_path, config=str(own), overrides=["nonsense_key=3"]))
    with pytest.raises(ConfigurationError, match="other.yaml: there is no such file"):
        check_study(loaded(tmp_path, config=str(tmp_path / "other.yaml")))


def test_an_arm_can_have_the_same_number_of_text_tokens_as_another(tmp_path: Path) -> None:
    study = loaded(tmp_path)
    short = list_runs(study)[2]
    finished(tmp_path, "none-seed3", step=20, targets=4000)  # 200 text tokens a step
    assert list_overrides(study, short) is None
    finished(tmp_path, "url-seed3", step=20, targets=3000)
    overrides = list_overrides(study, short)
    assert overrides is not None
    assert "max_train_steps=15" in overrides
    assert "extra_steps_to_eval_save_at=[2,8,15]" in overrides


def test_the_table_shows_the_progress_of_the_runs(tmp_path: Path) -> None:
    study_file(tmp_path)
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    done = study_command(tmp_path, "--status")
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if "seed" not in line]
    assert "none 3 done 20 4,000 4,096 2.5000" in rows
    assert "url 3 not started 0 0 0 –" in rows
    assert "short 3 waits 0 0 0 –" in rows


@pytest.mark.long
def test_only_the_runs_of_a_chosen_seed_are_started(tmp_path: Path) -> None:
    study_file(tmp_path, out_dir=str(tmp_path / "study"))
    for name in ("none-seed1", "url-seed1", "short-seed1"):
        finished(tmp_path, name, step=20, targets=3000)
    done = study_command(tmp_path, "--seed", "1")  # the second seed: nothing is left to train
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == [
        "[1/3] none seed 1: done before",
        "[2/3] url seed 1: done before",
        "[3/3] short seed 1: done before",
    ]
    refused = study_command(tmp_path, "--seed", "2")
    assert refused.returncode == 2
    assert "--seed 2: expected 0 to 1" in refused.stderr


def test_a_run_measured_elsewhere_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = loaded(tmp_path, results_dir=str(tmp_path / "kept"))
    run = measurement(flat(2.0), targets=(4000,), steps=np.array([20]))
    replace(run, settings=hash_settings(study, "none", 3)).save(
        locate_measurement(study, "none", 3)
    )
    none, _, short = list_runs(study)[:3]
    assert read_progress(study, none) == Progress("done", 20, 4000, 4000, 2.5)
    finished(tmp_path, "url-seed3", step=20, targets=3000)
    assert "max_train_steps=15" in (list_overrides(study, short) or [])  # 200 text tokens a step
    started = []

    def execute(launcher: Launcher, command: list[str], run: Run) -> int:
        started.append((command, run.name))
        return 0

    monkeypatch.setattr(Launcher, "execute", execute)
    assert Launcher(study).launch_all(list_runs(study)[:2], ["measure"]) == 0
    assert started == [(["measure"], "url seed 3")]  # nothing is trained


def test_a_branch_starts_from_its_stable_run(tmp_path: Path) -> None:
    study = loaded(tmp_path, arms=BRANCHED, overrides=SHORT, curve=[0.5, 1.0])
    check_study(study)
    names = ["none", "none_18", "url", "url_18"]
    assert [run.arm for run in list_runs(study)] == [*names, *names]
    url, branch = list_runs(study)[2:4]
    assert "extra_steps_to_eval_save_at=[10,16,20]" in (list_overrides(study, url) or [])

    assert list_overrides(study, branch) is None
    finished(tmp_path, "url-seed3", step=20, targets=4000)
    assert list_overrides(study, branch) == [
        "num_warmup_steps=2",
        URL,
        "save_steps=1",
        "lr_scheduler_type=wsd",
        "num_decay_steps=2",
        "max_train_steps=18",
        "seed=3",
        f"decay_from='{tmp_path}/study/runs/url-seed3/checkpoint-16step'",
        "extra_steps_to_eval_save_at=[18]",  # step 9 is one of the stable run
        "keep_last_checkpoints=0",
        "export_steps=null",
        "log_documents=true",
    ]


def test_a_stable_run_follows_the_arm_whose_text_tokens_it_has(tmp_path: Path) -> None:
    arms = {
        "none": {},
        "b": {"branch_of": "c", "branch_at": 12, "decay_steps": 6},
        "c": {"text_tokens_of": "d"},
        "d": {},
    }
    study = loaded(tmp_path, arms=arms, seeds=[1], claims={})
    assert [run.arm for run in list_runs(study)] == ["none", "d", "c", "b"]


def test_a_branch_without_its_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = loaded(tmp_path, arms=BRANCHED, seeds=[3])
    finished(tmp_path, "url-seed3", step=20, targets=4000)
    (branch,) = (run for run in list_runs(study) if run.arm == "url_18")
    assert Launcher(study).launch_all([branch]) == 1
    assert "checkpoint-16step: url seed 3 was trained on another machine" in capsys.readouterr().out


def test_a_branch_after_the_end_of_its_stable_run_is_refused(tmp_path: Path) -> None:
    late = {"branch_of": "url", "branch_at": 21, "decay_steps": 2}
    with pytest.raises(ConfigurationError, match=r"branch_at=21: expected a step of url, which .*"):
        check_study(loaded(tmp_path, arms={**BRANCHED, "late": late}, overrides=SHORT))


def test_a_branch_that_begins_elsewhere_is_another_measurement(tmp_path: Path) -> None:
    study = loaded(tmp_path, arms=BRANCHED)
    other = loaded(tmp_path, arms=BRANCHED | {"url_18": {**BRANCHED["url_18"], "branch_at": 15}})
    assert hash_settings(study, "url_18", 3) != hash_settings(other, "url_18", 3)
    assert hash_settings(study, "url", 3) == hash_settings(other, "url", 3)
    declare_study(study)
    with pytest.raises(ConfigurationError, match=r"arms\.url_18\.branch_at 16, found 15"):
        declare_study(other)


def test_a_misspelled_key_is_refused_before_the_first_run(tmp_path: Path) -> None:
    arms = {"none": {"overrides": ["learning_rat=1"]}}
    with pytest.raises(ConfigurationError, match=r"(?s)arm none: .*learning_rat "):
        check_study(loaded(tmp_path, arms=arms))


def test_invalid_values_are_refused_before_the_first_run(tmp_path: Path) -> None:
    templates = "data_config.metadata_config.metadata_templates={title:'{value}'}"
    arms = {"none": {"overrides": [NONE, templates, "max_train_steps=0"]}}
    message = r"(?s)arm none: .*max_train_steps.*metadata_templates .* found the type title"
    with pytest.raises(ConfigurationError, match=message):
        check_study(loaded(tmp_path, arms=arms, overrides=[]))


@pytest.mark.long
def test_a_type_not_trained_by_an_arm_is_refused_before_the_first_run(
    tmp_path: Path,
) -> None:
    title = {**CLAIM, "metadata": "title"}
    with pytest.raises(
        ConfigurationError,
        match=r"claims.a.metadata=title: expected metadata that the arm url is trained with: "
        r"without, or some of \['url'\]",
    ):
        check_study(loaded(tmp_path, claims={"a": title}))
    with pytest.raises(ConfigurationError, match=r"claims.a.against_metadata=with: .* arm none "):
        check_study(loaded(tmp_path, claims={"a": {**CLAIM, "against_metadata": "with"}}))
    check_study(loaded(tmp_path, claims={"a": {**CLAIM, "metadata": "with"}}))
    contrast = {**CLAIM, "metadata": "with", "minus_arm": "none", "minus_against": "short"}
    with pytest.raises(ConfigurationError, match=r"claims.a.metadata=with: .* arm none "):
        check_study(loaded(tmp_path, claims={"a": contrast}))


def test_the_declared_claims_are_printed_before_the_first_run(tmp_path: Path) -> None:
    study_file(tmp_path, claims={"a": {**CLAIM, "pilot_deviation": 0.001}})
    done = study_command(tmp_path, "--claims")
    assert done.returncode == 0, done.stderr
    assert "URL beats text" in done.stdout
    assert "73%" in done.stdout  # noncentral t: 1 degree, 10 standard deviations
    assert not (tmp_path / "study").exists()


def test_the_shares_of_a_curve_become_distinct_steps(tmp_path: Path) -> None:
    study = loaded(tmp_path, curve=[0.001, 0.5])
    assert list_curve_steps(study, "none", 100) == [1, 50, 100]
    assert list_curve_steps(study, "none", 1) == [1]


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        (["a=1", "b=2", "a=3"], ["b=2", "a=3"]),
        (["a.b=1", "a=1", "a.b=2"], ["a=1", "a.b=2"]),
        (["a={b: 1}", "a={c: 2}"], ["a={b: 1}", "a={c: 2}"]),
        (["a={b: 1}", "a={c: 2}", "a=null"], ["a=null"]),
        (["+a=1", "a=2"], ["+a=1", "a=2"]),
        (["a=[x=1]", "a=[x=2]"], ["a=[x=2]"]),
        ([], []),
    ],
)
def test_only_the_last_override_of_a_key_is_printed(overrides: list[str], kept: list[str]) -> None:
    assert drop_replaced_overrides(overrides) == kept


def test_no_command_of_a_run_repeats_a_key(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path))
    study = replace(
        study,
        overrides=[*study.overrides, "max_train_steps=60", "keep_last_checkpoints=3"],
        arms={
            name: replace(arm, overrides=[*arm.overrides, "max_train_steps=50"])
            for name, arm in study.arms.items()
        },
    )
    for run in list_runs(study):
        overrides = list_overrides(study, run)
        if overrides is None:  # waits for another run
            continue
        keys = [override.partition("=")[0] for override in overrides]
        assert len(keys) == len(set(keys)), keys
        assert "keep_last_checkpoints=0" in overrides


def test_a_measurement_round_trips(study: StudyConfig) -> None:
    run = a_run([4.0, 3.0, 2.0], -0.25, seed=1)
    save(study, "url", 1, run)
    found = find_measurement(study, "url", 1)
    assert found is not None
    assert found.facts == run.facts
    assert found.steps.tolist() == [100, 200, 400]
    assert found.sites.tolist() == ["a.org"] * 20
    assert np.allclose(found.nats_without, run.nats_without, rtol=1e-6)
    assert list(found.nats_by_types) == ["url"]
    assert locate_measurement(study, "url", 1).stat().st_size < 10_000
    assert find_measurement(study, "url", 2) is None
