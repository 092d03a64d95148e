"""Claims about tasks beside claims about text: verdicts, words, tables, report and files."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import stdtrit

from bsmeta.core.process import run_and_report
from bsmeta.studies.claim_report import format_sentences, make_claim_tables, make_declared_table
from bsmeta.studies.config import ClaimConfig, DownstreamConfig, StudyConfig
from bsmeta.studies.report import draw_claim_plot, write_report
from bsmeta.studies.results import compute_results, results_as_dict
from bsmeta.studies.task_scores import (
    Score,
    TaskScores,
    hash_score_settings,
    locate_scores,
    save_scores,
)
from tests.conftest import REPOSITORY
from tests.studies.conftest import SEEDS, TARGETS, a_run, save

QUESTIONS = 200


def with_tasks(study: StudyConfig) -> StudyConfig:
    """Returns the study of text with two claims about a task."""
    quiz = ClaimConfig(
        label="URL answers with fewer bits", arm="url", task="quiz", shots=5,
        smallest_difference=0.05, pilot_deviation=0.01, pilot_document_error=0.01,
    )  # fmt: skip
    accuracy = replace(
        quiz, label="URL answers more questions", score="accuracy", pilot_deviation=None
    )
    downstream = DownstreamConfig(arms=["none", "url"], tasks=["quiz"], shots=[0, 5])
    claims = {**study.claims, "quiz": quiz, "accuracy": accuracy}
    return replace(study, claims=claims, downstream=downstream)


def answers(arm: str, seed: int, hosts: int = 10) -> list[Score]:
    """Returns answers; URL needs about 0.3 bits per byte less, and is right a fifth more often."""
    generator = np.random.default_rng([seed, arm == "url"])
    easy = np.random.default_rng(7).random(QUESTIONS)
    gain = 3.0 if arm == "url" else 0.0
    bits = 40 - gain + 0.1 * seed * gain + generator.normal(0, 2, QUESTIONS)
    correct = (easy + generator.normal(0, 0.05, QUESTIONS) < (0.6 if arm == "url" else 0.4)) * 1.0
    names = [f"h{number % hosts}" for number in range(QUESTIONS)] if hosts else []
    sizes = [10] * QUESTIONS
    return [
        Score("quiz", shots, "", correct.tolist(), bits.tolist(), sizes, names, f"{shots}")
        for shots in (0, 5)
    ]


def save_answers(study: StudyConfig, arm: str, seed: int, hosts: int = 10) -> None:
    settings = hash_score_settings(study, arm, seed)
    save_scores(
        TaskScores(settings, {}, answers(arm, seed, hosts)), locate_scores(study, arm, seed)
    )


@pytest.fixture
def scored(kept: StudyConfig) -> StudyConfig:
    """The study with all measurements and scores, and no other files."""
    study = with_tasks(kept)
    for seed in SEEDS:
        save_answers(study, "none", seed)
        save_answers(study, "url", seed)
    return study


def t_p_value(value: float, over_seeds: float, over_questions: float) -> float:
    """Returns the level at which the interval over both sources ends at 0, by bisection."""
    low, high = 1e-12, 1.0
    for _ in range(200):
        level = (low * high) ** 0.5
        half = np.sqrt(
            stdtrit(len(SEEDS) - 1, level / 2) ** 2 * over_seeds
            + stdtrit(QUESTIONS - 1, level / 2) ** 2 * over_questions
        )
        low, high = (level, high) if half > abs(value) else (low, level)
    return high


def test_the_verdict_follows_from_the_files_alone(scored: StudyConfig) -> None:
    """Recomputed by numpy and scipy from the JSON, with Holm's factors over all claims."""
    results = compute_results(scored)
    found = {claim.name: claim for claim in results.claims}
    read = {
        (arm, seed): json.loads(locate_scores(scored, arm, seed).read_text())["scores"][1]
        for arm in ("none", "url")
        for seed in SEEDS
    }
    expected = {}
    for name, key, weight in (("quiz", "bits", 10), ("accuracy", "correct", 1)):
        none, url = (
            np.array([read[arm, seed][key] for seed in SEEDS]) / weight for arm in ("none", "url")
        )
        change = url - none
        if name == "accuracy":
            change = -change
        seeds, questions = change.mean(axis=1), change.mean(axis=0)
        effect = found[name].effect
        assert effect is not None
        assert effect.value == pytest.approx(seeds.mean())
        expected[name] = t_p_value(
            seeds.mean(), seeds.var(ddof=1) / len(SEEDS), questions.var(ddof=1) / QUESTIONS
        )
        assert found[name].p_value == pytest.approx(expected[name], rel=1e-6)
        assert found[name].verdict == "supported"

    p_values = [claim.p_value for claim in results.claims]
    assert len(p_values) == 5
    steps, largest = {}, 0.0
    for place, number in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min((5 - place) * p_values[number], 1.0))
        steps[results.claims[number].name] = largest
    assert {name: claim.corrected_p_value for name, claim in found.items()} == pytest.approx(steps)
    alone = compute_results(replace(scored, claims={"quiz": scored.claims["quiz"]})).claims[0]
    assert alone.corrected_p_value == pytest.approx(expected["quiz"], rel=1e-6)
    assert found["quiz"].corrected_p_value > alone.corrected_p_value


