"""The inputs of the two encoders: texts of entities, and rows of sentences or windows in them.

The text of an entity is `title [ent_type] types [ent_kg] relations [ent_desc] description`, as in
Bootleg 1.1: the title without its parenthesis, and each part only if the entity has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.tokenizer import padded_tokenizer_of, special_tokens
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT, DisambiguationConfig
from bsmeta.tasks.disambiguation.entities import EntityTable

START, END = "[ent_start]", "[ent_end]"
MARKERS = {"types": "[ent_type]", "relations": "[ent_kg]", "description": "[ent_desc]"}
SPECIAL_TOKENS = (START, END, *MARKERS.values())
_PARENTHESIS = re.compile(r"(?<!\s)\s*+\([^()]*\)\s*$")
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


class EntityTexts:
    """The tokens of the texts of entities: some parts of `ENTITY_TEXT`, and at most `max_length`.

    `settings` is what of the configuration determines the tokens, `count` the number of entities.
    """

    def __init__(
        self,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        parts: Sequence[str],
        max_length: int,
    ) -> None:
        self.settings = [sorted(parts), max_length]
        self.count = len(table)
        self.max_length = max_length
        self.tokenizer = tokenizer
        self._table = table
        self._parts = [part for part in ENTITY_TEXT if part in parts]
        self._before, self._after = special_tokens(tokenizer)
        self._room = max_length - len(self._before) - len(self._after)
        self._markers = {
            name: tokenizer.convert_tokens_to_ids(marker) for name, marker in MARKERS.items()
        }
        self._cached = lru_cache(_CACHED_TEXTS)(self._encode)

    def text(self, entity: int) -> str:
        """The text of an entity, without its special tokens: what determines its tokens."""
        return "\n".join(f"{name}: {text}" for name, text in self._texts(entity).items())

    def tokens(self, entity: int, is_masked: bool = False) -> list[int]:
        """The tokens of an entity's text; the mask may replace each token of the title."""
        title, rest = self._cached(entity)
        if is_masked:
            title = [self.tokenizer.mask_token_id] * len(title)
        return [*self._before, *[*title, *rest][: self._room], *self._after]

    def tensors(
        self, entities: np.ndarray, is_masked: np.ndarray
    ) -> tuple[dict[str, torch.Tensor], int]:
        """`entity_ids` and `entity_mask`, int64 [entities, tokens], and how many tokens there are.

        `is_masked`, bool [entities], says whose titles are masked.
        """
        pairs = zip(entities.tolist(), is_masked.tolist(), strict=True)
        tokens = [self.tokens(entity, masked) for entity, masked in pairs]
        lengths = [len(own) for own in tokens]
        return {
            "entity_ids": torch.from_numpy(pad(tokens, self.tokenizer.pad_token_id)),
            "entity_mask": torch.from_numpy(mask_of(lengths)),
        }, sum(lengths)

    def _encode(self, entity: int) -> tuple[list[int], list[int]]:
        """The tokens of the title, and those of the other parts."""
        texts = self._texts(entity)
        if not texts:
            return [], []
        encoded = self.tokenizer(
            [*texts.values()], add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        tokens = dict(zip(texts, encoded, strict=True))
        title = tokens.pop("title", [])
        rest = [token for name, own in tokens.items() for token in (self._markers[name], *own)]
        return title, rest

    def _texts(self, entity: int) -> dict[str, str]:
        texts = {part: self._part(part, entity) for part in self._parts}
        return {part: text for part, text in texts.items() if text}

    def _part(self, part: str, entity: int) -> str:
        table = self._table
        if part == "title":
            return _PARENTHESIS.sub("", table.titles[entity])
        if part == "types":
            return ", ".join(table.types(entity))
        if part == "relations":
            relations = table.relations(entity)
            return ", ".join(f"{name} {table.titles[other]}".strip() for name, other in relations)
        return table.descriptions[entity]


def window(
    tokens: np.ndarray, start: int, end: int, markers: tuple[int, int], length: int
) -> np.ndarray:
    """The tokens around a mention, with a marker before and after it.

    It has at most `length` tokens, with the markers. The mention keeps at most half of them; the
    context before and after it is as long as the sentence and the window allow.
    """
    end = min(end, start + max(1, length // 2 - 2))
    room = length - (end - start) - 2
    before = min(start, room - min(room // 2, len(tokens) - end))
    after = min(len(tokens) - end, room - before)
    context = tokens[start - before : start], tokens[end : end + after]
    return np.concatenate([context[0], markers[:1], tokens[start:end], markers[1:], context[1]])


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


class Limits(NamedTuple):
    """What a row may hold: mentions, words, and tokens without special ones, at most."""

    mentions: int
    words: int
    tokens: int


class Chunk(NamedTuple):
    """A row of a sentence: its tokens, and the numbers of its mentions in the order of the text."""

    start: int
    end: int
    mentions: list[int]


def overlapping(spans: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The range of parts (tokens or words) that each span overlaps; both in characters, [n, 2].

    Starts and ends of the parts do not fall. A range is not ascending where a span has none.
    """
    first = np.searchsorted(parts[:, 1], spans[:, 0], side="right")
    after = np.searchsorted(parts[:, 0], spans[:, 1], side="left")
    return np.stack([first, after], axis=1)


def divide(
    mentions: np.ndarray, words: np.ndarray, tokens: np.ndarray, limits: Limits
) -> tuple[list[Chunk], int]:
    """The rows of a sentence: not too many mentions, words or tokens, and each mention in one row.

    A sentence that has only too many mentions becomes several rows of its whole text, each with
    some of the mentions; of a long sentence, a row has the words around its mentions.

    Mentions, words and tokens are the characters of each, int [n, 2]. Also returns the number of
    mentions that no row can hold: longer than a row, or without a token.
    """
    in_words, in_tokens = overlapping(mentions, words), overlapping(mentions, tokens)
    lengths = in_tokens[:, 1] - in_tokens[:, 0]
    fits = (lengths > 0) & (lengths <= limits.tokens)
    fits &= in_words[:, 1] - in_words[:, 0] <= limits.words
    order = [int(i) for i in np.lexsort((mentions[:, 1], mentions[:, 0])) if fits[i]]
    chunks = []
    for group in _groups(order, in_words, in_tokens, limits):
        first, last = in_words[group, 0].min(), in_words[group, 1].max()
        first, after = widen(int(first), int(last), 0, len(words), limits.words)
        around = np.array([[words[first, 0], words[after - 1, 1]]])
        low, high = overlapping(around, tokens)[0].tolist()
        first, last = in_tokens[group, 0].min(), in_tokens[group, 1].max()
        chunks.append(Chunk(*widen(int(first), int(last), low, high, limits.tokens), group))
    return chunks, len(mentions) - len(order)


def _groups(
    order: Sequence[int], in_words: np.ndarray, in_tokens: np.ndarray, limits: Limits
) -> list[list[int]]:
    """Groups of consecutive mentions of about equal size, each of which fits into a row."""
    if not order:
        return []
    least = -(-len(order) // limits.mentions)
    size = -(-len(order) // least)
    words, tokens = in_words.tolist(), in_tokens.tolist()  # arrays are slow one by one
    groups: list[list[int]] = []
    last_word = last_token = 0
    for mention in order:
        last_word = max(last_word, words[mention][1])
        last_token = max(last_token, tokens[mention][1])
        if (
            groups
            and len(groups[-1]) < size
            and last_word - words[groups[-1][0]][0] <= limits.words
            and last_token - tokens[groups[-1][0]][0] <= limits.tokens
        ):
            groups[-1].append(mention)
        else:
            groups.append([mention])
            last_word, last_token = words[mention][1], tokens[mention][1]
    return groups


def widen(start: int, end: int, low: int, high: int, size: int) -> tuple[int, int]:
    """The range around another, of `size` if low to high has room; as much before as after it."""
    spare = size - (end - start)
    after = min(high - end, spare - min(start - low, spare // 2))
    before = min(start - low, spare - after)
    return start - before, end + after


@dataclass(frozen=True)
class Row:
    """A row of the store: a sentence, or a part of one; its arrays are int64 [mentions]."""

    number: int  # in the store
    sentence: int
    document: int
    tokens: np.ndarray  # int64 [tokens], without special tokens
    starts: np.ndarray  # in tokens
    ends: np.ndarray
    aliases: np.ndarray  # numbers in the table
    entities: np.ndarray  # int64 [mentions, most of one]: those that it means; -1 for no more
    is_gold: np.ndarray  # bool; false for weak labels
    positions: np.ndarray  # in the line
    slices: list[tuple[str, ...]]  # the line's own slices that each mention is in


class Mentions:
    """The mentions of some rows, one after the other, with the places of their rows; see `Row`."""

    def __init__(self, rows: Sequence[Row]) -> None:
        counts = [len(row.aliases) for row in rows]
        self.rows = np.repeat(np.arange(len(rows)), counts)
        self.sentences = np.repeat(np.array([row.sentence for row in rows], np.int64), counts)
        self.documents = np.repeat(np.array([row.document for row in rows], np.int64), counts)
        self.positions = np.concatenate([row.positions for row in rows])
        self.aliases = np.concatenate([row.aliases for row in rows])
        self.entities = pad([own[own >= 0] for row in rows for own in row.entities], -1)


class MentionTexts:
    """Makes the inputs of the encoder of mentions."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DisambiguationConfig) -> None:
        data = config.data_config
        self._tokenizer = tokenizer
        self._in_windows = data.mention_encoding == "window"
        self._is_mean = config.pooling == "mean"
        self._before, self._after = special_tokens(tokenizer)
        self._room = data.window_length - len(self._before) - len(self._after)
        self._markers = tuple(tokenizer.convert_tokens_to_ids([START, END]))

    def tensors(
        self, rows: Sequence[Row], masked: Sequence[np.ndarray] | None = None
    ) -> tuple[dict[str, torch.Tensor], int]:
        """The inputs for the mentions of some rows, and how many tokens they have.

        They are `input_ids`, `attention_mask` (int64 [texts, tokens]) and `mention_tokens` (int64
        [mentions, most tokens of one], places in the flattened texts). `masked` says which mentions
        are masked, bool [mentions] of each row; None: none.
        """
        texts: list[list[int]] = []
        places: list[tuple[int, range]] = []  # of each mention: its text, and the tokens there
        for number, row in enumerate(rows):
            is_masked = np.zeros(len(row.aliases), bool) if masked is None else masked[number]
            spans = [*zip(row.starts.tolist(), row.ends.tolist(), strict=True)]
            if not self._in_windows:
                shift = len(self._before)
                places += [(len(texts), range(start + shift, end + shift)) for start, end in spans]
                texts.append(self._text(row.tokens, compress(spans, is_masked)))
                continue
            for span, mask in zip(spans, is_masked.tolist(), strict=True):
                texts.append(self._text(row.tokens, [span] * mask, span))
                places.append((len(texts) - 1, range(len(texts[-1]) if self._is_mean else 1)))
        ids = pad(texts, self._tokenizer.pad_token_id)
        lengths = [len(text) for text in texts]
        found = pad([np.asarray(own) + text * ids.shape[1] for text, own in places], -1)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask_of(lengths)),
            "mention_tokens": torch.from_numpy(found),
        }, sum(lengths)

    def _text(
        self,
        tokens: np.ndarray,
        masked: Iterable[tuple[int, int]],
        around: tuple[int, int] | None = None,
    ) -> list[int]:
        """A sentence with its masked spans, or the window around one, with special tokens."""
        tokens = tokens.copy()
        for start, end in masked:
            tokens[start:end] = self._tokenizer.mask_token_id
        if around is not None:
            tokens = window(tokens, *around, self._markers, self._room)
        return [*self._before, *tokens.tolist(), *self._after]
