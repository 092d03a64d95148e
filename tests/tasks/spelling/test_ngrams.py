"""Counts of n-grams, and the probabilities of sentences that follow from them."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from bsmeta.tasks.spelling import ngrams as ngrams_module
from bsmeta.tasks.spelling.lexicon import BOUNDARY, build_lexicon, hash_words
from bsmeta.tasks.spelling.ngrams import NO_NGRAMS, NgramModel, Ngrams, Sentences, join_hashes

TEXTS = ["a b c d", "a b c d", "a b e"]


def count(texts: list[str]) -> NgramModel:
    """The n-grams of texts."""
    return build_lexicon(texts, [], {}).ngrams


def find_counts(model: NgramModel, *ngrams: str) -> list[float]:
    """The counts of n-grams of one length, whose words are separated by spaces."""
    columns = zip(*(ngram.replace("|", BOUNDARY).split(" ") for ngram in ngrams), strict=True)
    hashes = [hash_words(column) for column in columns]
    return model.orders[len(hashes) - 1].count(join_hashes(*hashes)).tolist()


def score(model: NgramModel, sentence: str, *candidates: str, listed: Ngrams = NO_NGRAMS) -> float:
    """The score of a candidate for the word `_` of a sentence; each word has the frequency 0.1."""
    words = sentence.split(" ")
    position = words.index("_")
    before = [BOUNDARY] * 3 + words[:position]
    after = words[position + 1 :] + [BOUNDARY] * 3
    neighbors = [*before[-3:], *after[:3]]
    sentences = Sentences(
        neighbors=hash_words(neighbors)[None],
        neighbor_frequencies=np.full((1, 6), 0.1),
        is_boundary=np.array([[word == BOUNDARY for word in neighbors]]),
        rows=np.array([0]),
        candidates=[hash_words([word]) for word in candidates],
        candidate_frequencies=[np.array([0.1])] * len(candidates),
    )
    return float(model.score(sentences, listed)[0])


def test_sequences_of_four_are_counted_from_two_occurrences_on() -> None:
    model = count(TEXTS)
    assert find_counts(model, "a b", "b e", "e a") == [3, 1, 0]
    assert find_counts(model, "a b c", "a b e") == [2, 1]
    assert find_counts(model, "a b c d", "| a b c", "| a b e", "c d | a") == [2, 2, 0, 0]


def test_of_many_ngrams_the_most_frequent_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams_module, "MAX_NGRAMS", 2)
    assert find_counts(count(["a a a a a b", "c c c c d"]), "a", "b", "c", "d", "|") == [
        5,
        0,
        4,
        0,
        0,
    ]


def test_the_probability_of_a_sentence_by_hand() -> None:
    model = count(TEXTS[:2])
    # After one word, with half the frequency as the prior: (2 - 0.8 + (0.8 + 30) 0.05) / (2 + 30).
    pair = 0.085625
    triple = (2 - 0.9 + 0.9 * pair) / 2
    four = (2 - 0.95 + 0.95 * triple) / 2
    expected = log(triple) + 3 * log(four)  # b after `| a`, c, d, and the end of the sentence
    assert score(model, "a _ c d", "b") == pytest.approx(expected)
    assert score(model, "a _ d", "b", "c") == pytest.approx(expected)


def test_pruned_continuations_leave_their_share_to_shorter_contexts() -> None:
    model = count(TEXTS)
    # `b` has the continuations c (2) and e (1), `a b` as well, and `| a b` only c: e is pruned.
    pair = (2 - 0.8 + (1.6 + 30) * 0.05) / (3 + 30)
    triple = (2 - 0.9 + 1.8 * pair) / 3
    four = (2 - 0.95 + 1.95 * triple) / 3
    # The end of the sentence was never after c, which was counted twice.
    end = 0.475 * 0.45 * (0.8 + 30) * 0.05 / (2 + 30)
    assert score(model, "a b _", "c") == pytest.approx(log(four) + log(end))


def test_listed_pairs_are_half_of_the_prior() -> None:
    key = join_hashes(hash_words(["a"]), hash_words(["z"]))
    listed = Ngrams(key, np.array([0.02], np.float32))
    gain = score(count(TEXTS), "a _", "z", listed=listed) - score(count(TEXTS), "a _", "z")
    # Instead of 0.05, the prior is 0.05 + 0.5 * 0.02 / 0.1.
    assert gain == pytest.approx(log(3))


def test_words_that_follow_are_likelier_than_others() -> None:
    model = count(TEXTS)
    assert score(model, "a _ c d", "b") > score(model, "a _ e", "b") > score(model, "a _ c d", "e")


def test_an_empty_model_has_the_frequencies() -> None:
    assert score(count([]), "a _", "b") == pytest.approx(2 * log(0.05))