def test_a_claim_is_open_while_the_scores_of_a_seed_are_missing(scored: StudyConfig) -> None:
    locate_scores(scored, "url", 2).unlink()
    results = compute_results(scored)
    assert [claim.verdict for claim in results.claims] == [
        "supported", "open", "supported", "open", "open",
    ]  # fmt: skip
    words = format_sentences(results)[3]
    assert words.startswith(
        "**Open**: URL answers with fewer bits: 2 of 3 declared seeds have scores of quiz; so far -"
    )
    for seed in (1, 3):
        locate_scores(scored, "url", seed).unlink()
    assert format_sentences(compute_results(scored))[4] == (
        "**Open**: URL answers more questions: url has no scores of quiz."
    )


def test_sentences_and_tables_name_the_unit_and_its_sign(scored: StudyConfig) -> None:
    results = compute_results(scored)
    text, _, _, bits, accuracy = format_sentences(results)
    assert text.startswith("**Supported**: URL beats text alone: -0.4990 bits per byte, 95% inter")
    assert bits.startswith("**Supported**: URL answers with fewer bits: -0.2")
    assert " bits per byte of the right answers, 95% interval -0.27" in bits
    assert accuracy.startswith("**Supported**: URL answers more questions: +0.2050")
    assert " accuracy, 95% interval +0.13" in accuracy
    assert "(above 0: as claimed); p = 0.0" in accuracy

    claims, declared, precision = make_claim_tables(results)
    units = ["bits per byte"] * 3 + ["bits per byte of the right answers", "accuracy"]
    for table in (claims, declared, precision):
        assert [row[1] for row in table.format_cells()] == units
    assert claims.format_cells()[3][2].startswith("-0.2")
    row = claims.format_cells()[4]
    assert row[2].startswith("+0.2")
    assert row[3].startswith("+0.1")
    low, high = (float(end) for end in row[4].split(" to "))
    assert low < float(row[2]) < high
    assert "above 0 for accuracy" in claims.note
    assert "(of a task: questions)" in precision.note
    assert declared.format_cells()[3][2:] == [
        "0.0500", "0.0100, 0.0100", "42%", "URL, quiz, 5 shots", "text alone, quiz, 5 shots",
    ]  # fmt: skip


def test_the_json_has_the_unchanged_sign_of_the_difference(scored: StudyConfig) -> None:
    text, *_, bits, accuracy = results_as_dict(compute_results(scored))["claims"]
    assert (text["unit"], text["as_claimed"]) == ("bits per byte", "below 0")
    assert bits["unit"] == "bits per byte of the right answers"
    assert bits["difference"]["value"] < 0
    assert (accuracy["unit"], accuracy["as_claimed"]) == ("accuracy", "above 0")
    assert 0 < accuracy["difference"]["low"] < accuracy["difference"]["value"]
    low, high = accuracy["at_once"]
    assert low < accuracy["difference"]["low"] < accuracy["difference"]["high"] < high
    assert (accuracy["task"], accuracy["shots"], accuracy["score"]) == ("quiz", 5, "accuracy")


def test_each_unit_has_a_separate_axis(scored: StudyConfig) -> None:
    figure = draw_claim_plot(compute_results(scored))
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "difference in bits per byte (left of 0: fewer bits, as claimed)",
        "difference in bits per byte of the right answers (left of 0: fewer bits, as claimed)",
        "difference in accuracy (right of 0: higher, as claimed)",
    ]
    text_alone = draw_claim_plot(
        compute_results(replace(scored, claims={"a": scored.claims["beats"]}))
    )
    assert len(text_alone.axes) == 1
    values = [line.get_xdata()[0] for line in figure.axes[2].lines if len(line.get_xdata()) == 1]
    assert min(values) > 0.04  # the accuracy, and its smallest difference of interest
    figure.draw_without_rendering()
    panels = [axes.get_position().height for axes in figure.axes]
    assert panels[0] > panels[1]  # two claims of text have an effect


def test_the_plot_of_claims_explains_the_lines_that_it_has(scored: StudyConfig) -> None:
    decided = draw_claim_plot(compute_results(scored))
    assert decided.get_suptitle() == (
        "95% intervals (thick), for all claims at once (thin), smallest of interest: |"
    )
    unmeasured = replace(scored, seeds=[*scored.seeds, 99])
    all_open = draw_claim_plot(compute_results(unmeasured))
    assert all_open.get_suptitle() == "95% intervals (thick), smallest of interest: |"


