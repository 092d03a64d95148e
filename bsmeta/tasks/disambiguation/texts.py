"""The inputs of the two encoders: texts of entities, and sentences or windows with mentions.

The text of an entity is `title [ent_type] types [ent_kg] relations [ent_desc] description`, as in
Bootleg 1.1: the title without its parenthesis, and each part only if the entity has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.core.rounding import divide_up
from bsmeta.data.text.tokenizer import find_special_tokens, load_padded_tokenizer
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT, DisambiguationConfig
from bsmeta.tasks.disambiguation.entities import EntityTable

MENTION_START = "[ent_start]"
MENTION_END = "[ent_end]"
PART_MARKERS = {"types": "[ent_type]", "relations": "[ent_kg]", "description": "[ent_desc]"}
SPECIAL_TOKENS = (MENTION_START, MENTION_END, *PART_MARKERS.values())
_PARENTHESIS = re.compile(r"(?<!\s)\s*+\([^()]*\)\s*$")
_MAX_CACHED_TEXTS = 1 << 17


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or Hub name, and adds the special tokens of the task.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no token to pad with.
    """
    tokenizer = load_padded_tokenizer(name)
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.add_tokens([*SPECIAL_TOKENS], special_tokens=True)
    return tokenizer


class EntityTexts:
    """Renders and tokenizes the texts of entities.

    Args:
        parts: The parts of a text, some of `ENTITY_TEXT`.
        max_length: Maximum tokens of a text, including special tokens.

    Attributes:
        settings: The settings that determine the tokens, except the table and the tokenizer.
        table: The entities.
        max_length: See above.
        tokenizer: The tokenizer of the texts.
    """

    def __init__(
        self,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        parts: Sequence[str],
        max_length: int,
    ) -> None:
        self.settings = [sorted(parts), max_length]
        self.table = table
        self.max_length = max_length
        self.tokenizer = tokenizer

        self._parts = [part for part in ENTITY_TEXT if part in parts]
        self._prefix, self._suffix = find_special_tokens(tokenizer)
        self._max_text_tokens = max_length - len(self._prefix) - len(self._suffix)
        self._markers = {
            part: tokenizer.convert_tokens_to_ids(marker) for part, marker in PART_MARKERS.items()
        }
        self._cached_encode = lru_cache(_MAX_CACHED_TEXTS)(self._encode)

    def text(self, entity: int) -> str:
        """Returns the text of an entity as a string that determines its tokens."""
        parts = self._render_parts(entity)
        return "\n".join(f"{part}: {text}" for part, text in parts.items())

    def tokens(self, entity: int, is_masked: bool = False) -> list[int]:
        """Returns the tokens of an entity's text, with special tokens.

        Args:
            is_masked: Whether each token of the title is replaced by the mask token.
        """
        title, other_parts = self._cached_encode(entity)
        if is_masked:
            title = [self.tokenizer.mask_token_id] * len(title)

        text = [*title, *other_parts][: self._max_text_tokens]
        return [*self._prefix, *text, *self._suffix]

    def build_tensors(
        self, entities: np.ndarray, is_masked: np.ndarray
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Builds `entity_ids` and `entity_mask`, int64 [entities, tokens].

        Args:
            is_masked: bool [entities], whether the title is masked.

        Returns:
            The tensors, and the number of tokens without padding.
        """
        tokens = [
            self.tokens(entity, has_masked_title)
            for entity, has_masked_title in zip(entities.tolist(), is_masked.tolist(), strict=True)
        ]
        lengths = [len(text) for text in tokens]

        tensors = {
            "entity_ids": torch.from_numpy(pad_sequences(tokens, self.tokenizer.pad_token_id)),
            "entity_mask": torch.from_numpy(build_attention_mask(lengths)),
        }
        return tensors, sum(lengths)

    def _encode(self, entity: int) -> tuple[list[int], list[int]]:
        """Tokenizes the title, and all other parts with their markers."""
        texts = self._render_parts(entity)
        if not texts:
            return [], []

        encoded = self.tokenizer(
            [*texts.values()], add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        tokens_by_part = dict(zip(texts, encoded, strict=True))

        title = tokens_by_part.pop("title", [])
        other_parts = []
        for part, tokens in tokens_by_part.items():
            other_parts += [self._markers[part], *tokens]
        return title, other_parts

    def _render_parts(self, entity: int) -> dict[str, str]:
        """Renders the nonempty parts of an entity's text, by name."""
        texts = {part: self._render_part(part, entity) for part in self._parts}
        return {part: text for part, text in texts.items() if text}

    def _render_part(self, part: str, entity: int) -> str:
        table = self.table
        if part == "title":
            return _PARENTHESIS.sub("", table.titles[entity])
        if part == "types":
            return ", ".join(table.list_types(entity))
        if part == "relations":
            relations = table.list_relations(entity)
            return ", ".join(f"{name} {table.titles[other]}".strip() for name, other in relations)
        return table.descriptions[entity]


def cut_window(
    tokens: np.ndarray, start: int, end: int, markers: tuple[int, int], length: int
) -> np.ndarray:
    """Cuts a window around a mention, and inserts markers before and after the mention.

    A mention of more than half the window is truncated. The context is as long as sentence and
    window allow, and balanced where possible.

    Args:
        tokens: int64 [tokens] of the sentence.
        start, end: The range of the mention.
        markers: The tokens to insert.
        length: Maximum tokens of the window, including markers.
    """
    end = min(end, start + max(1, length // 2 - 2))
    room = length - (end - start) - 2

    before = min(start, room - min(room // 2, len(tokens) - end))
    after = min(len(tokens) - end, room - before)

    left_context = tokens[start - before : start]
    right_context = tokens[end : end + after]
    return np.concatenate(
        [left_context, markers[:1], tokens[start:end], markers[1:], right_context]
    )


def pad_sequences(sequences: Sequence[Sequence[int] | np.ndarray], value: int) -> np.ndarray:
    """Pads sequences at the end, int64 [sequences, max_length]."""
    max_length = max(map(len, sequences), default=0)
    padded = np.full((len(sequences), max_length), value, np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def build_attention_mask(lengths: Sequence[int]) -> np.ndarray:
    """Returns the attention mask of padded sequences, int64 [sequences, max_length]."""
    positions = np.arange(max(lengths, default=0))
    return (positions[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)


class Limits(NamedTuple):
    """The maximum size of a row."""

    mentions: int
    words: int
    tokens: int  # without special tokens


class Chunk(NamedTuple):
    """A part of a sentence that becomes a row."""

    start: int  # range of tokens
    end: int
    mentions: list[int]  # indices of mentions, in text order


def find_overlaps(spans: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Finds the range of parts (tokens or words) that each span overlaps.

    Args:
        spans: int [spans, 2], in characters.
        parts: int [parts, 2], in characters; neither starts nor ends decrease.

    Returns:
        int [spans, 2]: start and end of the range; end <= start if no part overlaps.
    """
    first = np.searchsorted(parts[:, 1], spans[:, 0], side="right")
    end = np.searchsorted(parts[:, 0], spans[:, 1], side="left")
    return np.stack([first, end], axis=1)


def divide_sentence(
    mentions: np.ndarray, words: np.ndarray, tokens: np.ndarray, limits: Limits
) -> tuple[list[Chunk], int]:
    """Divides a sentence into rows within the limits, with each mention in exactly one row.

    A short sentence with too many mentions becomes several rows of its whole text, each with some
    of the mentions. A row of a long sentence has the words around its mentions.

    Args:
        mentions, words, tokens: int [n, 2], start and end in characters.

    Returns:
        The rows, and the number of mentions that fit no row: those longer than a row, and those
        without a token.
    """
    in_words = find_overlaps(mentions, words)
    in_tokens = find_overlaps(mentions, tokens)

    lengths = in_tokens[:, 1] - in_tokens[:, 0]
    fits = (lengths > 0) & (lengths <= limits.tokens)
    fits &= in_words[:, 1] - in_words[:, 0] <= limits.words
    text_order = np.lexsort((mentions[:, 1], mentions[:, 0]))
    fitting = [int(mention) for mention in text_order if fits[mention]]

    chunks = []
    for group in _group_mentions(fitting, in_words, in_tokens, limits):
        # Widen to the maximum words of a row, then to the maximum tokens within these words.
        first_word = int(in_words[group, 0].min())
        end_word = int(in_words[group, 1].max())
        first_word, end_word = widen_range(first_word, end_word, 0, len(words), limits.words)
        characters = np.array([[words[first_word, 0], words[end_word - 1, 1]]])
        low, high = find_overlaps(characters, tokens)[0].tolist()

        start = int(in_tokens[group, 0].min())
        end = int(in_tokens[group, 1].max())
        start, end = widen_range(start, end, low, high, limits.tokens)
        chunks.append(Chunk(start, end, group))

    return chunks, len(mentions) - len(fitting)


def _group_mentions(
    mentions: Sequence[int], in_words: np.ndarray, in_tokens: np.ndarray, limits: Limits
) -> list[list[int]]:
    """Groups consecutive mentions into groups of similar size that each fit into a row."""
    if not mentions:
        return []

    min_groups = divide_up(len(mentions), limits.mentions)
    group_size = divide_up(len(mentions), min_groups)

    # As lists, because reading single values of arrays is slow.
    word_ranges = in_words.tolist()
    token_ranges = in_tokens.tolist()

    groups: list[list[int]] = []
    group_first_word = 0
    group_first_token = 0
    group_end_word = 0
    group_end_token = 0
    for mention in mentions:
        first_word, end_word = word_ranges[mention]
        first_token, end_token = token_ranges[mention]
        group_end_word = max(group_end_word, end_word)
        group_end_token = max(group_end_token, end_token)
        if (
            groups
            and len(groups[-1]) < group_size
            and group_end_word - group_first_word <= limits.words
            and group_end_token - group_first_token <= limits.tokens
        ):
            groups[-1].append(mention)
        else:
            groups.append([mention])
            group_first_word = first_word
            group_first_token = first_token
            group_end_word = end_word
            group_end_token = end_token
    return groups


def widen_range(start: int, end: int, low: int, high: int, size: int) -> tuple[int, int]:
    """Widens a range to `size` within `low` to `high`, equally on both sides if possible."""
    spare = size - (end - start)
    after = min(high - end, spare - min(start - low, spare // 2))
    before = min(start - low, spare - after)
    return start - before, end + after


@dataclass(frozen=True)
class Row:
    """A row of the store: a sentence or a part of one; arrays are int64 [mentions] unless noted."""

    number: int  # in the store
    sentence: int
    document: int
    tokens: np.ndarray  # int64 [tokens], without special tokens
    starts: np.ndarray  # in tokens
    ends: np.ndarray
    aliases: np.ndarray  # numbers in the table
    entities: np.ndarray  # int64 [mentions, meanings]; -1 pads
    is_gold: np.ndarray  # bool; False for weak labels
    positions: np.ndarray  # in the line
    slices: list[tuple[str, ...]]  # of each mention
    tags: np.ndarray | None = None  # uint8 [tokens], in a store with tags; see `tagging`


class Mentions:
    """The concatenated mentions of rows; `rows` has the index of the row of each. See `Row`."""

    def __init__(self, rows: Sequence[Row]) -> None:
        counts = [len(row.aliases) for row in rows]
        self.rows = np.repeat(np.arange(len(rows)), counts)
        self.sentences = np.repeat(np.array([row.sentence for row in rows], np.int64), counts)
        self.documents = np.repeat(np.array([row.document for row in rows], np.int64), counts)

        self.positions = np.concatenate([row.positions for row in rows])
        self.aliases = np.concatenate([row.aliases for row in rows])

        meanings: list[np.ndarray] = []
        for row in rows:
            meanings += [entities[entities >= 0] for entities in row.entities]
        self.entities = pad_sequences(meanings, -1)


class MentionTexts:
    """Builds the inputs of the mention encoder."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DisambiguationConfig) -> None:
        data = config.data_config
        self._tokenizer = tokenizer
        self._in_windows = data.mention_encoding == "window"
        self._is_mean = config.pooling == "mean"
        self._prefix, self._suffix = find_special_tokens(tokenizer)
        self._max_window_tokens = data.window_length - len(self._prefix) - len(self._suffix)
        self._markers = tuple(tokenizer.convert_tokens_to_ids([MENTION_START, MENTION_END]))

    @property
    def first_token(self) -> int:
        """Index of a text's first token, after special tokens."""
        return len(self._prefix)

    def build_tensors(
        self, rows: Sequence[Row], masked: Sequence[np.ndarray] | None = None
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Builds the inputs for the mentions of rows.

        Args:
            masked: For each row, whether each mention is masked, bool [mentions]; None: no mention
                is.

        Returns:
            `input_ids` and `attention_mask`, int64 [texts, tokens], and `mention_tokens`, int64
            [mentions, tokens], indices in the flattened texts; and the number of tokens without
            padding.
        """
        if masked is None:
            masked = [np.zeros(len(row.aliases), bool) for row in rows]

        texts: list[list[int]] = []
        positions: list[tuple[int, range]] = []  # of each mention: index of its text, its tokens
        for row, is_masked in zip(rows, masked, strict=True):
            if self._in_windows:
                for window in self._build_windows(row, is_masked):
                    positions.append((len(texts), range(len(window) if self._is_mean else 1)))
                    texts.append(window)
            else:
                shift = len(self._prefix)
                for start, end in _list_spans(row):
                    positions.append((len(texts), range(start + shift, end + shift)))
                texts.append(self._build_text(row.tokens, compress(_list_spans(row), is_masked)))

        ids = pad_sequences(texts, self._tokenizer.pad_token_id)
        lengths = [len(text) for text in texts]
        mention_tokens = [np.asarray(tokens) + text * ids.shape[1] for text, tokens in positions]

        tensors = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(build_attention_mask(lengths)),
            "mention_tokens": torch.from_numpy(pad_sequences(mention_tokens, -1)),
        }
        return tensors, sum(lengths)

    def _build_windows(self, row: Row, is_masked: np.ndarray) -> Iterator[list[int]]:
        """Yields the window of each mention of a row; a masked one is masked only in its own."""
        for span, has_masked_text in zip(_list_spans(row), is_masked.tolist(), strict=True):
            masked_spans = [span] if has_masked_text else []
            yield self._build_text(row.tokens, masked_spans, span)

    def _build_text(
        self,
        tokens: np.ndarray,
        masked_spans: Iterable[tuple[int, int]],
        window_span: tuple[int, int] | None = None,
    ) -> list[int]:
        """Masks spans of a sentence, cuts the window around a span, and adds special tokens."""
        tokens = tokens.copy()
        for start, end in masked_spans:
            tokens[start:end] = self._tokenizer.mask_token_id

        if window_span is not None:
            tokens = cut_window(tokens, *window_span, self._markers, self._max_window_tokens)
        return [*self._prefix, *tokens.tolist(), *self._suffix]


def _list_spans(row: Row) -> list[tuple[int, int]]:
    """Lists the mentions of a row as ranges of tokens."""
    return [*zip(row.starts.tolist(), row.ends.tolist(), strict=True)]
