"""The scores of runs: their files, what is refused, and the differences of claims about tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import ttest_1samp

from bsmeta.core.errors import DataError
from bsmeta.studies.config import ArmConfig, ClaimConfig, DownstreamConfig, StudyConfig
from bsmeta.studies.task_scores import (
    Score,
    TaskEffect,
    TaskScores,
    compute_task_effect,
    find_all_scores,
    find_scores,
    hash_score_settings,
    load_scores,
    locate_scores,
    save_scores,
)

SEEDS = [1, 2, 3, 4]
PROMPT = "url: a.org ||| "
TASKS = DownstreamConfig(tasks=["quiz"], shots=[0, 5], prompts={"quiz": PROMPT})


def claim(**changes: Any) -> ClaimConfig:
    values = {
        "label": "URL answers better", "arm": "url", "task": "quiz", "shots": 5,
        "smallest_difference": 0.1, **changes,
    }  # fmt: skip
    return ClaimConfig(**values)


def study(folder: Path = Path("x"), **changes: Any) -> StudyConfig:
    values = {
        "title": "a study", "out_dir": str(folder / "out"), "config": "demo", "baseline": "none",
        "results_dir": str(folder / "kept"), "seeds": SEEDS, "downstream": TASKS,
        "arms": {"none": ArmConfig(label="text alone"), "url": ArmConfig(label="URL")}, **changes,
    }  # fmt: skip
    return StudyConfig(**values)


def scored(
    bits: np.ndarray | None = None,
    correct: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    prompt: str = "",
    **changes: Any,
) -> TaskScores:
    """Returns the scores of a run on the quiz with five examples."""
    count = len(bits if bits is not None else correct)  # type: ignore[arg-type]
    answers = np.zeros(count) if correct is None else correct
    score = Score("quiz", 5, prompt, answers.tolist(), asked="a", **changes)
    if bits is not None:
        weights = np.full(count, 10) if sizes is None else sizes
        score = replace(score, bits=bits.tolist(), sizes=weights.tolist())
    return TaskScores("", {}, [score])


def draw_bits(shift: float, seed: int, count: int = 30) -> np.ndarray:
    """Returns bits of answers that vary by question, seed, and both."""
    questions = np.random.default_rng(0).uniform(20, 60, count)
    own = np.random.default_rng([seed, int(-100 * shift)]).normal(0, 1.0, count)
    return questions + shift + 0.5 * seed * (shift != 0) + own


def effect(
    runs: Mapping[tuple[str, int], TaskScores], cluster: str = "document", **changes: Any
) -> TaskEffect:
    return compute_task_effect(study(), claim(**changes), runs, cluster)


def test_bits_are_a_paired_ratio_with_an_error_over_seeds_and_questions() -> None:
    """Compared with numpy: the t-test over seeds, and the jackknife over questions."""
    sizes = np.random.default_rng(5).integers(5, 40, 30)
    none = np.array([draw_bits(0, seed) for seed in SEEDS])
    url = np.array([draw_bits(-4, seed) for seed in SEEDS])
    runs = {("none", seed): scored(none[seed - 1], sizes=sizes) for seed in SEEDS}
    runs |= {("url", seed): scored(url[seed - 1], sizes=sizes) for seed in SEEDS}
    read = effect(runs)
    assert (read.reason, read.seeds, read.unit) == ("", SEEDS, "question")
    assert read.effect is not None

    differences = (url.sum(axis=1) - none.sum(axis=1)) / sizes.sum()
    assert read.effect.seeds == pytest.approx(differences)
    change = (url - none).mean(axis=0)
    without = [
        np.delete(change, number).sum() / np.delete(sizes, number).sum() for number in range(30)
    ]
    jackknife = 29 / 30 * np.square(np.array(without) - change.sum() / sizes.sum()).sum()
    assert read.effect.document_error == pytest.approx(jackknife**0.5)
    over_seeds = differences.var(ddof=1) / 4
    half = np.sqrt(stdtrit(3, 0.975) ** 2 * over_seeds + stdtrit(29, 0.975) ** 2 * jackknife)
    assert read.effect.low == pytest.approx(differences.mean() - half)
    assert read.effect.high == pytest.approx(differences.mean() + half)
    assert read.effect.p_value > ttest_1samp(differences, 0).pvalue  # questions vary as well


def test_a_claimed_higher_accuracy_is_a_negative_difference() -> None:
    runs = {}
    for seed in SEEDS:
        answers = np.arange(40) < 10 + seed
        runs["none", seed] = scored(correct=answers.astype(float))
        runs["url", seed] = scored(correct=(np.arange(40) < 18 + 2 * seed).astype(float))
    read = effect(runs, score="accuracy")
    assert read.effect is not None
    assert read.effect.seeds == pytest.approx([-9 / 40, -10 / 40, -11 / 40, -12 / 40])
    none, url = (
        np.mean([runs[arm, seed].scores[0].correct for seed in SEEDS], axis=0)
        for arm in ("none", "url")
    )
    differs = none - url
    assert read.effect.document_error == pytest.approx(differs.std(ddof=1) / 40**0.5)


def test_an_arm_can_be_compared_with_itself_under_another_prompt() -> None:
    runs = {}
    for seed in SEEDS:
        plain, prompted = (
            scored(np.full(20, bits), prompt=prompt).scores[0]
            for bits, prompt in ((30.0, ""), (29.0 - 0.1 * seed, PROMPT))
        )
        runs["url", seed] = TaskScores("", {}, [plain, prompted])
    read = effect(runs, against="url", prompt=True)
    assert read.effect is not None
    assert read.effect.seeds == pytest.approx([-0.11, -0.12, -0.13, -0.14])


def test_a_declaration_without_the_prompt_of_its_claim_is_refused() -> None:
    with pytest.raises(DataError, match=r"downstream\.prompts: found none, expected one for .*"):
        compute_task_effect(
            replace(study(), downstream=DownstreamConfig(tasks=["quiz"], shots=[5])),
            claim(against="url", prompt=True),
            {},
            "document",
        )


def test_nothing_is_decided_without_the_scores_of_a_declared_seed_or_arm() -> None:
    runs = {
        (arm, seed): scored(draw_bits(shift, seed))
        for arm, shift in (("none", 0), ("url", -4))
        for seed in SEEDS
    }
    assert effect(runs).reason == ""
    del runs["url", 3]
    read = effect(runs)
    assert (read.reason, read.seeds) == ("3 of 4 declared seeds have scores of quiz", [1, 2, 4])
    assert read.effect is not None
    assert effect({("none", 1): runs["none", 1]}).reason == "url has no scores of quiz"
    assert effect(runs, shots=0).reason == "url has no scores of quiz"
    apart = {("none", 1): runs["none", 1], ("url", 2): runs["url", 2]}
    assert effect(apart).reason == "no seed has scores of both arms on quiz"
    single = study(seeds=[1])
    reason = compute_task_effect(single, claim(), runs, "document").reason
    assert reason == "one seed, which shows no variation over seeds"


def test_a_question_lost_by_any_tokenizer_is_excluded_everywhere() -> None:
    """The excluded answer would have a huge value."""
    runs = {}
    for seed in SEEDS:
        runs["none", seed] = scored(np.array([30.0, 40.0, 999.0]), sizes=np.array([10, 10, 10]))
        runs["url", seed] = scored(np.array([20.0, 30.0, 0.0]), sizes=np.array([10, 10, 0]))
    read = effect(runs)
    assert read.effect is not None
    assert read.effect.value == pytest.approx(-1.0)
    assert (read.questions, read.left_out, read.effect.units) == (3, 1, 2)
    lost = {key: scored(np.zeros(3), sizes=np.zeros(3, int)) for key in runs}
    assert effect(lost).reason == "quiz has no bits of right answers that the tokenizers keep"
    without_bits = {key: scored(correct=np.ones(3)) for key in runs}
    assert effect(without_bits).reason.startswith("quiz has no bits")
    assert effect(without_bits, score="accuracy").reason == ""


def test_hosts_are_the_units_if_known() -> None:
    """Ten hosts with three questions each; the gain depends on the host."""
    gains = np.repeat(np.linspace(-8, 0, 10), 3)
    hosts = [f"h{number // 3}" for number in range(30)]
    runs = {}
    for seed in SEEDS:
        runs["none", seed] = scored(np.full(30, 40.0), hosts=hosts)
        runs["url", seed] = scored(40 + gains + 0.1 * seed, hosts=hosts)
    by_host, by_question = effect(runs, "host"), effect(runs)
    assert (by_host.unit, by_host.hosts, by_host.without_host) == ("host", 10, 0)
    assert by_host.effect is not None
    assert by_question.effect is not None
    means = gains[::3] / 10
    assert by_host.effect.document_error == pytest.approx(means.std(ddof=1) / 10**0.5)
    assert by_question.effect.document_error < 0.7 * by_host.effect.document_error
    unknown = {key: scored(np.array(run.scores[0].bits)) for key, run in runs.items()}
    assert effect(unknown, "host").unit == "question"
    one_host = {
        key: scored(np.array(run.scores[0].bits), hosts=["a"] * 30) for key, run in runs.items()
    }
    assert effect(one_host, "host").reason.startswith("questions of one host")


def test_runs_that_answered_other_questions_are_not_compared() -> None:
    runs = {(arm, seed): scored(np.full(5, 30.0)) for arm in ("none", "url") for seed in SEEDS}
    other = replace(runs["url", 2].scores[0], asked="b")
    runs["url", 2] = TaskScores("", {}, [other])
    with pytest.raises(DataError, match="the runs answered different questions of quiz with 5 ex"):
        effect(runs)


def test_scores_round_trip(tmp_path: Path) -> None:
    made = study(tmp_path)
    run = scored(draw_bits(0, 1), correct=np.eye(30)[0], hosts=["a.org"] * 30)
    run = TaskScores(hash_score_settings(made, "url", 1), {"scored": {"lm_eval": "1"}}, run.scores)
    path = locate_scores(made, "url", 1)
    assert path == tmp_path / "kept/url-seed1.tasks.json"
    save_scores(run, path)
    read = find_scores(made, "url", 1)
    assert read is not None
    assert read.facts == run.facts
    assert read.scores[0].correct == run.scores[0].correct
    assert read.scores[0].hosts == ["a.org"] * 30
    assert read.scores[0].bits == pytest.approx(run.scores[0].bits, abs=1e-4)
    assert path.stat().st_size < 2_000
    assert find_scores(made, "url", 2) is None
    assert list(find_all_scores(made)) == [("url", 1)]
    assert find_all_scores(replace(made, downstream=DownstreamConfig())) == {}


def test_scores_made_with_other_settings_are_refused(tmp_path: Path) -> None:
    made = study(tmp_path)
    run = replace(scored(draw_bits(0, 1)), settings=hash_score_settings(made, "url", 1))
    save_scores(run, locate_scores(made, "url", 1))
    fewer = replace(made, downstream=replace(TASKS, arms=["none", "url"]))
    assert find_scores(fewer, "url", 1) is not None  # no score depends on the other arms
    for changed in (
        replace(made, downstream=replace(TASKS, limit=5)),
        replace(made, downstream=replace(TASKS, prompts={})),
        replace(made, overrides=["learning_rate=1"]),
    ):
        with pytest.raises(DataError, match=r"url-seed1\.tasks\.json: made with other settings"):
            find_scores(changed, "url", 1)
    elsewhere = replace(made, results_dir=None)
    other = replace(elsewhere, downstream=replace(TASKS, limit=5))
    assert locate_scores(elsewhere, "url", 1).parent != locate_scores(other, "url", 1).parent


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: b"[]",
        lambda content: content.replace(b'"bits":[', b'"bits":[1.0,', 1),
        lambda content: content.replace(b'"correct":[0', b'"correct":[2', 1),
        lambda content: content.replace(b'"sizes":[10', b'"sizes":[-1', 1),
        lambda content: content.replace(b'"bits":[', b'"bits":["x",', 1),
        lambda content: content.replace(b'"hosts":[]', b'"hosts":["a"]', 1),
    ],
)
def test_damaged_scores_are_refused(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "url-seed1.tasks.json"
    save_scores(scored(np.full(5, 30.0)), path)
    intact = path.read_bytes()
    assert load_scores(path).scores[0].sizes == [10] * 5
    assert json.loads(intact)["scores"][0]["bits"] == [30.0] * 5
    path.write_bytes(damage(intact))
    assert path.read_bytes() != intact
    with pytest.raises(DataError, match=r"url-seed1\.tasks\.json: not scores that can be read"):
        load_scores(path)
