"""The runner of a study: what it starts, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from bsmeta.core.errors import ConfigurationError
from bsmeta.studies.config import StudyConfig, load_study
from bsmeta.studies.declaration import declare
from bsmeta.studies.runs import (
    Launcher,
    Progress,
    Run,
    check,
    curve_steps,
    last_of_each_key,
    measurement_path,
    overrides_of,
    progress_of,
    runs_of,
    settings_of,
)
from tests.launching.helpers import EXPERIMENTS, environment, pasted
from tests.studies.simulated import flat, measurement
from tests.waiting import STUCK_S

STUDY = [sys.executable, str(EXPERIMENTS / "study.py")]
NONE = "data_config.metadata_config.metadata_list=[]"
URL = "data_config.metadata_config.metadata_list=[url]"
SMALL_STUDY = {
    "out_dir": "study",
    "config": "demo",
    "seeds": [3, 1],
    "random_order": False,
    "baseline": "none",
    "overrides": ["max_train_steps=20"],
    "arms": {
        "short": {"overrides": [NONE], "text_tokens_of": "url"},
        "url": {"overrides": [URL]},
        "none": {"overrides": [NONE]},
    },
    "curve": [0.1, 0.52, 1.0],
}


DECAY = {"branch_at": 16, "decay_steps": 2}
BRANCHED = {
    "none_18": {"branch_of": "none", **DECAY},
    "none": {"overrides": [NONE]},
    "url": {"overrides": [URL]},
    "url_18": {"branch_of": "url", **DECAY, "overrides": ["save_steps=1"]},
}
"""Two arms at a constant rate, and a decay of each."""

SHORT = ["max_train_steps=20", "num_warmup_steps=2"]

CLAIM = {"label": "URL beats text", "arm": "url", "smallest_difference": 0.01}


def study_file(folder: Path, **changes: object) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**SMALL_STUDY, **changes}, sort_keys=False))
    return path


def loaded(folder: Path, **changes: object) -> StudyConfig:
    return replace(load_study(study_file(folder, **changes)), out_dir=str(folder / "study"))


def finished(folder: Path, name: str, step: int, targets: int) -> None:
    """A run folder as a finished run leaves it."""
    run = folder / "study" / "runs" / name
    run.mkdir(parents=True)
    (run / "status.json").write_text('{"state": "done"}')
    event = {"event": "step", "step": step, "loss": 2.5, "tokens": 4096, "targets": targets}
    (run / "metrics.jsonl").write_text(json.dumps(event) + "\n")


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


def test_seeds_come_first_then_the_baseline_and_last_what_follows_from_others(
    tmp_path: Path,
) -> None:
    assert [run.folder.name for run in runs_of(loaded(tmp_path))] == [
        "none-seed3", "url-seed3", "short-seed3", "none-seed1", "url-seed1", "short-seed1",
    ]  # fmt: skip


def test_what_a_study_starts(tmp_path: Path) -> None:
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


def test_the_printed_commands_can_be_pasted(tmp_path: Path) -> None:
    sep = 'data_config.metadata_config.metadata_sep=" ; $x \'s"'
    study_file(tmp_path, overrides=["max_train_steps=20", sep])
    done = study_command(tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    started = pasted(done.stdout.splitlines()[1], tmp_path)
    own = f"out_dir='{tmp_path}/study/runs/url-seed3'"
    assert {"max_train_steps=20", sep, URL, "seed=3", own} <= {*started}


def test_the_commands_of_a_report_can_be_pasted(tmp_path: Path) -> None:
    (run, *_) = runs_of(study := loaded(tmp_path))
    line = Launcher(study).line(run)
    assert line is not None
    assert "seed=3" in pasted(f"{line}  # {run.name}", tmp_path)


def test_a_configuration_file_is_composed_as_the_runs_compose_it(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("defaults: [demo, _self_]\nmax_train_steps: 40\n")
    arms = {"none": {"overrides": ["max_train_steps=60"]}, "url": {"overrides": [URL]}}
    study = loaded(tmp_path, config=str(own), overrides=[], arms=arms)
    none, url = runs_of(study)[:2]
    assert "extra_steps_to_eval_save_at=[6,31,60]" in (overrides_of(study, none) or [])
    assert "extra_steps_to_eval_save_at=[4,21,40]" in (overrides_of(study, url) or [])
    with pytest.raises(ConfigurationError, match=r"arm short: .*\n.*nonsense_key"):
        check(loaded(tmp_path, config=str(own), overrides=["nonsense_key=3"]))
    with pytest.raises(ConfigurationError, match="other.yaml: there is no such file"):
        check(loaded(tmp_path, config=str(tmp_path / "other.yaml")))


def test_an_arm_gets_as_many_text_tokens_as_another(tmp_path: Path) -> None:
    study = loaded(tmp_path)
    short = runs_of(study)[2]
    finished(tmp_path, "none-seed3", step=20, targets=4000)  # 200 text tokens a step
    assert overrides_of(study, short) is None
    finished(tmp_path, "url-seed3", step=20, targets=3000)
    overrides = overrides_of(study, short)
    assert overrides is not None
    assert "max_train_steps=15" in overrides
    assert "extra_steps_to_eval_save_at=[2,8,15]" in overrides


def test_the_table_shows_how_far_the_runs_are(tmp_path: Path) -> None:
    study_file(tmp_path)
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    done = study_command(tmp_path, "--status")
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if "seed" not in line]
    assert "none 3 done 20 4,000 4,096 2.5000" in rows
    assert "url 3 not started 0 0 0 –" in rows
    assert "short 3 waits 0 0 0 –" in rows


def test_arms_and_seeds_may_be_added_but_nothing_changed(tmp_path: Path) -> None:
    declare(loaded(tmp_path))
    arms = SMALL_STUDY["arms"] | {"title": {"overrides": []}}
    declare(loaded(tmp_path, seeds=[1, 2, 3], arms=arms))
    earlier = r"overrides \['max_train_steps=20'\], found \['learning_rate=1'\]"
    with pytest.raises(ConfigurationError, match=f"holds a study with {earlier}"):
        declare(loaded(tmp_path, overrides=["learning_rate=1"]))
    changed = SMALL_STUDY["arms"] | {"url": {"overrides": ["learning_rate=1"]}}
    with pytest.raises(
        ConfigurationError, match=r"arms\.url\.overrides .* found \['learning_rate=1'\]"
    ):
        declare(loaded(tmp_path, arms=changed))


def test_kept_settings_and_commands_hold_no_secrets(tmp_path: Path) -> None:
    secret = "https://" + "a1" * 12 + "@host.invalid"
    study = loaded(tmp_path, overrides=["max_train_steps=20", f"run_name={secret}"])
    declare(study)
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    hidden = "run_name=https://[redacted]@host.invalid"
    assert kept["overrides"] == ["max_train_steps=20", hidden]
    declare(study)  # they have not changed
    line = Launcher(study).line(runs_of(study)[0])
    assert line is not None
    assert hidden in line
    assert secret not in line


def test_a_start_replaces_the_kept_settings_in_one_operation(tmp_path: Path) -> None:
    declare(loaded(tmp_path))
    with (tmp_path / "study" / "study.json").open() as earlier:  # by another task of an array
        declare(loaded(tmp_path, seeds=[1, 2, 3]))
        assert json.load(earlier)["seeds"] == [3, 1]
    assert json.loads((tmp_path / "study" / "study.json").read_text())["seeds"] == [1, 2, 3]


def test_claims_are_declared_before_the_first_run(tmp_path: Path) -> None:
    declare(loaded(tmp_path, claims={"a": CLAIM}))
    larger = {"a": {**CLAIM, "smallest_difference": 0.02}}
    declare(loaded(tmp_path, claims=larger))  # nothing has been run
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    worded = {"a": {**larger["a"], "label": "it helps", "pilot_deviation": 0.01}}
    declare(loaded(tmp_path, claims=worded))  # the test is the same
    changes = {
        "a changed": {"a": CLAIM},
        "b added": {**larger, "b": CLAIM},
        "a removed": {},
    }
    for what, claims in changes.items():
        with pytest.raises(ConfigurationError, match=f"claims: {what[0]} added, removed or chan"):
            declare(loaded(tmp_path, claims=claims))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["claims"]["a"]["smallest_difference"] == 0.02
    declare(loaded(tmp_path, claims=larger, seeds=[3, 1, 7]))
    assert json.loads((tmp_path / "study" / "study.json").read_text())["seeds"] == [3, 1]


def test_the_tasks_of_claims_are_declared_before_the_first_run(tmp_path: Path) -> None:
    quiz = {**CLAIM, "task": "quiz", "shots": 5}
    tasks = {"tasks": ["quiz"], "shots": [5]}
    more = {**tasks, "shots": [0, 5]}
    declare(loaded(tmp_path, claims={"a": quiz}, downstream=tasks))
    declare(loaded(tmp_path, claims={"a": quiz}, downstream=more))  # nothing has been run
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    declare(loaded(tmp_path, claims={"a": quiz}, downstream={**more, "arms": ["none", "url"]}))
    with pytest.raises(ConfigurationError, match=r"downstream.limit=9, expected None: changed sin"):
        declare(loaded(tmp_path, claims={"a": quiz}, downstream={**more, "limit": 9}))
    for other in ({**quiz, "shots": 0}, {**quiz, "score": "accuracy"}, CLAIM):
        with pytest.raises(ConfigurationError, match="claims: a added, removed or changed since"):
            declare(loaded(tmp_path, claims={"a": other}, downstream=more))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["claims"]["a"]["task"] == "quiz"
    assert kept["downstream"] == {
        "tasks": ["quiz"], "include_path": None, "shots": [0, 5], "prompts": {}, "limit": None
    }  # fmt: skip


def test_without_claims_about_them_tasks_may_change(tmp_path: Path) -> None:
    declare(loaded(tmp_path, claims={"a": CLAIM}, downstream={"tasks": ["quiz"]}))
    finished(tmp_path, "none-seed3", step=20, targets=4000)
    declare(loaded(tmp_path, claims={"a": CLAIM}, downstream={"tasks": ["riddle"]}))
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["downstream"] is None


def test_the_runs_of_one_seed(tmp_path: Path) -> None:
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


def test_a_run_that_was_measured_elsewhere_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = loaded(tmp_path, results_dir=str(tmp_path / "kept"))
    run = measurement(flat(2.0), targets=(4000,), steps=np.array([20]))
    replace(run, settings=settings_of(study, "none", 3)).save(measurement_path(study, "none", 3))
    none, _, short = runs_of(study)[:3]
    assert progress_of(study, none) == Progress("done", 20, 4000, 4000, 2.5)
    finished(tmp_path, "url-seed3", step=20, targets=3000)
    assert "max_train_steps=15" in (overrides_of(study, short) or [])  # 200 text tokens a step
    started = []

    def execute(launcher: Launcher, command: list[str], run: Run) -> int:
        started.append((command, run.name))
        return 0

    monkeypatch.setattr(Launcher, "execute", execute)
    assert Launcher(study).make_all(runs_of(study)[:2], ["measure"]) == 0
    assert started == [(["measure"], "url seed 3")]  # nothing is trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"claims": {"a": {"arm": "nun", "at": 2, "bytes": [3], "metadata": "a+b"}}},
            r"(?s)claims.a.at=2.0: expected 1 or less.*claims.a.label is missing.*"
            r"claims.a.smallest_difference is missing.*claims.a.arm=nun: expected one of the arms "
            r"short, url, none.*claims.a.at=2.0: expected 1.0 or a share of curve.*"
            r"claims.a.metadata=a\+b: expected without, with, a type or one of measure.comb.*"
            r"claims.a.bytes=\[3\]: expected one or two rising numbers of \[0, 256, 1024, 4096\]",
        ),
        (
            {"claims": {"a": {**CLAIM, "pilot_deviation": 0}}},
            "claims.a.pilot_deviation=0.0: expected a number above 0",
        ),
        (
            {"claims": {"a": {**CLAIM, "equal": "steps"}}},
            'claims.a.equal="steps": expected one of text tokens, all tokens, FLOPs',
        ),
        (
            {"claims": {"a": {**CLAIM, "metadata": "url", "saves": 0.1}}},
            "claims.a.metadata=url: types are measured at the end of a run",
        ),
        (
            {"measure": {"each_type": False, "combinations": ["title+url"]}},
            "measure.combinations: expected none, or measure.each_type=true",
        ),
        ({"claims": {"a": {"armm": "url"}}}, "armm.*expected the keys label, arm, metadata"),
        ({"baseline": "nun"}, "baseline=nun: expected one of the arms short, url, none"),
        (
            {"measure": {"position_edges": [256, 512], "length_edges": [4000, 1000]}},
            r"(?s)measure.position_edges=\[256, 512\]: expected rising numbers that begin with 0"
            r".*measure.length_edges=\[4000, 1000\]: expected rising numbers",
        ),
        (
            {"measure": {"position_edges": [0, 512, 256]}},
            r"measure.position_edges=\[0, 512, 256\]: expected rising numbers that begin with 0",
        ),
        (
            {"downstream": {"tasks": ["arc_easy"], "prompts": {"arc_esy": "x"}}},
            r"downstream.prompts: arc_esy; expected some of tasks \['arc_easy'\]",
        ),
        (
            {"claims": {"a": {**CLAIM, "shots": 5, "score": "accuracy", "prompt": True}}},
            r"(?s)claims.a.shots=5: expected a claim with task; add it, or leave it out.*"
            r"claims.a.prompt=True: expected a claim with task.*"
            r"claims.a.score=accuracy: expected a claim with task",
        ),
        (
            {
                "claims": {
                    "a": {
                        **CLAIM,
                        "task": "quiz",
                        "shots": 3,
                        "prompt": True,
                        "metadata": "with",
                        "at": 0.52,
                        "saves": 0.1,
                        "bytes": [256],
                        "minus_bytes": [0, 256],
                        "equal": "FLOPs",
                    }
                }
            },
            r"(?s)claims.a.metadata=with: makes no sense with task=quiz, whose questions are "
            r"answered by finished models; leave it out.*claims.a.at=0.52: makes no sense.*"
            r"claims.a.equal=FLOPs: makes no sense.*claims.a.saves=0.1: makes no sense.*"
            r"claims.a.bytes=\[256\]: makes no sense.*claims.a.minus_bytes=\[0, 256\]: makes no .*"
            r"claims.a.task=quiz: expected one of downstream.tasks=\[\].*"
            r"claims.a.shots=3: expected one of downstream.shots=\[0, 5\].*"
            r"claims.a.prompt=true: expected a text for quiz in downstream.prompts",
        ),
        (
            {
                "claims": {
                    "a": {**CLAIM, "task": "quiz", "score": "accuracy", "smallest_difference": 2},
                    "b": {**CLAIM, "task": "quiz", "shots": 0, "against": "url"},
                },
                "downstream": {"tasks": ["quiz"], "arms": ["none"]},
            },
            r"(?s)claims.a.shots is missing; expected one of downstream.shots=\[0, 5\].*"
            r"claims.a.arm=url: expected one of downstream.arms=\['none'\].*"
            r"claims.a.smallest_difference=2.0: expected a number below 1, because accuracy is a .*"
            r"claims.b.against=url: expected one of downstream.arms=\['none'\].*"
            r"claims.b.against=url: compares the arm with itself; expected another arm, or prompt",
        ),
        (
            {"claims": {"a": {**CLAIM, "task": "quiz", "score": "f1"}}},
            'claims.a.score="f1": expected one of bits, accuracy',
        ),
        (
            {"downstream": {"tasks": ["quiz"], "arms": ["url", "nun"]}},
            r"(?s)downstream.arms: nun: expected some of the arms short, url, none.*"
            r"downstream.arms=\['url', 'nun'\]: expected the baseline none among them",
        ),
        ({"arms": {"none": "${baseline}"}}, "arms.none=none: expected its keys"),
        ({"claims": {"a": "${baseline}"}}, "claims.a=none: expected its keys"),
        ({"curve": "${arms}"}, "curve=.*: expected a list"),
        ({"curve": "${baseline}"}, "curve=none: expected a list"),
        ({"seeds": [[1]]}, r"seeds=\[\[1\]\]: expected a list of numbers or texts"),
        ({"curve": [[0.5]]}, r"curve=\[\[0.5\]\]: expected a list"),
        (
            {"claims": {"a": {**CLAIM, "bytes": [{"a": 1}]}}},
            r"claims.a.bytes=\[\{'a': 1\}\]: expected a list of numbers or texts",
        ),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]: expected different ones"),
        ({"overrides": ["seed=3"]}, "seed=3: the study sets it itself; leave it out"),
        ({"arms": {"none": {"control_of": "url"}}}, "control_of=url: expected another of the arms"),
        ({"arms": {"a/b": {}}, "baseline": "a/b"}, "a/b: expected a name that a folder can have"),
        (
            {"arms": {**BRANCHED, "url_8": {"branch_of": "url"}}},
            r"(?s)arms\.url_8\.branch_at is missing, because branch_of is set.*"
            r"arms\.url_8\.decay_steps is missing, because branch_of is set",
        ),
        (
            {"arms": {**BRANCHED, "again": {"branch_of": "url_18", **DECAY}}},
            r"arms\.again\.branch_of=url_18: expected an arm that is no branch itself",
        ),
        (
            {"arms": {**BRANCHED, "url_8": {"branch_of": "ulr", **DECAY}}},
            r"arms\.url_8\.branch_of=ulr: expected another of the arms",
        ),
        (
            {"arms": {**BRANCHED, "url_8": DECAY}},
            r"arms\.url_8\.branch_at: expected branch_of, the arm that it branches from",
        ),
        (
            {"claims": {"a": {**CLAIM, "minus_arm": "short"}}},
            "claims.a.minus_arm and minus_against: expected both, or neither",
        ),
        (
            {"claims": {"a": {**CLAIM, "minus_arm": "nun", "minus_against": "none"}}},
            "claims.a.minus_arm=nun: expected one of the arms short, url, none",
        ),
        ({"launch": "sbatch.sh"}, "launch.*train.sh"),
        ({"seed": 3}, "seed.*expected the keys title, out_dir, results_dir"),
        ({"out_dir": ""}, "out_dir is missing"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_study(study_file(tmp_path, **changes))


def test_a_branch_starts_from_its_stable_run(tmp_path: Path) -> None:
    study = loaded(tmp_path, arms=BRANCHED, overrides=SHORT, curve=[0.5, 1.0])
    check(study)
    names = ["none", "none_18", "url", "url_18"]
    assert [run.arm for run in runs_of(study)] == [*names, *names]
    url, branch = runs_of(study)[2:4]
    assert "extra_steps_to_eval_save_at=[10,16,20]" in (overrides_of(study, url) or [])

    assert overrides_of(study, branch) is None
    finished(tmp_path, "url-seed3", step=20, targets=4000)
    assert overrides_of(study, branch) == [
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


def test_a_branch_whose_checkpoint_is_not_here_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = loaded(tmp_path, arms=BRANCHED, seeds=[3])
    finished(tmp_path, "url-seed3", step=20, targets=4000)
    (branch,) = (run for run in runs_of(study) if run.arm == "url_18")
    assert Launcher(study).make_all([branch]) == 1
    assert "checkpoint-16step: url seed 3 was trained on another machine" in capsys.readouterr().out


def test_a_branch_after_the_end_of_its_stable_run_is_refused(tmp_path: Path) -> None:
    late = {"branch_of": "url", "branch_at": 21, "decay_steps": 2}
    with pytest.raises(ConfigurationError, match=r"branch_at=21: expected a step of url, which .*"):
        check(loaded(tmp_path, arms={**BRANCHED, "late": late}, overrides=SHORT))


def test_a_branch_that_begins_elsewhere_is_another_measurement(tmp_path: Path) -> None:
    study = loaded(tmp_path, arms=BRANCHED)
    other = loaded(tmp_path, arms=BRANCHED | {"url_18": {**BRANCHED["url_18"], "branch_at": 15}})
    assert settings_of(study, "url_18", 3) != settings_of(other, "url_18", 3)
    assert settings_of(study, "url", 3) == settings_of(other, "url", 3)
    declare(study)
    with pytest.raises(ConfigurationError, match=r"arms\.url_18\.branch_at 16, found 15"):
        declare(other)


def test_a_misspelt_key_is_found_before_the_first_run(tmp_path: Path) -> None:
    arms = {"none": {"overrides": ["learning_rat=1"]}}
    with pytest.raises(ConfigurationError, match=r"(?s)arm none: .*learning_rat "):
        check(loaded(tmp_path, arms=arms))


def test_values_that_a_run_would_refuse_are_found_before_the_first_run(tmp_path: Path) -> None:
    templates = "data_config.metadata_config.metadata_templates={title:'{value}'}"
    arms = {"none": {"overrides": [NONE, templates, "max_train_steps=0"]}}
    message = r"(?s)arm none: .*max_train_steps.*metadata_templates .* found the type title"
    with pytest.raises(ConfigurationError, match=message):
        check(loaded(tmp_path, arms=arms, overrides=[]))


def test_a_type_that_an_arm_is_not_trained_with_is_found_before_the_first_run(
    tmp_path: Path,
) -> None:
    title = {**CLAIM, "metadata": "title"}
    with pytest.raises(
        ConfigurationError,
        match=r"claims.a.metadata=title: expected what the arm url is trained with: without, or "
        r"of \['url'\]",
    ):
        check(loaded(tmp_path, claims={"a": title}))
    with pytest.raises(ConfigurationError, match=r"claims.a.against_metadata=with: .* arm none "):
        check(loaded(tmp_path, claims={"a": {**CLAIM, "against_metadata": "with"}}))
    check(loaded(tmp_path, claims={"a": {**CLAIM, "metadata": "with"}}))
    contrast = {**CLAIM, "metadata": "with", "minus_arm": "none", "minus_against": "short"}
    with pytest.raises(ConfigurationError, match=r"claims.a.metadata=with: .* arm none "):
        check(loaded(tmp_path, claims={"a": contrast}))


def test_the_declared_claims_are_printed_before_anything_is_run(tmp_path: Path) -> None:
    study_file(tmp_path, claims={"a": {**CLAIM, "pilot_deviation": 0.001}})
    done = study_command(tmp_path, "--claims")
    assert done.returncode == 0, done.stderr
    assert "URL beats text" in done.stdout
    assert "73%" in done.stdout  # noncentral t: 1 degree, 10 standard deviations
    assert not (tmp_path / "study").exists()


def test_interpolations_are_left_to_the_run(tmp_path: Path) -> None:
    overrides = ["model_config_file='${repo:examples/model/config.json}'"]
    assert loaded(tmp_path, overrides=overrides).overrides == overrides


def test_the_steps_of_a_curve(tmp_path: Path) -> None:
    study = loaded(tmp_path, curve=[0.001, 0.5])
    assert curve_steps(study, "none", 100) == [1, 50, 100]
    assert curve_steps(study, "none", 1) == [1]


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
    assert last_of_each_key(overrides) == kept


def test_no_command_of_a_run_gives_a_key_twice(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path))
    study = replace(
        study,
        overrides=[*study.overrides, "max_train_steps=60", "keep_last_checkpoints=3"],
        arms={
            name: replace(arm, overrides=[*arm.overrides, "max_train_steps=50"])
            for name, arm in study.arms.items()
        },
    )
    for run in runs_of(study):
        overrides = overrides_of(study, run)
        if overrides is None:  # waits for another run
            continue
        keys = [override.partition("=")[0] for override in overrides]
        assert len(keys) == len(set(keys)), keys
        assert "keep_last_checkpoints=0" in overrides
