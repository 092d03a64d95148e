"""The inputs of the two encoders: texts of entities, and sentences or windows around mentions.

The text of an entity is `title [ent_type] types [ent_kg] relations [ent_desc] description`, as in
Bootleg 1.1: the title without its parenthesis, and each part only if the entity has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.tokenizer import padded_tokenizer_of, special_tokens
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT, DisambiguationConfig
from bsmeta.tasks.disambiguation.entities import EntityTable

START, END = "[ent_start]", "[ent_end]"
TYPE, RELATION, DESCRIPTION = "[ent_type]", "[ent_kg]", "[ent_desc]"
SPECIAL_TOKENS = (START, END, TYPE, RELATION, DESCRIPTION)

_PARENTHESIS = re.compile(r"\s*\([^()]*\)\s*$")
_CACHED_TEXTS = 1 << 17


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name, with the special tokens of the task.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no token to pad with.
    """
    tokenizer = padded_tokenizer_of(name)
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.add_tokens([*SPECIAL_TOKENS], special_tokens=True)
    return tokenizer


class Surround:
    """The special tokens that an encoder expects around a text.

    Args:
        tokenizer: That of the encoder.

    Attributes:
        before, after: The tokens before and after a text.
        count: How many there are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.before, self.after = special_tokens(tokenizer)
        self.count = len(self.before) + len(self.after)

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a text with the special ones."""
        return [*self.before, *tokens, *self.after]


class EntityTexts:
    """The tokens of the texts of entities.

    Args:
        table: The entities.
        tokenizer: That of the encoder, with the special tokens.
        parts: The parts of a text, of `ENTITY_TEXT`.
        max_length: Most tokens of a text, with the special ones.

    Attributes:
        settings: What of the configuration determines the tokens.
        max_length: The same.
    """

    def __init__(
        self,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        parts: Sequence[str],
        max_length: int,
    ) -> None:
        self.settings = [sorted(parts), max_length]
        self.max_length = max_length
        self._table = table
        self._tokenizer = tokenizer
        self._parts = frozenset(parts)
        self._surround = Surround(tokenizer)
        self._room = max_length - self._surround.count
        names = {"types": TYPE, "relations": RELATION, "description": DESCRIPTION}
        self._markers = {name: tokenizer.convert_tokens_to_ids(names[name]) for name in names}
        self._cached = lru_cache(_CACHED_TEXTS)(self._encode)

    def text(self, entity: int) -> str:
        """The text of an entity, without its special tokens: what determines its tokens."""
        return "\n".join(f"{name}: {text}" for name, text in self._texts(entity).items())

    def tokens(self, entity: int, is_masked: bool = False) -> list[int]:
        """The tokens of an entity's text.

        Args:
            entity: Its number in the table.
            is_masked: Whether the mask replaces each token of the title.
        """
        title, rest = self._cached(entity)
        if is_masked:
            title = [self._tokenizer.mask_token_id] * len(title)
        return self._surround([*title, *rest][: self._room])

    def _encode(self, entity: int) -> tuple[list[int], list[int]]:
        texts = self._texts(entity)
        if not texts:
            return [], []
        encoded = self._tokenizer(
            [*texts.values()], add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        tokens = dict(zip(texts, encoded, strict=True))
        title = tokens.pop("title", [])
        rest = [token for name, own in tokens.items() for token in (self._markers[name], *own)]
        return title, rest

    def _texts(self, entity: int) -> dict[str, str]:
        """The parts that an entity has, in their order."""
        table = self._table
        make = {
            "title": lambda: _PARENTHESIS.sub("", table.title(entity)),
            "types": lambda: ", ".join(table.types(entity)),
            "relations": lambda: ", ".join(
                f"{name} {table.title(other)}".strip() for name, other in table.relations(entity)
            ),
            "description": lambda: table.description(entity),
        }
        texts = {name: make[name]() for name in ENTITY_TEXT if name in self._parts}
        return {name: text for name, text in texts.items() if text}


def window(
    tokens: np.ndarray, start: int, end: int, markers: tuple[int, int], length: int
) -> np.ndarray:
    """The tokens around a mention, with a marker before and after it.

    Args:
        tokens: Those of the sentence.
        start, end: The first token of the mention, and the one after its last.
        markers: The tokens before and after the mention.
        length: Most tokens of the window, with the markers. The mention keeps at most half of it;
            the context before and after it is as long as the sentence and the window allow.
    """
    end = min(end, start + max(1, length // 2 - 2))
    room = length - (end - start) - 2
    before = min(start, room - min(room // 2, len(tokens) - end))
    after = min(len(tokens) - end, room - before)
    return np.concatenate(
        [tokens[start - before : start], markers[:1], tokens[start:end], markers[1:],
         tokens[end : end + after]]
    )  # fmt: skip


def pad(sequences: Sequence[Sequence[int] | np.ndarray], value: int) -> np.ndarray:
    """The sequences as int64 [sequences, longest], padded at the end."""
    longest = max(map(len, sequences), default=0)
    padded = np.full((len(sequences), longest), value, np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def mask_of(lengths: Sequence[int]) -> np.ndarray:
    """The attention mask of padded sequences, int64 [sequences, longest]."""
    places = np.arange(max(lengths, default=0))
    return (places[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)


@dataclass(frozen=True)
class Row:
    """A row of the store: a sentence, or a part of one.

    Attributes:
        number: Its number in the store.
        sentence: The number of the sentence.
        document: The number of the document.
        tokens: int64 [tokens], without special tokens.
        starts, ends: int64 [mentions], in tokens.
        aliases: int64 [mentions], numbers in the table.
        entities: int64 [mentions, most of one], numbers in the table of the entities that each
            mention means; -1 for no more.
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


def entities_of(rows: Sequence[Row]) -> np.ndarray:
    """The entities of the mentions of some rows, int64 [mentions, most of one]; -1 for no more."""
    return pad([own[own >= 0] for row in rows for own in row.entities], -1)


@dataclass(frozen=True)
class Mentions:
    """The mentions of some rows, one after the other.

    Attributes:
        rows: int64 [mentions]: which of the rows each is in.
        documents, aliases: int64 [mentions].
        entities: int64 [mentions, most of one]; see `Row`.
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
            entities_of(rows),
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
        lengths = [len(own) for own in tokens]
        width = ids.shape[1]
        found = pad([np.asarray(own) + text * width for text, own in places], -1)
        tensors = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask_of(lengths)),
            "mention_tokens": torch.from_numpy(found),
        }
        return tensors, sum(lengths)

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
