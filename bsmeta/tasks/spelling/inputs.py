"""Words → the inputs of a model, for both forms: the small one, and encoders of transformers.

The inputs of the small model are the candidates of each word, with features that say how well they
fit the neighboring words. The probability of a word after (and before) its neighbors is that of the
counted texts, smoothed with listed pairs of words and then with its frequency. The neighbors may be
wrong themselves, so both sides are features of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.tokenizer import tokenizer_fingerprint
from bsmeta.tasks.spelling.candidates import Candidates, Form
from bsmeta.tasks.spelling.lexicon import BOUNDARY, Lexicon, Parsed, hash_words, join_hashes, parse

PAIR_WEIGHT, TRIPLE_WEIGHT = 30.0, 4.0
"""Occurrences of a context at which counts weigh as much as what they are smoothed with."""
CONTEXT_FEATURES = 17
LEAST_FREQUENCY = 1e-7  # the frequency of a neighbor that is unknown
WORST = -60.0  # the score of what stands for all other words
WINDOW_WORDS = 256  # most words of a text that the small model sees at once
WORDS_IN_MEMORY = 1_000_000
ROOM = 1.35
"""Tokens of a text with errors, compared with the correct text, for which a batch has room."""

Words = Sequence[str]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """The candidates of the words of some texts, one row each."""

    features: np.ndarray  # float32 [rows, features]
    words: np.ndarray  # int64 [rows], the word of each: its place among the words of all texts
    starts: np.ndarray  # int64 [words + 1], the first row of each word, and the number of rows
    texts: list[list[str]]  # for each word, how its candidates are written


class CandidateInputs:
    """The inputs of the small model: the candidates of each word; a token is a word."""

    measure = "words"  # what determines the lengths of texts; a JSON value

    def __init__(self, lexicon: Lexicon, hidden_misspellings: float = 0.0) -> None:
        self._lexicon = lexicon
        self._candidates = Candidates(lexicon)
        self._in_training = Candidates(lexicon, hidden_misspellings)
        self._parts: dict[str, tuple[Parsed, Parsed]] = {}

    @property
    def features(self) -> int:
        """Number of features of a candidate."""
        return self._candidates.width + CONTEXT_FEATURES

    def lengths(self, texts: Sequence[Words]) -> np.ndarray:
        """The most tokens that each text may have, int64 [texts]."""
        return np.array([len(words) for words in texts], np.int64)

    def fits(self, words: Words, length: int) -> bool:
        """Whether a text with errors has at most that number of tokens."""
        return len(words) <= length

    def windows(self, words: Words) -> list[Words]:
        """A text in parts that the model can read at once."""
        return [words[i : i + WINDOW_WORDS] for i in range(0, len(words), WINDOW_WORDS)]

    def write(self, folder: Path) -> None:
        """Writes what is needed to build the inputs beside a model."""
        self._lexicon.write(folder)

    def tensors(self, texts: Sequence[Words], *, trains: bool = False) -> Tensors:
        """The inputs of texts; `trains`: of those that the model is trained on."""
        return row_tensors(texts, self.rows(texts, trains=trains))

    def rows(
        self, texts: Sequence[Words], neighbors: Sequence[Words] | None = None,
        *, trains: bool = False,
    ) -> Rows:  # fmt: skip
        """The rows of the words of texts, at least one word in all; of words that are not spelled,
        only the first two.

        Args:
            neighbors: What is assumed to be right in the places of the words when their neighbors
                are judged; by default the words themselves.
        """
        candidates = self._in_training if trains else self._candidates
        flat = [self._parsed(word)[1] for text in texts for word in text]
        sequence = _Sequence.of(
            [[self._parsed(word)[0] for word in text] for text in neighbors or texts]
        )
        cores = [part.core for part in flat]
        forms = candidates.find(list(zip(cores, sequence.starts_sentence, strict=True)))
        sizes = np.array([len(form.texts) for form in forms], np.int64)
        words = np.repeat(np.arange(len(forms)), sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        static = np.concatenate([form.features for form in forms])
        context = self._context(sequence, forms, words, starts[:-1])
        written = [
            [part.before + text + part.after for text in form.texts]
            for part, form in zip(flat, forms, strict=True)
        ]
        return Rows(np.concatenate([static, context], 1), words, starts, written)

    def _parsed(self, word: str) -> tuple[Parsed, Parsed]:
        """A word in its parts, and with only the part that is compared with others."""
        found = self._parts.get(word)
        if found is None:
            if len(self._parts) > WORDS_IN_MEMORY:
                self._parts.clear()
            found = self._parts[word] = (parse(word), self._candidates.spelled_part(word))
        return found

    def _context(
        self, sequence: _Sequence, forms: Sequence[Form], words: np.ndarray, first: np.ndarray
    ) -> np.ndarray:
        """The features of each row in its context, float32 [rows, CONTEXT_FEATURES], from the
        candidates of each word, the word of each row, and the first row of each word.
        """
        logs = np.concatenate([form.logs for form in forms])
        fit = self._fit(sequence, forms, words, logs)
        left, right = fit[2], fit[3]
        is_first, is_none = np.zeros(len(words), bool), np.zeros(len(words), bool)
        is_first[first] = is_none[first + 1] = True
        score = np.where(is_none, WORST, left + right - logs)
        best = np.maximum.reduceat(score, first)[words]
        capital = np.concatenate([form.capitals for form in forms])
        before, after = (sequence.capitals[sequence.places + step][words] for step in (-1, 1))
        is_start = sequence.starts_sentence[words]
        columns = [
            *(part / 8 for part in fit[:4]), fit[4] / 3,
            score / 8, (score - score[first][words]) / 8, (score - best) / 8,
            (left - logs) / 4, (right - logs) / 4,
            is_start, is_start & capital, ~is_start & capital,
            capital & before, capital & after, is_first & before, is_first & after,
        ]  # fmt: skip
        found = np.stack(columns, 1).astype(np.float32)
        found[is_none] = 0
        return found

    def _fit(
        self, sequence: _Sequence, forms: Sequence[Form], words: np.ndarray, logs: np.ndarray
    ) -> list[np.ndarray]:
        """How well each row fits between its neighbors: the log-probabilities after the word before
        it, before the word after it, after the two words before it, before the two words after it;
        the logarithm of how often it occurs between its neighbors.
        """
        pairs, triples = self._lexicon.pairs.count, self._lexicon.triples.count
        hashes = hash_words(sequence.names)[sequence.numbers]
        known = np.exp([self._candidates.log(name) for name in sequence.names])
        known = np.maximum(known, LEAST_FREQUENCY)[sequence.numbers]
        before2, before, after, after2 = (
            hashes[sequence.places + step][words] for step in (-2, -1, 1, 2)
        )
        first, last = (np.concatenate([form.hashes[end] for form in forms]) for end in (0, 1))

        def conditional(pair: np.ndarray, context: np.ndarray, step: int) -> np.ndarray:
            """The probability of each row next to the word of the context that is a step away."""
            own = known[sequence.places + step][words]
            listed = np.minimum(self._lexicon.listed_pairs.count(pair) / own, 1)
            smooth = 0.5 * listed + 0.5 * np.exp(logs)
            counts, total = pairs(pair), self._lexicon.singles.count(join_hashes(context))
            return (counts + PAIR_WEIGHT * smooth) / (np.maximum(total, counts) + PAIR_WEIGHT)

        left = conditional(join_hashes(before, first), before, -1)
        right = conditional(join_hashes(last, after), after, 1)
        triple, pair = triples(join_hashes(before2, before, first)), join_hashes(before2, before)
        left2 = (triple + TRIPLE_WEIGHT * left) / (pairs(pair) + TRIPLE_WEIGHT)
        triple, pair = triples(join_hashes(last, after, after2)), join_hashes(after, after2)
        right2 = (triple + TRIPLE_WEIGHT * right) / (pairs(pair) + TRIPLE_WEIGHT)
        between = triples(join_hashes(before, first, after)) * (first == last)
        return [*map(np.log, (left, right, left2, right2)), np.log1p(between)]


@dataclass(frozen=True)
class _Sequence:
    """The words of texts in a row, with boundaries between sentences and texts."""

    names: list[str]  # the distinct words, as they are counted
    numbers: np.ndarray  # of each word of the sequence, int64
    places: np.ndarray  # where in it each word of the texts is, int64 [words]
    starts_sentence: np.ndarray  # whether a sentence begins with each word of the texts
    capitals: np.ndarray  # whether each word of the sequence begins with a capital

    @classmethod
    def of(cls, texts: Sequence[Sequence[Parsed]]) -> _Sequence:
        """The sequence of the words of texts, each with two boundaries before and after it."""
        vocabulary = {BOUNDARY: 0}
        numbers, places = [], []
        for text in texts:
            numbers += [0, 0]
            for word in text:
                places.append(len(numbers))
                numbers.append(vocabulary.setdefault(word.key, len(vocabulary)))
                if word.ends_sentence:
                    numbers.append(0)
        sequence, at = np.array([*numbers, 0, 0]), np.array(places, np.int64)
        capitals = np.zeros(len(sequence), bool)
        capitals[at] = [word.core[:1].isupper() for text in texts for word in text]
        return cls([*vocabulary], sequence, at, sequence[at - 1] == 0, capitals)


def row_tensors(texts: Sequence[Words], rows: Rows) -> Tensors:
    """The arguments of `Ranker.forward`: `features`, `row_words` and `words`."""
    words = np.zeros((len(texts), max(map(len, texts))), np.int64)
    number = 1
    for row, text in enumerate(texts):
        words[row, : len(text)] = range(number, number + len(text))
        number += len(text)
    arrays = {"features": rows.features, "row_words": rows.words + 1, "words": words}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class TokenInputs:
    """The inputs of an encoder of transformers: the tokens of each word by itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest: int | None) -> None:
        self._tokenizer = tokenizer
        self._longest = longest

    @property
    def measure(self) -> Any:
        return [tokenizer_fingerprint(self._tokenizer), self._longest, ROOM]

    def lengths(self, texts: Sequence[Words]) -> np.ndarray:
        counts = np.array([len(self._encode(words)[0]) for words in texts], np.int64)
        roomy = np.ceil(counts * ROOM).astype(np.int64)
        return roomy if self._longest is None else np.minimum(roomy, self._longest)

    def fits(self, words: Words, length: int) -> bool:
        return len(self._encode(words)[0]) <= length

    def tensors(self, texts: Sequence[Words], *, trains: bool = False) -> Tensors:
        encoded = [self._encode(words) for words in texts]
        width, words = max(len(ids) for ids, _ in encoded), max(map(len, texts))
        ids = np.full((len(texts), width), self._tokenizer.pad_token_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        # The word of a token; special tokens and padding belong to a column that is cut off.
        places = np.full((len(texts), width), words, np.int64)
        for row, (own_ids, own_places) in enumerate(encoded):
            ids[row, : len(own_ids)] = own_ids
            mask[row, : len(own_ids)] = 1
            known = own_places >= 0
            places[row, : len(own_ids)][known] = own_places[known]
        is_word = np.arange(words) < np.array([[len(text)] for text in texts])
        arrays = {"input_ids": ids, "attention_mask": mask, "places": places, "is_word": is_word}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def windows(self, words: Words) -> list[Words]:
        if self._longest is None:
            return [words] if words else []
        found, start = [], 0
        while start < len(words):
            end = len(words)
            while end > start + 1 and self._is_too_long(words[start:end]):
                end = start + (end - start) // 2
            found.append(words[start:end])
            start = end
        return found

    def write(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(str(folder))

    def _is_too_long(self, words: Words) -> bool:
        whole = self._tokenizer(list(words), is_split_into_words=True, verbose=False)
        return self._longest is not None and len(whole["input_ids"]) > self._longest

    def _encode(self, words: Words) -> tuple[list[int], np.ndarray]:
        """The tokens of a text that the model can read, and the index of the word of each (-1 for
        special tokens).
        """
        encoded = self._tokenizer(
            list(words), is_split_into_words=True, truncation=self._longest is not None,
            max_length=self._longest, verbose=False,
        )  # fmt: skip
        places = [-1 if word is None else word for word in encoded.word_ids()]
        return encoded["input_ids"], np.array(places, np.int64)


Inputs = CandidateInputs | TokenInputs
"""What a detector reads; both have the same methods."""
