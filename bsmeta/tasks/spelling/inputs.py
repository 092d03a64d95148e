"""Words → the inputs of a model, for both forms: the small one, and encoders of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.stream.fingerprint import tokenizer_fingerprint
from bsmeta.tasks.spelling.context import RowBuilder, Rows
from bsmeta.tasks.spelling.lexicon import Lexicon

WINDOW_WORDS = 256
"""Most words of a text that the small model sees at once."""
ROOM = 1.35
"""Tokens of a text with errors, compared with the correct text, for which a batch has room."""

Words = Sequence[str]
Tensors = dict[str, torch.Tensor]


class Inputs(Protocol):
    """Words → the inputs of a detector."""

    @property
    def measure(self) -> Any:
        """What determines the lengths of texts; JSON-serializable."""

    def lengths(self, texts: Sequence[Words]) -> np.ndarray:
        """The most tokens that each text may have, int64 [texts]."""

    def fits(self, words: Words, length: int) -> bool:
        """Whether a text with errors has at most that number of tokens."""

    def tensors(self, texts: Sequence[Words], own: Sequence[Words] | None = None) -> Tensors:
        """The inputs of texts.

        Args:
            texts: The words of each text, as read.
            own: The correct words of each, if the model is trained on the texts.
        """

    def windows(self, words: Words) -> list[Words]:
        """A text in parts that the model can read at once."""

    def write(self, folder: Path) -> None:
        """Writes what is needed to build the inputs beside a model."""


class CandidateInputs:
    """The inputs of the small model: the candidates of each word; a token is a word.

    Args:
        lexicon: The known words.
        hidden_misspellings: Share of the known misspellings that are hidden in training.
    """

    def __init__(self, lexicon: Lexicon, hidden_misspellings: float = 0.0) -> None:
        self._lexicon = lexicon
        self._builder = RowBuilder(lexicon)
        self._training = RowBuilder(lexicon, hidden_misspellings)

    @property
    def features(self) -> int:
        """Number of features of a candidate."""
        return self._builder.width

    @property
    def measure(self) -> Any:
        return "words"

    def lengths(self, texts: Sequence[Words]) -> np.ndarray:
        return np.array([len(words) for words in texts], np.int64)

    def fits(self, words: Words, length: int) -> bool:
        return len(words) <= length

    def rows(
        self, texts: Sequence[Words], neighbors: Sequence[Words] | None = None, *,
        trains: bool = False,
    ) -> Rows:  # fmt: skip
        """The candidates of the words of texts, at least one word in all, beside `neighbors`
        (`RowBuilder.rows`).
        """
        return (self._training if trains else self._builder).rows(texts, neighbors)

    def tensors(self, texts: Sequence[Words], own: Sequence[Words] | None = None) -> Tensors:
        return row_tensors(texts, self.rows(texts, trains=own is not None))

    def windows(self, words: Words) -> list[Words]:
        return [words[i : i + WINDOW_WORDS] for i in range(0, len(words), WINDOW_WORDS)]

    def write(self, folder: Path) -> None:
        self._lexicon.write(folder)


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

    def tensors(self, texts: Sequence[Words], own: Sequence[Words] | None = None) -> Tensors:
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
        """The tokens of a text that the model can read, and the word of each.

        Returns:
            The token ids, and for each the index of its word; -1 for special tokens.
        """
        encoded = self._tokenizer(
            list(words), is_split_into_words=True, truncation=self._longest is not None,
            max_length=self._longest, verbose=False,
        )  # fmt: skip
        places = [-1 if word is None else word for word in encoded.word_ids()]
        return encoded["input_ids"], np.array(places, np.int64)
