"""Text into token ids and the characters that each token covers.

`HfTokenizer` is the oracle: the ids are those of the Hugging Face tokenizer. For byte-level BPE
(GPT-2, Llama 3, Qwen, ...) the tokens of a text are its bytes cut into parts, so the characters
follow from the tokens' lengths in bytes by cumulative sums, and the tokenizer need not keep track
of them, which costs it as much as the encoding. Other tokenizers report their own offsets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from bsmeta.config.errors import ConfigurationError


class Tokens(NamedTuple):
    """The tokens of a text: ids, and the span of characters [start, end) of each (all int32[n]).

    A character that takes several tokens lies in the span of each of them.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class HfTokenizer:
    """Encodes batches of texts with a fast Hugging Face tokenizer, without special tokens added.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is no fast tokenizer (it has no "
                "tokenizer.json); expected one that the tokenizers library can run"
            )
        self._tokenizer = Tokenizer.from_str(backend.to_str())  # ours: its settings are changed
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._byte_lengths = byte_lengths(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text."""
        if self._byte_lengths is None:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
            return [_with_offsets(encoding) for encoding in encodings]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            tokens_of(text, np.array(encoding.ids, np.int32), self._byte_lengths)
            for text, encoding in zip(texts, encodings, strict=True)
        ]


def _with_offsets(encoding: Encoding) -> Tokens:
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return Tokens(np.array(encoding.ids, np.int32), offsets[:, 0], offsets[:, 1])


def tokens_of(text: str, ids: np.ndarray, lengths: np.ndarray) -> Tokens:
    """Characters of byte-level tokens.

    Args:
        text: What was encoded.
        ids: Its tokens (int32[n]).
        lengths: Length in bytes of each entry of the vocabulary.
    """
    ends = np.cumsum(lengths[ids], dtype=np.int32)
    starts = ends - lengths[ids]
    if not text.isascii() and len(ids):
        raw = np.frombuffer(text.encode(), np.uint8)
        character = np.cumsum((raw & 0xC0) != 0x80, dtype=np.int32) - 1  # of each byte
        starts, ends = character[starts], character[ends - 1] + 1
    return Tokens(ids, starts, ends)


def byte_lengths(tokenizer: Tokenizer) -> np.ndarray | None:
    """Length in bytes of each entry of a byte-level BPE vocabulary (int32); None for other kinds.

    A byte-level vocabulary writes each byte as one character, so lengths are those of the entries.
    """
    parts = json.loads(tokenizer.to_str())
    if parts["model"]["type"] != "BPE" or parts["normalizer"] is not None:
        return None
    before = parts["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    changes = {"Replace", "Prepend", "Metaspace"} & {step.get("type") for step in steps}
    if not byte_level or changes or any(step["add_prefix_space"] for step in byte_level):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token["content"]: token["id"] for token in parts["added_tokens"]}
    lengths = np.zeros(max([*vocabulary.values(), *added.values()]) + 1, np.int32)
    for entry, number in vocabulary.items():
        lengths[number] = len(entry)
    for entry, number in added.items():
        lengths[number] = len(entry.encode())
    return lengths
