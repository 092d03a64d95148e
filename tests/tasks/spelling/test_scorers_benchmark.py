"""experiments/benchmarks/spelling_scorers.py: n-grams beside the ranker, and their weights."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
import torch

from bsmeta.tasks.spelling.config import SecConfig
from bsmeta.tasks.spelling.context import train_context_model
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.samples import Pair
from tests.conftest import REPOSITORY
from tests.tasks.spelling.helpers import lexicon

BENCHMARKS = REPOSITORY / "experiments/benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)  # it imports `spelling_errors`
    return runpy.run_path(str(BENCHMARKS / "spelling_scorers.py"))


def test_kneser_ney_by_hand(script: dict[str, Any]) -> None:
    model = script["NgramModel"](["a b a b"], lexicon())
    a, b, unknown = model.find_numbers(["a", "b", "c"])

    # The pairs are: boundary a, a b, b a, b boundary. P(b) = (1/4 + 1/4) / 2.
    # Before `a b` are two words:    P(b | a) = (2 - 0.8 + (0.8 + 6) P(b)) / (2 + 6) = 0.3625
    # Before `b a b` is one:       P(b | b a) = 1 - 0.8 + 0.8 * 0.3625 = 0.49
    # `a b a b` is counted once: P(b | a b a) = 1 - 0.8 + 0.8 * 0.49 = 0.592
    logs = model.compute_logs(np.array([[a, b, a, b], [a, unknown, a, b]]), np.array([0.25, 0.25]))
    assert np.exp(logs) == pytest.approx([0.592, 0.3625])


def test_a_score_covers_the_candidate_and_the_words_after_it(script: dict[str, Any]) -> None:
    model = script["NgramModel"](["the cat sat on the mat", "the dog ran"], lexicon())
    before, after = ["\n", "\n", "the"], ["sat", "on", "the"]
    cat, dog, two_words = model.score(before, [["cat"], ["dog"], ["the", "cat"]], after)
    assert cat > two_words > dog

    numbers = model.find_numbers([*before, "dog", *after])
    ngrams = np.lib.stride_tricks.sliding_window_view(numbers, 4)
    frequencies = model.find_frequencies(["dog", *after])
    assert dog == pytest.approx(model.compute_logs(ngrams, frequencies).sum())


def test_ambiguous_words_of_texts(script: dict[str, Any]) -> None:
    task = CandidateCorrection(SecConfig())
    texts = ["The letters of the village.", "They receive the letters."]
    task._inputs = CandidateInputs(lexicon(), context_model=train_context_model(texts, 8))
    torch.manual_seed(0)
    config = RankerConfig(features=task._inputs.features, width=8, layers=1, heads=1)
    model = Ranker(config).eval()
    ngrams = script["NgramModel"](texts, lexicon())

    pairs = [
        Pair(["teh", "villiage", "12"], ["the", "village", "12"], "1"),
        Pair(["recieve", "the", "leters"], ["receive", "the", "letters"], "2"),
    ]
    first, second = script["rank_texts"](task, model, ngrams, pairs)
    assert [word.position for word in first.ambiguous] == [0, 1]  # a number has no candidates
    assert [word.position for word in second.ambiguous] == [0, 1, 2]
    word = first.ambiguous[1]
    assert first.words[1][0][word.right_row] == "village"
    assert word.columns.shape == (len(first.words[1][0]), 8)
    assert word.columns[:, 0] == pytest.approx(first.words[1][1])
    assert word.columns[:, 1].tolist() == [0, 1] + [0] * (len(word.columns) - 2)

    words = [*first.ambiguous, *second.ambiguous]
    weights = script["fit_weights"](words, [0, 6])
    assert np.flatnonzero(weights).tolist() == [0, 6]
    scored = script["weigh_scores"]([first, second], [np.eye(8)[0], weights])
    used, unchanged, weighted = scored.scores[0][1].logs
    assert unchanged == pytest.approx(used)
    chosen = scored.scores[0][1].texts[weighted.argmax()]
    assert chosen.lower() == "village"  # n-grams do not distinguish case


def test_weights_follow_the_column_of_the_right_candidate(script: dict[str, Any]) -> None:
    columns = np.zeros((3, 8))
    columns[:, 0] = np.log([0.5, 0.2, 0.3])
    columns[2, 6] = 1
    word = script["AmbiguousWord"](position=0, right_row=2, columns=columns)
    weights = script["fit_weights"]([word], [6])
    assert weights[0] == 1
    assert weights[6] > 3
    assert weights[[1, 2, 3, 4, 5, 7]].tolist() == [0] * 6