def test_without_claims_about_tasks_no_table_has_units(kept: StudyConfig) -> None:
    results = compute_results(kept)
    assert all(
        column.head != "unit" for table in make_claim_tables(results) for column in table.columns
    )
    (row, *_) = make_declared_table(kept).format_cells()
    assert row[1] == "0.1000"


def test_declared_hosts_of_questions_are_the_units(scored: StudyConfig) -> None:
    results = compute_results(replace(scored, cluster="host"))
    quiz = results.claims[3]
    assert quiz.task is not None
    assert (quiz.task.unit, quiz.task.hosts) == ("host", 10)
    assert not any("quiz" in note for note in results.notes)
    for seed in SEEDS:
        for arm in ("none", "url"):
            save_answers(scored, arm, seed, hosts=0)
    assert (
        "quiz: the hosts of its questions are not known, so the error of its claims is over "
        "questions, each by itself, in place of hosts."
    ) in compute_results(replace(scored, cluster="host")).notes


def test_the_table_of_hosts_has_the_tasks_with_hosts(scored: StudyConfig) -> None:
    run = a_run([4.0, 3.0, 2.0], None, 1)
    save(scored, "none", 1, replace(run, sites=np.array(["a.org", "b.org"] * 10)))
    results = compute_results(scored)
    title, rows = make_claim_tables(results)[1].title, make_claim_tables(results)[1].format_cells()
    assert title == "Are the documents of a host independent?"
    assert [row[1] for row in rows[3:]] == ["bits per byte of the right answers", "accuracy"]
    assert rows[4][2].startswith("+0.1")
    assert rows[4][3].startswith("+0.1")
    over_hosts = results_as_dict(results)["claims"][4]["over_hosts"]
    assert over_hosts["hosts"] == 10
    assert over_hosts["difference"]["value"] == pytest.approx(0.205)
    for seed in SEEDS:
        for arm in ("none", "url"):
            save_answers(scored, arm, seed, hosts=0)
    results = compute_results(scored)
    assert make_claim_tables(results)[1].format_cells()[4][2:6] == ["–"] * 4
    assert results_as_dict(results)["claims"][4]["over_hosts"] is None


def test_a_claim_about_a_task_is_tested_against_machine_and_order_in_its_sign(
    scored: StudyConfig,
) -> None:
    starts = {"machine": "m", "processor": "p", "commit": "c", "is_clean": True}
    for number, seed in enumerate(SEEDS):
        trained = [{**starts, "machine": f"m{seed // 2}", "started": f"2026-0{number + 1}"}]
        for arm, bits, shown in (("none", [4.0, 3.0, 2.0], None), ("url", [3.5, 2.75, 1.5], -0.25),
                                 ("shuffled", [4.0, 3.0, 2.002], 0.0)):  # fmt: skip
            run = a_run(bits, shown, seed, 0.5 if arm == "shuffled" else 1.0)
            save(scored, arm, seed, replace(run, facts={**run.facts, "trained": trained}))
    found = {
        test.name: test for test in compute_results(scored).conditions if test.factor == "order"
    }
    assert min(found["URL answers more questions (accuracy)"].means.values()) > 0.1
    bits = found["URL answers with fewer bits (bits per byte of the right answers)"]
    assert max(bits.means.values()) < -0.1
    assert TARGETS == (1000, 2000, 4000)


@pytest.mark.long
def test_a_report_needs_no_harness_and_no_models(
    scored: StudyConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Runs the command without lm_eval and without run folders."""
    values = {
        "title": scored.title, "out_dir": scored.out_dir, "results_dir": scored.results_dir,
        "config": "demo", "baseline": "none", "seeds": SEEDS, "curve": scored.curve,
        "arms": {"none": {"label": "text alone"}, "url": {"label": "URL"},
                 "shuffled": {"control_of": "url"}},
        "measure": {"position_edges": [0, 100]},
        "downstream": {"arms": ["none", "url"], "tasks": ["quiz"], "shots": [0, 5]},
        "claims": {
            "quiz": {"label": "URL answers better", "arm": "url", "task": "quiz", "shots": 5,
                     "smallest_difference": 0.05, "score": "accuracy"},
        },
    }  # fmt: skip
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(values))
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr(sys, "argv", ["study.py", str(file), "--report"])
    main = runpy.run_path(str(REPOSITORY / "experiments/study.py"))["main"]
    assert run_and_report(main) == 0
    printed = capsys.readouterr().out
    assert "**Supported**: URL answers better: +0.2" in printed
    assert "left out" not in printed
    report = (Path(scored.out_dir) / "report.md").read_text()
    assert "### Downstream tasks" in report
    assert (Path(scored.out_dir) / "claims.png").exists()


@pytest.mark.long
def test_the_page_has_the_tasks_of_claims_before_exploratory_results(scored: StudyConfig) -> None:
    write_report(compute_results(scored), Path("study.yaml"), {}, [])
    text = (Path(scored.out_dir) / "report.md").read_text()
    exploratory = text.index("## Exploratory: no claim was declared about what follows")
    assert text.index("URL answers more questions") < exploratory
