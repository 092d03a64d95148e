"""Prints how scores of a stronger context model change a trained corrector, as Markdown.

    python experiments/benchmarks/spelling_scorers.py runs/sec

Run it where the corrector was trained, because it reads the data sets of the run. A word is
ambiguous if no candidate has a probability of `SURE_PROBABILITY` after the second pass. The
log-probabilities of its candidates are combined with the score of each in its sentence by a model
of 4-grams of the counted texts, with Kneser-Ney smoothing (Chen and Goodman, 1999). The weights are
fitted on training samples with new errors, the thresholds are chosen on the validation samples.
One row has new weights without the score, because these alone may change F1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from spelling_errors import (
    BATCH_TEXTS,
    ERRORS,
    ScoredTexts,
    WordScores,
    make_scoring_table,
    make_variant,
    read_config,
)
from torch import nn

from bsmeta.core.process import run_and_report
from bsmeta.tasks.spelling.correction import (
    FIRST_CORRECTION,
    CandidateCorrection,
    choose_likeliest,
    correct_likely_words,
    find_right_words,
)
from bsmeta.tasks.spelling.detector import compute_log_probabilities
from bsmeta.tasks.spelling.inputs import MODEL_FEATURES
from bsmeta.tasks.spelling.lexicon import (
    BOUNDARY,
    Lexicon,
    hash_words,
    parse_token,
    read_word_blocks,
)
from bsmeta.tasks.spelling.ngrams import Ngrams, join_hashes
from bsmeta.tasks.spelling.samples import VALIDATION_EPOCH, Pair

ORDER = 4
"""Words of the longest n-grams."""
DISCOUNT = 0.8
"""Subtracted from each count, for n-grams that were not counted."""
PRIOR_WEIGHT = 6.0
SURE_PROBABILITY = 0.98
FITTED_SAMPLES = 600
"""Training samples for each kind of errors, on which the weights are fitted."""
FITTED_EPOCH = 999
"""Part of the key of their errors, which training did not have."""

FIT_STEPS = 60
FIT_PENALTY = 1e-3

NONE_ROW = 1
"""Row of a word that stands for none of its candidates."""

COLUMNS = 8
"""Numbers of a candidate: its log-probability by the ranker, whether the row is for none of the
candidates, its score by the context model, its log-frequency, whether it is the word itself,
whether it is two words, and its score by the n-grams, for every candidate and for the word itself.
"""
SCORINGS = {
    "ranker and n-grams": [0, 6],
    "ranker, new weights": [0, 1, 2, 3, 4, 5],
    "ranker and n-grams, new weights": [*range(COLUMNS)],
}
"""The columns whose weights are fitted."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0x165667B19E3779F9)


class _Order(NamedTuple):
    """The counts of the n-grams of one length, by their hashes."""

    counts: Ngrams
    totals: Ngrams  # of each context, the sum of the counts
    types: Ngrams  # of each context, the number of different n-grams


def _hash_rows(rows: np.ndarray) -> np.ndarray:
    """Hashes n-grams, int64 [n-grams, length]: uint64 [n-grams], a polynomial modulo 2^64."""
    hashes = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        hashes = (hashes ^ (hashes >> np.uint64(32))) * _FACTOR + column.astype(np.uint64) + _STEP
    return hashes


def _find_distinct(hashes: np.ndarray) -> np.ndarray:
    """Returns the positions of the first n-gram with each hash."""
    return np.unique(hashes, return_index=True)[1]


def _count_order(ngrams: np.ndarray, longer: np.ndarray | None, boundary: int) -> _Order:
    """Counts n-grams.

    Args:
        ngrams: All n-grams of the texts: int64 [n-grams, length].
        longer: The n-grams with one word more; None for the longest ones.
        boundary: The number of the boundary.
    """
    hashes, first, occurrences = np.unique(
        _hash_rows(ngrams), return_index=True, return_counts=True
    )
    distinct = ngrams[first]
    counts = occurrences
    if longer is not None:
        suffixes = longer[_find_distinct(_hash_rows(longer))][:, 1:]
        words_before = Ngrams(*np.unique(_hash_rows(suffixes), return_counts=True)).count(hashes)
        counts = np.where(distinct[:, 0] == boundary, occurrences, np.maximum(words_before, 1))

    contexts, numbers, types = np.unique(
        _hash_rows(distinct[:, :-1]), return_inverse=True, return_counts=True
    )
    totals = np.bincount(numbers, counts)
    return _Order(Ngrams(hashes, counts), Ngrams(contexts, totals), Ngrams(contexts, types))


