"""Mistakes in the file of a study are named before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.studies.config import load_study
from tests.studies.study_files import BRANCHED, CLAIM, DECAY, loaded, study_file


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
            r"arms\.again\.branch_of=url_18: expected an arm that is not itself a branch",
        ),
        (
            {
                "arms": {
                    **BRANCHED,
                    "other": {"text_tokens_of": "other_18"},
                    "other_18": {"branch_of": "other", **DECAY},
                }
            },
            r"arms: each of other(_18)? -> other(_18)? -> other(_18)? is needed by the next one",
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
def test_each_mistake_in_a_file_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_study(study_file(tmp_path, **changes))


def test_interpolations_are_resolved_by_the_run(tmp_path: Path) -> None:
    overrides = ["model_config_file='${repo:examples/model/config.json}'"]
    assert loaded(tmp_path, overrides=overrides).overrides == overrides


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.yaml")
    with pytest.raises(DataError) as error:
        load_study(tmp_path / "study.yaml")
    assert str(error.value) == (
        f"{tmp_path}/study.yaml is a pipe, a socket or a device; expected a file, which can be "
        "read more than once: write its content to one, and name that"
    )
