"""The inputs of the models: tensors for the small model, and for encoders of transformers.

The inputs of the small model are the candidates of each word, with features that say how well they
fit the neighboring words. The probability of a word after (and before) its neighbors is estimated
from the counted texts, and smoothed with listed pairs of words and then with its frequency. The
neighbors may be wrong themselves, so each side has features of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.tokenizer import fingerprint_tokenizer
from bsmeta.tasks.spelling.candidates import Candidates, Form
from bsmeta.tasks.spelling.context import NEIGHBORS, OTHER, ContextModel, find_neighbors
from bsmeta.tasks.spelling.lexicon import (
    BOUNDARY,
    NUMBER,
    Lexicon,
    Parsed,
    hash_words,
    parse_token,
)
from bsmeta.tasks.spelling.ngrams import ORDER, Sentences, join_hashes

# Weights of the priors with which counts are smoothed, in occurrences of the context.
PAIR_WEIGHT = 30.0
TRIPLE_WEIGHT = 4.0

SENTENCE_FEATURES = 3  # number of the features of a candidate by the score of its sentence
CONTEXT_FEATURES = 17 + SENTENCE_FEATURES  # number of its features in its context, with those last
MODEL_FEATURES = 4  # number of further ones if there is a context model
MIN_FREQUENCY = 1e-7  # the frequency of an unknown neighbor
OTHER_LOG_SHARE = -3.0  # log share of the words without an embedding in a context model
NONE_SCORE = -60.0  # the score of the row that stands for all other words
MAX_WINDOW_WORDS = 64  # words that a window of the small model judges, as in training
WINDOW_OVERLAP = 8  # words read before and after them, where a window does not end a sentence
MAX_CACHED_WORDS = 1_000_000
NOISE_ROOM = 1.35
"""Ratio of the tokens for which a batch has room to the tokens of the correct text."""

_BOUNDARY_NUMBER = 0  # the number of `BOUNDARY` in a `_Sequence`

Words = Sequence[str]
Tensors = dict[str, torch.Tensor]


class Window(NamedTuple):
    """A part of a text that a model reads at once."""

    words: Words
    judged: slice  # the positions of the words that are judged; the others are their context


@dataclass(frozen=True)
class Rows:
    """The candidates of the words of a batch of texts, one row each."""

    features: np.ndarray  # float32 [rows, features]
    words: np.ndarray  # int64 [rows], the word of each: its position among the words of all texts
    starts: np.ndarray  # int64 [words + 1], the first row of each word, and the number of rows
    texts: list[list[str]]  # for each word, its candidates as they are written in the text


class _ParsedWord(NamedTuple):
    """A token of a text, parsed for its two roles."""

    neighbor: Parsed  # as the context of other words
    part: Parsed  # to be corrected: its core is only the part that has candidates


@dataclass(frozen=True)
class _Fit:
    """Log-probabilities of candidates given neighboring words: float [rows] each, in nats."""

    left: np.ndarray  # given the word before it
    right: np.ndarray  # given the word after it
    left2: np.ndarray  # given the two words before it
    right2: np.ndarray  # given the two words after it
    between: np.ndarray  # instead: log1p of the count of the triple with both neighbors


class CandidateInputs:
    """The inputs of the small model: the candidates of each word; a token is a word.

    Args:
        lexicon: The words, and the counts of their neighbors.
        hidden_misspellings: In training, the share of the known misspellings that are hidden.
        context_model: Scores candidates between their neighbors; None: without such features.
    """

    measure = "words"  # identifies how the lengths of texts are computed; a JSON value

    def __init__(
        self,
        lexicon: Lexicon,
        hidden_misspellings: float = 0.0,
        context_model: ContextModel | None = None,
    ) -> None:
        self._lexicon = lexicon
        self._context_model = context_model
        find_numbers = None if context_model is None else context_model.find_numbers
        self._candidates = Candidates(lexicon, find_numbers=find_numbers)
        self._training_candidates = Candidates(lexicon, hidden_misspellings, find_numbers)
        self._parsed_words: dict[str, _ParsedWord] = {}

    @property
    def features(self) -> int:
        """Number of features of a candidate."""
        context_features = CONTEXT_FEATURES
        if self._context_model is not None:
            context_features += MODEL_FEATURES
        return self._candidates.feature_count + context_features

    def find_unknown_script(self, word: str) -> str:
        """Returns the script of a word if the lexicon does not have it; otherwise ""."""
        return self._lexicon.scripts.find_unknown(word)

    def measure_lengths(self, texts: Sequence[Words]) -> np.ndarray:
        """Returns the maximum number of tokens of each text with errors: int64 [texts]."""
        return np.array([len(words) for words in texts], np.int64)

    def fits(self, words: Words, length: int) -> bool:
        """Returns whether a text with errors has at most `length` tokens."""
        return len(words) <= length

    def divide_windows(self, words: Words) -> list[Window]:
        """Divides a text into windows of at most `MAX_WINDOW_WORDS` judged words.

        They end with a sentence. Only the windows of a longer sentence overlap.
        """
        windows: list[Window] = []
        start = 0
        while start < len(words):
            end = self._find_window_end(words, start)
            first = start
            if start and not self._parse(words[start - 1]).neighbor.ends_sentence:
                first = max(start - WINDOW_OVERLAP, 0)
            last = end
            if not self._parse(words[end - 1]).neighbor.ends_sentence:
                last = min(end + WINDOW_OVERLAP, len(words))
            windows.append(Window(words[first:last], slice(start - first, end - first)))
            start = end
        return windows

    def _find_window_end(self, words: Words, start: int) -> int:
        """Returns the end of the window that starts at a word."""
        limit = start + MAX_WINDOW_WORDS
        if limit >= len(words):
            return len(words)
        for end in range(limit, start, -1):
            if self._parse(words[end - 1]).neighbor.ends_sentence:
                return end
        return limit

    def write(self, folder: Path) -> None:
        """Writes the files from which the inputs are built, beside a model."""
        self._lexicon.write(folder)
        if self._context_model is not None:
            self._context_model.write(folder)

    def make_tensors(self, texts: Sequence[Words], *, trains: bool = False) -> Tensors:
        """Makes the input tensors of texts.

        Args:
            trains: Whether they are for a step of training; see `build_rows`.
        """
        return make_row_tensors(texts, self.build_rows(texts, trains=trains))

    def build_rows(
        self,
        texts: Sequence[Words],
        neighbors: Sequence[Words] | None = None,
        *,
        trains: bool = False,
    ) -> Rows:
        """Builds the rows of the words of texts.

        The first row of a word is the word itself, and the second stands for all words that are no
        candidates; the others are its corrections. Numbers, URLs and other words that are never
        misspelled have only the first two.

        Args:
            texts: At least one word in all.
            neighbors: The words to use as the context, in the same positions; None: the words of
                `texts`.
            trains: Whether the rows are for training, where some known misspellings are hidden.
        """
        parts: list[Parsed] = []
        for text in texts:
            parts += [self._parse(word).part for word in text]
        parsed_neighbors: list[list[Parsed]] = []
        for text in neighbors or texts:
            parsed_neighbors.append([self._parse(word).neighbor for word in text])
        sequence = _Sequence.of(parsed_neighbors)

        candidates = self._training_candidates if trains else self._candidates
        cores = [part.core for part in parts]
        forms = candidates.find(list(zip(cores, sequence.starts_sentence, strict=True)))

        sizes = np.array([len(form.texts) for form in forms], np.int64)
        words = np.repeat(np.arange(len(forms)), sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        form_features = np.concatenate([form.features for form in forms])
        context_features = self._compute_context_features(sequence, forms, words, starts[:-1])

        candidate_texts: list[list[str]] = []
        for part, form in zip(parts, forms, strict=True):
            candidate_texts.append([part.before + text + part.after for text in form.texts])
        features = np.concatenate([form_features, context_features], 1)
        return Rows(features, words, starts, candidate_texts)

    def _parse(self, word: str) -> _ParsedWord:
        parsed = self._parsed_words.get(word)
        if parsed is None:
            if len(self._parsed_words) > MAX_CACHED_WORDS:
                self._parsed_words.clear()
            parsed = _ParsedWord(parse_token(word), self._candidates.find_spelled_part(word))
            self._parsed_words[word] = parsed
        return parsed

    def _compute_context_features(
        self, sequence: _Sequence, forms: Sequence[Form], words: np.ndarray, first: np.ndarray
    ) -> np.ndarray:
        """Computes the features of each row in its context: float32 [rows, CONTEXT_FEATURES].

        Args:
            sequence: The words of the context.
            forms: The candidates of each word.
            words: The word of each row: int64 [rows].
            first: The first row of each word: int64 [words].
        """
        logs = np.concatenate([form.logs for form in forms])
        fit = self._compute_fit(sequence, forms, words, logs)

        # The first row of a word is the word itself, the second is for none of the candidates.
        is_first = np.zeros(len(words), bool)
        is_none = np.zeros(len(words), bool)
        is_first[first] = True
        is_none[first + 1] = True

        # Both sides have the frequency of the word as a factor; it counts once.
        score = np.where(is_none, NONE_SCORE, fit.left2 + fit.right2 - logs)
        best_score = np.maximum.reduceat(score, first)[words]

        sentence_score = self._score_sentences(sequence, forms, words, logs)
        sentence_score[is_none] = NONE_SCORE
        best_sentence_score = np.maximum.reduceat(sentence_score, first)[words]

        has_capital = np.concatenate([form.capitals for form in forms])
        capital_before = sequence.capitals[sequence.positions - 1][words]
        capital_after = sequence.capitals[sequence.positions + 1][words]
        is_start = sequence.starts_sentence[words]
        # The divisors bring log-probabilities to the scale of the binary features.
        columns = [
            fit.left / 8,
            fit.right / 8,
            fit.left2 / 8,
            fit.right2 / 8,
            fit.between / 3,
            score / 8,
            (score - score[first][words]) / 8,
            (score - best_score) / 8,
            (fit.left2 - logs) / 4,
            (fit.right2 - logs) / 4,
            is_start,
            is_start & has_capital,
            ~is_start & has_capital,
            has_capital & capital_before,
            has_capital & capital_after,
            is_first & capital_before,
            is_first & capital_after,
            sentence_score / 16,
            (sentence_score - sentence_score[first][words]) / 8,
            (sentence_score - best_sentence_score) / 8,
            *self._compute_model_features(sequence, forms, words, first, logs),
        ]
        features = np.stack(columns, 1).astype(np.float32)
        features[is_none] = 0
        return features

    def _compute_model_features(
        self,
        sequence: _Sequence,
        forms: Sequence[Form],
        words: np.ndarray,
        first: np.ndarray,
        logs: np.ndarray,
    ) -> list[np.ndarray]:
        """Computes the features of the context model, `MODEL_FEATURES` columns; see `_compute_fit`.

        Args:
            first: The first row of each word: int64 [words].
        """
        model = self._context_model
        if model is None:
            return []

        numbers = np.concatenate([form.numbers for form in forms])
        neighbors = model.find_numbers(sequence.names)[sequence.numbers]
        score = model.score(model.predict(neighbors, sequence.positions), words, numbers)
        # A word without an embedding has its share of the probability of all such words.
        score = np.where(numbers == OTHER, score + logs - OTHER_LOG_SHARE, score)

        others = score.copy()
        others[first + 1] = NONE_SCORE
        best_score = np.maximum.reduceat(others, first)[words]
        return [
            score / 8,
            (score - score[first][words]) / 8,
            (score - best_score) / 8,
            (score - logs) / 4,
        ]

    def _score_sentences(
        self, sequence: _Sequence, forms: Sequence[Form], words: np.ndarray, logs: np.ndarray
    ) -> np.ndarray:
        """Scores the sentence of each row by n-grams: float64 [rows], in nats.

        Args:
            logs: The log-frequency of each row: float [rows].
        """
        numbers = find_neighbors(sequence.numbers, sequence.positions, _BOUNDARY_NUMBER)
        # The nearest word before is the first column, and the nearest one after follows them.
        in_order = [*range(ORDER - 2, -1, -1), *range(NEIGHBORS, NEIGHBORS + ORDER - 1)]
        neighbors = numbers[:, in_order]
        hashes = hash_words(sequence.names)
        frequencies = self._find_frequencies(sequence.names)
        first = np.concatenate([form.first_hashes for form in forms])
        last = np.concatenate([form.last_hashes for form in forms])
        last_logs = np.concatenate([form.last_logs for form in forms])

        scores = np.zeros(len(words))
        is_single = first == last
        for rows, candidates, candidate_logs in (
            (np.flatnonzero(is_single), [first], [logs]),
            (np.flatnonzero(~is_single), [first, last], [logs, last_logs]),
        ):
            sentences = Sentences(
                neighbors=hashes[neighbors],
                neighbor_frequencies=frequencies[neighbors],
                is_boundary=neighbors == _BOUNDARY_NUMBER,
                rows=words[rows],
                candidates=[word_hashes[rows] for word_hashes in candidates],
                candidate_frequencies=[np.exp(word_logs[rows]) for word_logs in candidate_logs],
            )
            scores[rows] = self._lexicon.ngrams.score(sentences, self._lexicon.listed_bigrams)
        return scores

    def _find_frequencies(self, names: Sequence[str]) -> np.ndarray:
        """Returns the frequency of each word or marker: float [names].

        The lexicon has no markers; theirs are those of the counted texts.
        """
        logs = [self._candidates.compute_log_frequency(name) for name in names]
        ngrams = self._lexicon.ngrams
        shares = ngrams.count(hash_words(names)) / max(ngrams.orders[0].counts.sum(), 1)
        is_marker = np.isin(names, [BOUNDARY, NUMBER])
        frequencies = np.where(is_marker, shares, np.exp(logs))
        return np.maximum(frequencies, MIN_FREQUENCY)

    def _compute_fit(
        self, sequence: _Sequence, forms: Sequence[Form], words: np.ndarray, logs: np.ndarray
    ) -> _Fit:
        """Computes how well each row fits its neighbors; `logs`: the log-frequency of each row."""
        count = self._lexicon.ngrams.count
        hashes = hash_words(sequence.names)[sequence.numbers]
        frequencies = np.exp(
            [self._candidates.compute_log_frequency(name) for name in sequence.names]
        )
        frequencies = np.maximum(frequencies, MIN_FREQUENCY)[sequence.numbers]

        # Hashes of the neighbors of each word, and of the first and last word of each row.
        before2, before, after, after2 = (
            hashes[sequence.positions + step] for step in (-2, -1, 1, 2)
        )
        first = np.concatenate([form.first_hashes for form in forms])
        last = np.concatenate([form.last_hashes for form in forms])

        def compute_conditional(
            pair: tuple[np.ndarray, np.ndarray], counts: np.ndarray, context: np.ndarray, step: int
        ) -> np.ndarray:
            """Returns the probability of each row, given the neighbor that is `step` words away."""
            neighbor_frequency = frequencies[sequence.positions + step][words]
            pair_share = self._lexicon.listed_bigrams.count(join_hashes(*pair))
            listed_prior = np.minimum(pair_share / neighbor_frequency, 1)
            # The prior is the mean of two estimates: from the listed pairs, and without context.
            prior = 0.5 * listed_prior + 0.5 * np.exp(logs)
            # Rare pairs and words are not kept, so a kept pair may have more than its context.
            total = np.maximum(count(context)[words], counts)
            return (counts + PAIR_WEIGHT * prior) / (total + PAIR_WEIGHT)

        def smooth(counts: np.ndarray, context: np.ndarray, prior: np.ndarray) -> np.ndarray:
            """Returns the probability of each row, given the count of the pair before or after."""
            return (counts + TRIPLE_WEIGHT * prior) / (context[words] + TRIPLE_WEIGHT)

        # A triple was counted only if its pairs were.
        left_pair = (before[words], first)
        right_pair = (last, after[words])
        left_counts = count(*left_pair)
        right_counts = count(*right_pair)
        left = compute_conditional(left_pair, left_counts, before, -1)
        right = compute_conditional(right_pair, right_counts, after, 1)

        left_triples = count(before2[words], *left_pair, where=left_counts > 0)
        right_triples = count(*right_pair, after2[words], where=right_counts > 0)
        left2 = smooth(left_triples, count(before2, before), left)
        right2 = smooth(right_triples, count(after, after2), right)

        # Two words have no count between their neighbors.
        is_between = (left_counts > 0) & (right_counts > 0) & (first == last)
        between = count(*left_pair, after[words], where=is_between)
        return _Fit(
            left=np.log(left),
            right=np.log(right),
            left2=np.log(left2),
            right2=np.log(right2),
            between=np.log1p(between),
        )


@dataclass(frozen=True)
class _Sequence:
    """The words of several texts as one sequence, with boundaries around sentences and texts."""

    names: list[str]  # the distinct words, in their counted form
    numbers: np.ndarray  # int64 [sequence], the index in `names` of each word or boundary
    positions: np.ndarray  # int64 [words], the index in the sequence of each word of the texts
    starts_sentence: np.ndarray  # bool [words], whether a sentence begins with the word
    capitals: np.ndarray  # bool [sequence], whether the word begins with a capital

    @classmethod
    def of(cls, texts: Sequence[Sequence[Parsed]]) -> _Sequence:
        """Joins the words of texts, each with two boundaries before and after it."""
        vocabulary = {BOUNDARY: _BOUNDARY_NUMBER}
        numbers: list[int] = []
        positions: list[int] = []
        is_capitalized: list[bool] = []
        for text in texts:
            numbers += [_BOUNDARY_NUMBER, _BOUNDARY_NUMBER]
            for word in text:
                positions.append(len(numbers))
                is_capitalized.append(word.core[:1].isupper())
                numbers.append(vocabulary.setdefault(word.key, len(vocabulary)))
                if word.ends_sentence:
                    numbers.append(_BOUNDARY_NUMBER)
        numbers += [_BOUNDARY_NUMBER, _BOUNDARY_NUMBER]

        sequence = np.array(numbers)
        word_positions = np.array(positions, np.int64)
        capitals = np.zeros(len(sequence), bool)
        capitals[word_positions] = is_capitalized
        return cls(
            names=[*vocabulary],
            numbers=sequence,
            positions=word_positions,
            starts_sentence=sequence[word_positions - 1] == _BOUNDARY_NUMBER,
            capitals=capitals,
        )


def make_row_tensors(texts: Sequence[Words], rows: Rows) -> Tensors:
    """Makes the arguments of `Ranker.forward`: `features`, `row_words` and `words`."""
    words = np.zeros((len(texts), max(map(len, texts))), np.int64)
    first = 1
    for row, text in enumerate(texts):
        words[row, : len(text)] = range(first, first + len(text))
        first += len(text)
    arrays = {"features": rows.features, "row_words": rows.words + 1, "words": words}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class _Encoded(NamedTuple):
    """The tokens of a text, with the special tokens."""

    ids: list[int]
    words: np.ndarray  # int64 [tokens], the index of the word of each; -1 for special tokens


class TokenInputs:
    """The inputs of an encoder of transformers: the tokens of each word by itself.

    It has the same methods as `CandidateInputs`.

    Args:
        tokenizer: A fast tokenizer.
        max_tokens: The maximum number of tokens that the encoder reads; None: no limit.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> None:
        self.tokenizer = tokenizer
        self._max_tokens = max_tokens

    @property
    def measure(self) -> Any:
        return [fingerprint_tokenizer(self.tokenizer), self._max_tokens, NOISE_ROOM]

    def find_unknown_script(self, word: str) -> str:
        """Returns "": without a lexicon, words of every script are judged."""
        return ""

    def measure_lengths(self, texts: Sequence[Words]) -> np.ndarray:
        counts = np.array([len(self._encode(words).ids) for words in texts], np.int64)
        with_room = np.ceil(counts * NOISE_ROOM).astype(np.int64)
        return with_room if self._max_tokens is None else np.minimum(with_room, self._max_tokens)

    def fits(self, words: Words, length: int) -> bool:
        return len(self._encode(words).ids) <= length

    def make_tensors(self, texts: Sequence[Words], *, trains: bool = False) -> Tensors:
        encoded = [self._encode(words) for words in texts]
        token_width = max(len(text.ids) for text in encoded)
        word_width = max(map(len, texts))

        ids = np.full((len(texts), token_width), self.tokenizer.pad_token_id, np.int64)
        mask = np.zeros((len(texts), token_width), np.int64)
        # The word of a token; special tokens and padding belong to a column that is cut off.
        token_words = np.full((len(texts), token_width), word_width, np.int64)
        for row, text in enumerate(encoded):
            length = len(text.ids)
            ids[row, :length] = text.ids
            mask[row, :length] = 1
            has_word = text.words >= 0
            token_words[row, :length][has_word] = text.words[has_word]

        is_word = np.arange(word_width) < np.array([[len(text)] for text in texts])
        arrays = {
            "input_ids": ids,
            "attention_mask": mask,
            "places": token_words,
            "is_word": is_word,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def divide_windows(self, words: Words) -> list[Window]:
        if self._max_tokens is None:
            return [Window(words, slice(len(words)))] if words else []

        windows: list[Window] = []
        start = 0
        while start < len(words):
            # Halve the rest until it fits; a single word is truncated when it is encoded.
            end = len(words)
            while end > start + 1 and self._is_too_long(words[start:end]):
                end = start + (end - start) // 2
            windows.append(Window(words[start:end], slice(end - start)))
            start = end
        return windows

    def write(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(str(folder))

    def _is_too_long(self, words: Words) -> bool:
        encoded = self.tokenizer(list(words), is_split_into_words=True, verbose=False)
        return self._max_tokens is not None and len(encoded["input_ids"]) > self._max_tokens

    def _encode(self, words: Words) -> _Encoded:
        """Encodes a text, truncated to `max_tokens`."""
        encoded = self.tokenizer(
            list(words),
            is_split_into_words=True,
            truncation=self._max_tokens is not None,
            max_length=self._max_tokens,
            verbose=False,
        )
        word_numbers = [-1 if word is None else word for word in encoded.word_ids()]
        return _Encoded(encoded["input_ids"], np.array(word_numbers, np.int64))


Inputs = CandidateInputs | TokenInputs
"""The inputs of a detector; both classes have the same methods."""