class NgramModel:
    """An n-gram model with interpolated Kneser-Ney smoothing.

    Of n-grams shorter than `ORDER`, it counts the different words before them, unless they begin a
    sentence. The distribution without context is the mean of the words' shares of all pairs and
    their frequency in the lexicon; after a word, its mean with the listed pairs of the lexicon
    counts as `PRIOR_WEIGHT` further occurrences of the word.

    Args:
        texts: Correct texts.
        lexicon: Gives the frequencies of words, and the shares of pairs.
    """

    def __init__(self, texts: Iterable[str], lexicon: Lexicon) -> None:
        self._numbers: dict[str, int] = {}
        blocks = [block.words for block in read_word_blocks(texts, self._numbers)]
        sequence = np.concatenate(blocks)
        self._boundary = self._numbers[BOUNDARY]
        self._frequencies = dict(zip(lexicon.words, lexicon.frequencies.tolist(), strict=True))

        self._orders: dict[int, _Order] = {}
        longer: np.ndarray | None = None
        for length in range(ORDER, 1, -1):
            ngrams = self._list_ngrams(sequence, length)
            self._orders[length] = _count_order(ngrams, longer, self._boundary)
            longer = ngrams
        assert longer is not None
        distinct = longer[_find_distinct(_hash_rows(longer))]
        self._pair_shares = np.bincount(distinct[:, -1], minlength=1 + len(self._numbers))
        self._pairs = len(distinct)

        self._listed = lexicon.listed_bigrams
        words = [*self._numbers, ""]  # the last is for unknown words
        self._hashes = hash_words(words)
        self._word_frequencies = self.find_frequencies(words)

    def _list_ngrams(self, sequence: np.ndarray, length: int) -> np.ndarray:
        """Lists the n-grams that have no boundary inside: int64 [n-grams, length]."""
        ngrams = np.lib.stride_tricks.sliding_window_view(sequence, length)
        return ngrams[(ngrams[:, 1:-1] != self._boundary).all(1)]

    def find_numbers(self, words: Sequence[str]) -> np.ndarray:
        """Returns the numbers of words in their counted form; unknown words share the last."""
        unknown = len(self._numbers)
        return np.array([self._numbers.get(word, unknown) for word in words], np.int64)

    def find_frequencies(self, words: Sequence[str]) -> np.ndarray:
        """Returns the frequencies of words in the lexicon, at least 1e-10: float64 [words]."""
        return np.maximum([self._frequencies.get(word, 0.0) for word in words], 1e-10)

    def compute_logs(self, ngrams: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
        """Computes the log-probability of the last word of n-grams, given the others.

        Args:
            ngrams: Numbers of words, int64 [n-grams, ORDER].
            frequencies: The frequency of each last word: float64 [n-grams].

        Returns:
            float64 [n-grams], in nats.
        """
        probabilities = (self._pair_shares[ngrams[:, -1]] / self._pairs + frequencies) / 2
        for length in range(2, ORDER + 1):
            shorter = ngrams[:, -length:]
            order = self._orders[length]
            contexts = _hash_rows(shorter[:, :-1])
            totals = order.totals.count(contexts)
            left_over = DISCOUNT * order.types.count(contexts)
            counts = np.maximum(order.counts.count(_hash_rows(shorter)) - DISCOUNT, 0)
            if length == 2:
                probabilities = self._mix_listed_pairs(shorter, probabilities)
                totals = totals + PRIOR_WEIGHT
                left_over += PRIOR_WEIGHT
            smoothed = (counts + left_over * probabilities) / np.maximum(totals, 1)
            probabilities = np.where(totals > 0, smoothed, probabilities)
        return np.log(probabilities)

    def _mix_listed_pairs(self, pairs: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Returns the means of probabilities without context and of those by the listed pairs."""
        if not len(self._listed.keys):
            return probabilities
        shares = self._listed.count(join_hashes(*self._hashes[pairs.T]))
        return (probabilities + np.minimum(shares / self._word_frequencies[pairs[:, 0]], 1)) / 2

    def score(
        self, before: Sequence[str], candidates: Sequence[Sequence[str]], after: Sequence[str]
    ) -> np.ndarray:
        """Scores candidates between their neighbors.

        Args:
            before: The `ORDER` - 1 words or boundaries before them, in their counted form.
            candidates: The words of each.
            after: The `ORDER` - 1 words or boundaries after them.

        Returns:
            For each, the log-probability of its words and of those after it: float64 [candidates].
        """
        ngrams: list[np.ndarray] = []
        last_words: list[str] = []
        starts = [0]
        for words in candidates:
            sequence = [*before, *words, *after]
            numbers = self.find_numbers(sequence)
            ngrams.append(np.lib.stride_tricks.sliding_window_view(numbers, ORDER))
            last_words += sequence[ORDER - 1 :]
            starts.append(len(last_words))
        logs = self.compute_logs(np.concatenate(ngrams), self.find_frequencies(last_words))
        return np.add.reduceat(logs, starts[:-1])


@dataclass
class AmbiguousWord:
    """A word of whose replacement the ranker is not sure.

    Attributes:
        position: Its position in the text.
        right_row: The row of the right candidate; -1 for a word that is merged with another.
        columns: Float64 [candidates, `COLUMNS`].
    """

    position: int
    right_row: int
    columns: np.ndarray


class RankedText(NamedTuple):
    """A text, the corrections of its words, and its ambiguous words."""

    pair: Pair
    words: list[tuple[list[str], np.ndarray]]  # candidates and their log-probabilities
    ambiguous: list[AmbiguousWord]


def rank_texts(
    task: CandidateCorrection, model: nn.Module, ngrams: NgramModel, pairs: Sequence[Pair]
) -> list[RankedText]:
    """Ranks the candidates of texts in two passes; texts are not cut into windows."""
    device = torch.device("cpu")
    texts: list[RankedText] = []
    for start in range(0, len(pairs), BATCH_TEXTS):
        batch = pairs[start : start + BATCH_TEXTS]
        sources = [pair.source for pair in batch]
        rows, logs = task.score_beside(model, sources, sources, device)
        neighbors = correct_likely_words(sources, choose_likeliest(rows, logs))
        rows, logs = task.score_beside(model, sources, neighbors, device)

        context_scores = rows.features[:, -MODEL_FEATURES] * 8
        split = rows.starts[1:-1]
        all_words = zip(
            rows.texts, np.split(logs, split), np.split(context_scores, split), strict=True
        )
        for pair, context in zip(batch, neighbors, strict=True):
            words = [next(all_words) for _ in pair.source]
            ambiguous = find_ambiguous_words(pair, context, words, ngrams)
            texts.append(RankedText(pair, [word[:2] for word in words], ambiguous))
    return texts


def find_ambiguous_words(
    pair: Pair,
    context: Sequence[str],
    words: Sequence[tuple[list[str], np.ndarray, np.ndarray]],
    ngrams: NgramModel,
) -> list[AmbiguousWord]:
    """Finds the ambiguous words of a text, with the columns of their candidates.

    Args:
        context: The text with the likely corrections of the first pass.
        words: For each word, its candidates with the scores of the ranker and the context model.
    """
    sequence = [BOUNDARY] * (ORDER - 1)
    positions: list[int] = []
    for token in map(parse_token, context):
        positions.append(len(sequence))
        sequence.append(token.key)
        if token.ends_sentence:
            sequence.append(BOUNDARY)
    sequence += [BOUNDARY] * (ORDER - 1)

    ambiguous: list[AmbiguousWord] = []
    right_words = find_right_words(pair)
    for number, ((texts, logs, context_scores), right) in enumerate(
        zip(words, right_words, strict=True)
    ):
        candidates = [text for row, text in enumerate(texts) if row != NONE_ROW]
        if np.exp(np.delete(logs, NONE_ROW)).max() > SURE_PROBABILITY or len(candidates) < 2:
            continue

        position = positions[number]
        keys = [[parse_token(word).key for word in text.split()] for text in candidates]
        scores = ngrams.score(
            sequence[position - ORDER + 1 : position], keys, sequence[position + 1 :][: ORDER - 1]
        )
        frequencies = np.log(ngrams.find_frequencies([key[0] for key in keys]))
        is_first = np.arange(len(candidates)) == 0
        columns = np.stack(
            [
                np.delete(context_scores, NONE_ROW) / 4,
                frequencies / 8,
                is_first,
                [len(key) > 1 for key in keys],
                scores / 4,
                is_first * (scores - log_sum(scores)) / 4,
            ],
            1,
        )
        # The row for none of the candidates has the mean of the others.
        columns = np.insert(columns, NONE_ROW, columns.mean(0), 0)
        is_none = np.arange(len(texts)) == NONE_ROW
        right_row = -1 if right is None else texts.index(right) if right in texts else NONE_ROW
        ambiguous.append(
            AmbiguousWord(number, right_row, np.column_stack([logs, is_none, columns]))
        )
    return ambiguous


def log_sum(scores: np.ndarray) -> float:
    """Returns the log-sum-exp of scores."""
    return float(np.logaddexp.reduce(scores))


def fit_weights(words: Sequence[AmbiguousWord], used: Sequence[int]) -> np.ndarray:
    """Fits the weights of columns by the likelihood of the right candidates.

    Args:
        words: Ambiguous words, none merged with another.
        used: The columns to fit; others keep their initial weight, which is 1 for the
            log-probability of the ranker and 0 elsewhere.

    Returns:
        float64 [`COLUMNS`].
    """
    columns = torch.from_numpy(np.concatenate([word.columns for word in words]))
    sizes = torch.tensor([len(word.columns) for word in words])
    groups = torch.repeat_interleave(torch.arange(len(words)), sizes)
    right_rows = sizes.cumsum(0) - sizes + torch.tensor([word.right_row for word in words])
    initial = torch.zeros(COLUMNS, dtype=torch.float64)
    initial[0] = 1
    is_used = torch.zeros(COLUMNS, dtype=torch.bool)
    is_used[list(used)] = True
    weights = initial.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=FIT_STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> float:
        optimizer.zero_grad()
        scores = columns @ torch.where(is_used, weights, initial)
        logs = compute_log_probabilities(scores, groups)
        penalty = FIT_PENALTY * (weights - initial).square().sum()
        loss = penalty - logs[right_rows].mean()
        loss.backward()
        return float(loss.detach())

    optimizer.step(compute_loss)
    return torch.where(is_used, weights, initial).detach().numpy()


def weigh_scores(texts: Sequence[RankedText], all_weights: Sequence[np.ndarray]) -> ScoredTexts:
    """Computes the log-probabilities of corrections with each of several weights.

    The first scoring of the result is the ranker alone.
    """
    scores: list[list[WordScores]] = []
    for text in texts:
        ambiguous = {word.position: word for word in text.ambiguous}
        text_scores: list[WordScores] = []
        for position, (candidates, logs) in enumerate(text.words):
            scorings = np.repeat(logs[None], 1 + len(all_weights), 0)
            if word := ambiguous.get(position):
                for row, weights in enumerate(all_weights, start=1):
                    weighted = word.columns @ weights
                    scorings[row] = weighted - log_sum(weighted)
            corrections = slice(FIRST_CORRECTION, None)
            text_scores.append(WordScores(candidates[corrections], scorings[:, corrections]))
        scores.append(text_scores)
    return ScoredTexts([text.pair for text in texts], scores)


def main() -> None:
    """Fits the weights, scores the validation samples, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="a run of task=sec, or a checkpoint in one")
    parser.add_argument("--samples", type=int, default=FITTED_SAMPLES, help="to fit on, per kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    config, folder = read_config(arguments.checkpoint)
    scorer = CandidateCorrection(config)
    model = scorer.load(folder).eval()
    start = time.process_time()
    ngrams = NgramModel(scorer.table.read_texts("counted"), Lexicon.read(folder))
    counting_s = time.process_time() - start

    fitted: list[AmbiguousWord] = []
    ranked: dict[str, list[RankedText]] = {}
    for method in ERRORS:
        noise = replace(config.noise, method=method, clean_share=0.0)
        task = CandidateCorrection(replace(config, noise=noise))
        pairs = task.make_pairs(task.table.list_numbers("validation"), VALIDATION_EPOCH)
        ranked[method] = rank_texts(scorer, model, ngrams, pairs)
        numbers = draw_samples(task.table.list_numbers("train"), arguments.samples)
        for text in rank_texts(scorer, model, ngrams, task.make_pairs(numbers, FITTED_EPOCH)):
            fitted += [word for word in text.ambiguous if word.right_row >= 0]
    clean_pairs = [replace(pair, source=pair.correct) for pair in pairs]
    clean = rank_texts(scorer, model, ngrams, clean_pairs)

    all_weights = [fit_weights(fitted, used) for used in SCORINGS.values()]
    errors = {method: weigh_scores(texts, all_weights) for method, texts in ranked.items()}
    variants = {
        name: make_variant(
            itemgetter(row), [*errors.values()], weigh_scores(clean, all_weights), config
        )
        for row, name in enumerate(["two passes (used)", *SCORINGS])
    }
    print(f"{len(fitted):,} ambiguous words to fit on.\n")
    print(make_scoring_table(variants, errors, config.seed), end="\n\n")
    print(f"CPU time: {time.process_time():.0f} s, of which counting n-grams {counting_s:.0f} s.")


def draw_samples(numbers: np.ndarray, count: int) -> np.ndarray:
    """Draws samples without replacement."""
    generator = np.random.default_rng(0)
    return generator.choice(numbers, min(count, len(numbers)), replace=False)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
