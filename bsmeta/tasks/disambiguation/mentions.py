"""The rows of the store, their mentions, and the inputs of the encoder of mentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.tasks.disambiguation.texts import END, START, Surround, pad, window


@dataclass(frozen=True)
class Row:
    """A row of the store: a sentence, or a part of one.

    Attributes:
        number: Its number in the store.
        sentence: The number of the sentence.
        document: The number of the document.
        tokens: int64 [tokens], without special tokens.
        starts, ends: int64 [mentions], in tokens.
        aliases, entities: int64 [mentions], numbers in the table.
        is_gold: bool [mentions]; false for weak labels.
        positions: int64 [mentions], in the line.
        slices: The line's own slices that each mention is in.
    """

    number: int
    sentence: int
    document: int
    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    aliases: np.ndarray
    entities: np.ndarray
    is_gold: np.ndarray
    positions: np.ndarray
    slices: list[tuple[str, ...]]


@dataclass(frozen=True)
class Mentions:
    """The mentions of some rows, one after the other.

    Attributes:
        rows: int64 [mentions]: which of the rows each is in.
        documents, aliases, entities: int64 [mentions].
        names: `sentence:position` of each.
    """

    rows: np.ndarray
    documents: np.ndarray
    aliases: np.ndarray
    entities: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Mentions:
        counts = [len(row.aliases) for row in rows]
        return cls(
            np.repeat(np.arange(len(rows)), counts),
            np.repeat(np.array([row.document for row in rows], np.int64), counts),
            np.concatenate([row.aliases for row in rows]),
            np.concatenate([row.entities for row in rows]),
            [f"{row.sentence}:{position}" for row in rows for position in row.positions],
        )


class MentionTexts:
    """Makes the inputs of the encoder of mentions.

    Args:
        tokenizer: With the special tokens of the task.
        config: The run.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DisambiguationConfig) -> None:
        data = config.data_config
        self._tokenizer = tokenizer
        self._in_windows = data.mention_encoding == "window"
        self._is_mean = config.pooling == "mean"
        self._surround = Surround(tokenizer)
        self._room = data.window_length - self._surround.count
        start, end = tokenizer.convert_tokens_to_ids([START, END])
        self._markers = (start, end)

    def tensors(
        self, rows: Sequence[Row], masked: Sequence[np.ndarray] | None = None
    ) -> tuple[dict[str, torch.Tensor], int]:
        """The inputs for the mentions of some rows, and how many tokens they have.

        Args:
            rows: The rows.
            masked: bool [mentions] of each row: which mentions are masked; None: none.

        Returns:
            `input_ids`, `attention_mask` (int64 [texts, tokens]) and `mention_tokens` (int64
            [mentions, most tokens of one], places in the flattened texts).
        """
        if masked is None:
            masked = [np.zeros(len(row.aliases), bool) for row in rows]
        if self._in_windows:
            texts, places = self._windows(rows, masked)
        else:
            texts, places = self._sentences(rows, masked)
        tokens = [self._surround(text) for text in texts]
        ids = pad(tokens, self._tokenizer.pad_token_id)
        lengths = np.array([len(one) for one in tokens])
        width = ids.shape[1]
        found = pad([np.asarray(own) + text * width for text, own in places], -1)
        tensors = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(
                (np.arange(width)[None, :] < lengths[:, None]).astype(np.int64)
            ),
            "mention_tokens": torch.from_numpy(found),
        }
        return tensors, int(lengths.sum())

    def _sentences(
        self, rows: Sequence[Row], masked: Sequence[np.ndarray]
    ) -> tuple[list[list[int]], list[tuple[int, range]]]:
        texts, places = [], []
        shift = len(self._surround.before)
        for number, (row, is_masked) in enumerate(zip(rows, masked, strict=True)):
            tokens = row.tokens.copy()
            for start, end in zip(row.starts[is_masked], row.ends[is_masked], strict=True):
                tokens[start:end] = self._tokenizer.mask_token_id
            texts.append(tokens.tolist())
            for start, end in zip(row.starts.tolist(), row.ends.tolist(), strict=True):
                places.append((number, range(start + shift, end + shift)))
        return texts, places

    def _windows(
        self, rows: Sequence[Row], masked: Sequence[np.ndarray]
    ) -> tuple[list[list[int]], list[tuple[int, range]]]:
        texts: list[list[int]] = []
        places = []
        for row, is_masked in zip(rows, masked, strict=True):
            for start, end, mask in zip(row.starts, row.ends, is_masked, strict=True):
                tokens = row.tokens
                if mask:
                    tokens = tokens.copy()
                    tokens[start:end] = self._tokenizer.mask_token_id
                text = window(tokens, int(start), int(end), self._markers, self._room).tolist()
                length = self._surround.count + len(text)
                places.append((len(texts), range(length if self._is_mean else 1)))
                texts.append(text)
        return texts, places
