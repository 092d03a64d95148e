"""experiments/benchmarks/spelling_errors.py: what became of errors, and scores in passes."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
import torch

from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.samples import Pair
from bsmeta.tasks.spelling.word_kinds import KINDS
from tests.conftest import REPOSITORY
from tests.tasks.spelling.helpers import lexicon

SCRIPT = runpy.run_path(str(REPOSITORY / "experiments/benchmarks/spelling_errors.py"))
SCORINGS = SCRIPT["SCORINGS"]
THRESHOLDS = dict.fromkeys(KINDS, 0.5)


def make_scores(**probabilities: tuple[float, float, float]) -> Any:
    """The corrections of a word, each with its probability in three passes."""
    logs = np.log(np.array([*probabilities.values()]).reshape(-1, 3).T)
    return SCRIPT["WordScores"]([*probabilities], logs)


def make_errors() -> Any:
    """Two texts with an error of each outcome, and two right words."""
    pairs = [
        Pair(["teh", "cats", "and", "thier", "caat"], ["the", "cats", "and", "their", "cat,"], "1"),
        Pair(["er", "berlin", "lettters"], ["of", "Berlin", "letters"], "2"),
    ]
    first = [
        make_scores(the=(0.3, 0.9, 0.9), tea=(0.6, 0.05, 0.05)),  # corrected by the second pass
        make_scores(cat=(0.2, 0.2, 0.2)),
        make_scores(an=(0.7, 0.7, 0.7)),  # right, but changed
        make_scores(their=(0.4, 0.4, 0.6), there=(0.3, 0.3, 0.3)),  # below the threshold
        make_scores(cat=(0.6, 0.6, 0.6)),  # changed, but its right word is not a candidate
    ]
    second = [
        make_scores(re=(0.7, 0.7, 0.7), of=(0.2, 0.2, 0.2)),  # a short word
        make_scores(BERLIN=(0.3, 0.3, 0.3), Berlin=(0.2, 0.2, 0.2)),  # only the case is wrong
        make_scores(),  # no candidates
    ]
    return SCRIPT["ScoredTexts"](pairs, [first, second])


def test_each_error_has_one_outcome() -> None:
    outcomes = SCRIPT["count_outcomes"](make_errors(), SCORINGS["two passes (used)"], THRESHOLDS)
    assert vars(outcomes) == {
        "corrected": 1,
        "other_chosen": 2,
        "short": 1,
        "other_case": 1,
        "below_threshold": 1,
        "unlisted": 2,
        "changed": 4,
        "changed_listed": 2,
    }
    assert outcomes.errors == 6
    assert outcomes.f1 == pytest.approx(2 * 1 / (4 + 6))
    assert outcomes.best_choice_f1 == pytest.approx(2 * 2 / (4 + 6))
    assert outcomes.best_f1 == pytest.approx(2 * 4 / (4 + 6))


@pytest.mark.parametrize(
    ("scoring", "true_positives", "false_negatives"),
    [
        ("one pass", [0, 0], [3, 3]),
        ("two passes (used)", [1, 0], [2, 3]),
        ("three passes", [2, 0], [1, 3]),
        ("mean probability of the first two", [1, 0], [2, 3]),
    ],
)
def test_right_and_wrong_corrections_of_each_text(
    scoring: str, true_positives: list[int], false_negatives: list[int]
) -> None:
    counts = SCRIPT["count_corrections"](make_errors(), SCORINGS[scoring], THRESHOLDS)
    assert counts.true_positives.tolist() == true_positives
    assert counts.false_negatives.tolist() == false_negatives
    assert counts.false_positives.tolist() == [3, 1] if scoring == "one pass" else [2, 1]
    assert counts.units.tolist() == [5, 3]


def test_the_second_pass_is_the_scoring_of_the_task() -> None:
    task = CandidateCorrection(SecConfig())
    task._inputs = CandidateInputs(lexicon())
    torch.manual_seed(0)
    config = RankerConfig(features=task._inputs.features, width=8, layers=1, heads=1)
    model = Ranker(config).eval()
    texts = [["teh", "villiage", "12"], ["recieve", "the", "leters"]]

    scores = SCRIPT["score_texts"](task, model, texts)
    assert [len(text) for text in scores] == [3, 3]
    rows, logs = task.score(model, texts, torch.device("cpu"))
    for number, word_scores in enumerate([*scores[0], *scores[1]]):
        assert word_scores.texts == rows.texts[number][2:]
        corrections = slice(rows.starts[number] + 2, rows.starts[number + 1])
        assert word_scores.logs[1].tolist() == logs[corrections].tolist()
    assert "village" in scores[0][1].texts
    assert scores[0][2].texts == []  # a number


def test_tables_in_markdown() -> None:
    errors = make_errors()
    clean = SCRIPT["ScoredTexts"](
        [Pair(["cats"], ["cats"], "1")], [[make_scores(cat=(0.2, 0.2, 0.2))]]
    )
    used = SCORINGS["two passes (used)"]
    outcomes = SCRIPT["count_outcomes"](errors, used, THRESHOLDS)
    assert SCRIPT["make_outcome_table"]({"realistic": outcomes}).splitlines()[2] == (
        "| realistic | 6 | .200 | 16.7% | 33.3% (50%; 50%) | 16.7% | 33.3% | .400 | .800 |"
    )

    variants = {
        name: SCRIPT["make_variant"](scoring, [errors], clean, SecConfig())
        for name, scoring in SCORINGS.items()
    }
    lines = SCRIPT["make_scoring_table"](variants, {"realistic": errors}, 0).splitlines()
    assert lines[0] == "| scoring | F1 realistic | two passes minus it | false alarms |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in SCORINGS]
    assert lines[2].split(" | ")[2:] == ["", "0.00% |"]
