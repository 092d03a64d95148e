"""Finds the text that a tokenizer loses: the characters that its tokens do not give back.

Text is lost under unknown tokens, and where a normalizer or pre-tokenizer changes or drops it
(lower-casing, accents, Unicode forms, tabs that become spaces). The probability of such a token is
not that of its text, as it stands for other texts, too: evaluations leave it out.

The tokens of a text are decoded part by part and compared with the characters that they cover, so
that a loss is located within a token. What a decoder adds (the space before a first word, spaces
around punctuation) loses nothing of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerBase

from bsmeta.core.parsing import parse_json
from bsmeta.data.text.characters import coverage, utf8_lengths
from bsmeta.data.text.lossless import is_lossless, pre_tokenizers_of
from bsmeta.data.text.lost_share import LostShare
from bsmeta.data.text.tokens import NO_PARTS, TextTokenizer

BORDER = "\ue000"
"""A private-use character that is decoded on both sides of a token, to find the token's text."""

CACHED_PARTS = 200_000
"""Decoded tokens and comparisons that are remembered: most words recur."""

LARGEST_COMPARISON = 40_000
"""Largest product of the lengths of a part and its decoded text that are aligned.

The time of an alignment grows faster than this product, and text may be made to have very long
parts; of longer ones, everything counts as lost.
"""

EXAMPLE_CHARACTERS, EXAMPLE_TOKENS = 20, 3
"""Largest size of the example in a message."""


def _unknown_id(tokenizer: Tokenizer, model: dict[str, Any]) -> int | None:
    """The token that the model returns for what is not in its vocabulary."""
    if model["type"] == "Unigram":
        unknown: int | None = model["unk_id"]
        return unknown
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def _decode_of(tokenizer: Tokenizer, parts: dict[str, Any]) -> Callable[[list[str]], str]:
    """Joins tokens to a text, as the tokenizer's decoder does.

    Without a decoder, the one that belongs to the model or the pre-tokenizer.
    """
    if tokenizer.decoder is not None:
        decode: Callable[[list[str]], str] = tokenizer.decoder.decode
        return decode
    model = parts["model"]
    steps = {step["type"]: step for step in pre_tokenizers_of(parts["pre_tokenizer"])}
    if "ByteLevel" in steps:
        return decoders.ByteLevel().decode
    if "Metaspace" in steps:
        return decoders.Metaspace(steps["Metaspace"]["replacement"]).decode
    if model["type"] == "WordPiece":
        return decoders.WordPiece(model["continuing_subword_prefix"], cleanup=False).decode
    if model.get("end_of_word_suffix"):
        return decoders.BPEDecoder(model["end_of_word_suffix"]).decode
    return " ".join


class LostTextFinder:
    """Finds the characters of texts that the tokens of a tokenizer do not give back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_lossless = is_lossless(tokenizer)
        if self.is_lossless:
            return
        parts = parse_json(tokenizer.to_str())
        self._tokenizer = tokenizer
        self._unknown = _unknown_id(tokenizer, parts["model"])
        self._decode = _decode_of(tokenizer, parts)
        self._gap = self._decode([BORDER, BORDER]).strip(BORDER)  # WordPiece: between any two words
        self._decoded: dict[tuple[int, ...], str] = {}
        self._compared: dict[tuple[str, str], np.ndarray] = {}

    def find(
        self, text: str, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray | None:
        """The lost characters of a text.

        Args:
            ids: int32 [n], its tokens in order; others may be between them (metadata).
            starts: int32 [n], first character of each token in the text.
            ends: int32 [n], end of its characters; equal to the start if there are none.

        Returns:
            bool [len(text)]; None if nothing is lost.
        """
        if self.is_lossless or self._gives_back(text, ids):
            return None
        lost = np.zeros(len(text), np.bool_)
        end, carried = 0, ""
        for group, start, stop in _groups(ids, starts, ends):
            decoded = carried + self._decode_group(group)
            if self._unknown is not None and self._unknown in group:
                spaces = decoded[: len(decoded) - len(decoded.lstrip())]
                lost[end:start] = self._compare(text[end:start], spaces)
                lost[start:stop] = True
                end, carried = stop, ""
                continue
            part = text[end:stop]
            decoded, carried = _split_ending(decoded, part)
            if decoded.removeprefix("" if part[:1].isspace() else " ") != part:
                lost[end:stop] = self._compare(part, decoded)
            end = stop
        if end < len(text):
            lost[end:] = self._compare(text[end:], carried)
        return lost if lost.any() else None

    def has_unknown(self, ids: np.ndarray) -> np.ndarray:
        """Which tokens are the unknown one: bool [n]."""
        if self.is_lossless or self._unknown is None:
            return np.zeros(len(ids), np.bool_)
        return ids == self._unknown

    def _gives_back(self, text: str, ids: np.ndarray) -> bool:
        """Whether the decoder returns exactly the text; False if metadata is between its tokens."""
        if self.has_unknown(ids).any():
            return False
        decoded: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return decoded == text

    def _decode_group(self, ids: tuple[int, ...]) -> str:
        """The text of consecutive tokens in the middle of others."""
        decoded = self._decoded.get(ids)
        if decoded is None:
            if len(self._decoded) > CACHED_PARTS:
                self._decoded.clear()
            tokens = [self._tokenizer.id_to_token(number) or "" for number in ids]
            between = self._decode([BORDER, *tokens, BORDER])
            _, _, between = between.partition(BORDER)
            between, _, _ = between.rpartition(BORDER)
            decoded = self._decoded[ids] = between.removesuffix(self._gap)
        return decoded

    def _compare(self, part: str, decoded: str) -> np.ndarray:
        """Which characters of a part of the text are not in what was decoded: bool [len(part)]."""
        lost = self._compared.get((part, decoded))
        if lost is None:
            if len(self._compared) > CACHED_PARTS:
                self._compared.clear()
            lost = self._compared[part, decoded] = _missing(part, decoded)
        return lost


def _groups(
    ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yields the tokens that share characters, with their first character and their end.

    Several tokens share a character that they hold the bytes of, or that was normalized to several.
    """
    holds_text = ends > starts
    ids, starts, ends = ids[holds_text], starts[holds_text], ends[holds_text]
    if not len(ids):
        return
    reached = np.maximum.accumulate(ends)
    firsts = np.flatnonzero(np.append(True, starts[1:] >= reached[:-1]))
    lasts = np.append(firsts[1:], len(ids)) - 1
    numbers = ids.tolist()
    borders = zip(firsts.tolist(), lasts.tolist(), strict=True)
    spans = zip(starts[firsts].tolist(), reached[lasts].tolist(), strict=True)
    for (first, last), (start, end) in zip(borders, spans, strict=True):
        yield tuple(numbers[first : last + 1]), start, end


