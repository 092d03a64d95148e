"""Tokens of the two encoders: texts of entities, and windows around mentions.

The text of an entity is `title [ent_type] types [ent_kg] relations [ent_desc] description`, as in
Bootleg 1.1: the title without its parenthesis, and each part only if the entity has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.disambiguation import ENTITY_TEXT
from bsmeta.data.text.tokenizer import padded_tokenizer_of
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
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a", add_special_tokens=True)["input_ids"]
        start = next(n for n in range(len(whole)) if whole[n : n + len(bare)] == bare)
        self.before, self.after = whole[:start], whole[start + len(bare) :]
        self.count = len(whole) - len(bare)

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
    """

    def __init__(
        self,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        parts: Sequence[str],
        max_length: int,
    ) -> None:
        self.settings = [sorted(parts), max_length]
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
                f"{name} {table.title(other)}" for name, other in table.relations(entity)
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