def _split_ending(decoded: str, part: str) -> tuple[str, str]:
    """Splits off spaces at the end that belong to the next token (of decoders that end words)."""
    if decoded[-1:].isspace() and not part[-1:].isspace():
        stripped = decoded.rstrip()
        return stripped, decoded[len(stripped) :]
    return decoded, ""


def _missing(part: str, decoded: str) -> np.ndarray:
    """Which characters of a part are not in what was decoded, by an alignment of the two."""
    missing = np.ones(len(part), np.bool_)
    if len(part) * len(decoded) > LARGEST_COMPARISON:
        return missing
    matcher = SequenceMatcher(None, part, decoded, autojunk=False)
    for start, _, size in matcher.get_matching_blocks():
        missing[start : start + size] = False
    if len(part) != len(decoded):
        return missing
    # The matcher is greedy: character by character, there may be fewer.
    differing = np.array([*map(str.__ne__, part, decoded)], np.bool_)
    return differing if differing.sum() < missing.sum() else missing


def measure_lost_text(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, takes_written_tokens: bool = False
) -> LostShare:
    """Measures the text that a tokenizer loses.

    Args:
        takes_written_tokens: See `TextTokenizer`.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one.
    """
    whole = LostShare.none_of(texts)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None and is_lossless(fast):
        return whole

    encoder = TextTokenizer(tokenizer, takes_written_tokens=takes_written_tokens)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    lost_bytes = unknown_bytes = 0
    example = example_tokens = ""
    for text, tokens in zip(texts, encoder.encode(texts, lambda _: NO_PARTS), strict=True):
        lengths = utf8_lengths(text)
        starts, ends = tokens.characters()
        lost = finder.find(text, tokens.ids, starts, ends)
        if lost is None:
            continue

        lost_bytes += int(lengths[lost].sum())
        unknown = finder.has_unknown(tokens.ids)
        is_unknown = coverage(starts[unknown], ends[unknown], len(text)) > 0
        unknown_bytes += int(lengths[is_unknown].sum())
        if not example:
            start, end = _first_run(lost)
            example = text[start:end]
            touching = tokens.ids[(starts < end) & (ends > start)]
            names = [*map(tokenizer.backend_tokenizer.id_to_token, touching.tolist())]
            more = " …" if len(names) > EXAMPLE_TOKENS else ""
            example_tokens = " ".join(names[:EXAMPLE_TOKENS]) + more
    return LostShare(len(texts), whole.bytes, lost_bytes, unknown_bytes, example, example_tokens)


def lossy_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[bool]:
    """Whether a tokenizer loses any character of each text.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one.
    """
    encoder = TextTokenizer(tokenizer)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    if finder.is_lossless:
        return [False] * len(texts)
    encoded = encoder.encode(texts, lambda _: NO_PARTS)
    return [
        finder.find(text, tokens.ids, *tokens.characters()) is not None
        for text, tokens in zip(texts, encoded, strict=True)
    ]


def _first_run(lost: np.ndarray) -> tuple[int, int]:
    """The beginning and the end of the first lost part, cut to the length of an example."""
    start = int(np.argmax(lost))
    kept = np.flatnonzero(~lost[start : start + EXAMPLE_CHARACTERS])
    return start, start + (int(kept[0]) if len(kept) else EXAMPLE_CHARACTERS)
