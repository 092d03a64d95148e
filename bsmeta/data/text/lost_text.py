"""Finds the text that a tokenizer loses: the characters that its tokens do not give back.

Text is lost under unknown tokens, and where a normalizer or pre-tokenizer changes or drops it
(lower-casing, accents, Unicode forms, tabs that become spaces). The probability of such a token is
not the probability of its text, as the token stands for other texts, too: evaluations leave it out.

The tokens of a text are decoded part by part and compared with the characters that they cover, so
that a loss is located within a token. Characters that a decoder adds (the space before a first
word, spaces around punctuation) are no loss of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.characters import count_coverage, measure_utf8_lengths
from bsmeta.data.text.lossless import is_lossless
from bsmeta.data.text.lost_share import LostShare
from bsmeta.data.text.tokenizer_parts import Part, list_pre_tokenizers, read_parts
from bsmeta.data.text.tokens import NO_PARTS, TextTokenizer

BORDER = "\ue000"
"""A private-use character that is decoded on both sides of a token, to find the token's text."""

MAX_CACHED_PARTS = 200_000
"""Largest number of cached decoded tokens, and of cached comparisons: most words recur."""

MAX_COMPARISON = 40_000
"""Largest product of the lengths of a part and its decoded text for aligning them.

The time of an alignment grows faster than this product, and a text may be crafted to have very long
parts; longer parts count as lost.
"""

EXAMPLE_CHARACTERS = 20
"""Largest number of characters in the example of a message."""

EXAMPLE_TOKENS = 3
"""Largest number of tokens in the example of a message."""


def _find_unknown_token(tokenizer: Tokenizer, model: dict[str, Any]) -> int | None:
    """Returns the token with which the model replaces text outside its vocabulary."""
    if model["type"] == "Unigram":
        unknown: int | None = model["unk_id"]
        return unknown
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def _make_decoder(tokenizer: Tokenizer, parts: Part) -> Callable[[list[str]], str]:
    """Returns a function that joins tokens to a text as the tokenizer's decoder does.

    Without a decoder, it is the usual one for the model or the pre-tokenizer.
    """
    if tokenizer.decoder is not None:
        decode: Callable[[list[str]], str] = tokenizer.decoder.decode
        return decode

    model = parts["model"]
    steps = {step["type"]: step for step in list_pre_tokenizers(parts["pre_tokenizer"])}
    if "ByteLevel" in steps:
        return decoders.ByteLevel().decode
    if "Metaspace" in steps:
        return decoders.Metaspace(steps["Metaspace"]["replacement"]).decode
    if model["type"] == "WordPiece":
        return decoders.WordPiece(model["continuing_subword_prefix"], cleanup=False).decode
    if model.get("end_of_word_suffix"):
        return decoders.BPEDecoder(model["end_of_word_suffix"]).decode
    return " ".join


class TokenGroup(NamedTuple):
    """Consecutive tokens that share characters.

    Several tokens share a character if each holds some of its bytes, or if it was normalized to
    several characters.

    Attributes:
        ids: The tokens.
        start: Their first character in the text.
        stop: The end of their last character.
    """

    ids: tuple[int, ...]
    start: int
    stop: int


class LostTextFinder:
    """Finds the characters of texts that the tokens of a tokenizer do not give back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_lossless = is_lossless(tokenizer)
        if self.is_lossless:
            return

        parts = read_parts(tokenizer)
        self._tokenizer = tokenizer
        self._unknown = _find_unknown_token(tokenizer, parts["model"])
        self._decode = _make_decoder(tokenizer, parts)
        self._gap = self._decode([BORDER, BORDER]).strip(BORDER)  # WordPiece: between any two words
        self._decoded: dict[tuple[int, ...], str] = {}
        self._compared: dict[tuple[str, str], np.ndarray] = {}

    def find(
        self, text: str, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray | None:
        """Finds the lost characters of a text.

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
        end = 0  # of the characters that have been compared
        carried = ""  # decoded spaces that belong to the next group
        for group in _group_tokens(ids, starts, ends):
            decoded = carried + self._decode_group(group.ids)
            if self._unknown is not None and self._unknown in group.ids:
                spaces = decoded[: len(decoded) - len(decoded.lstrip())]
                lost[end : group.start] = self._compare(text[end : group.start], spaces)
                lost[group.start : group.stop] = True
                carried = ""
            else:
                part = text[end : group.stop]
                decoded, carried = _split_ending(decoded, part)
                if decoded.removeprefix("" if part[:1].isspace() else " ") != part:
                    lost[end : group.stop] = self._compare(part, decoded)
            end = group.stop

        if end < len(text):
            lost[end:] = self._compare(text[end:], carried)
        return lost if lost.any() else None

    def has_unknown(self, ids: np.ndarray) -> np.ndarray:
        """Finds the unknown tokens: bool [n]."""
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
        """Decodes consecutive tokens as in the middle of others."""
        decoded = self._decoded.get(ids)
        if decoded is not None:
            return decoded

        tokens = [self._tokenizer.id_to_token(number) or "" for number in ids]
        bordered = self._decode([BORDER, *tokens, BORDER])
        _, _, after_border = bordered.partition(BORDER)
        between, _, _ = after_border.rpartition(BORDER)
        decoded = between.removesuffix(self._gap)

        if len(self._decoded) > MAX_CACHED_PARTS:
            self._decoded.clear()
        self._decoded[ids] = decoded
        return decoded

    def _compare(self, part: str, decoded: str) -> np.ndarray:
        """Finds the characters of a part of the text that were not decoded: bool [len(part)]."""
        lost = self._compared.get((part, decoded))
        if lost is not None:
            return lost

        lost = _find_missing(part, decoded)
        if len(self._compared) > MAX_CACHED_PARTS:
            self._compared.clear()
        self._compared[part, decoded] = lost
        return lost


def _group_tokens(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Iterator[TokenGroup]:
    """Yields groups of the tokens that cover characters, in order."""
    holds_text = ends > starts
    ids = ids[holds_text]
    starts = starts[holds_text]
    ends = ends[holds_text]
    if not len(ids):
        return

    # A group begins where a token begins after the end of all tokens before it.
    ends_so_far = np.maximum.accumulate(ends)
    firsts = np.flatnonzero(np.append(True, starts[1:] >= ends_so_far[:-1]))
    stops = np.append(firsts[1:], len(ids))

    id_list = ids.tolist()
    token_ranges = zip(firsts.tolist(), stops.tolist(), strict=True)
    spans = zip(starts[firsts].tolist(), ends_so_far[stops - 1].tolist(), strict=True)
    for (first, stop), (start, end) in zip(token_ranges, spans, strict=True):
        yield TokenGroup(tuple(id_list[first:stop]), start, end)


def _split_ending(decoded: str, part: str) -> tuple[str, str]:
    """Splits off spaces at the end that belong to the next token (some decoders end words so)."""
    if decoded[-1:].isspace() and not part[-1:].isspace():
        stripped = decoded.rstrip()
        return stripped, decoded[len(stripped) :]
    return decoded, ""


def _find_missing(part: str, decoded: str) -> np.ndarray:
    """Finds the characters of a part that were not decoded, by aligning both."""
    missing = np.ones(len(part), np.bool_)
    if len(part) * len(decoded) > MAX_COMPARISON:
        return missing

    matcher = SequenceMatcher(None, part, decoded, autojunk=False)
    for start, _, size in matcher.get_matching_blocks():
        missing[start : start + size] = False
    if len(part) != len(decoded):
        return missing

    # The matcher is greedy: comparing character by character may find fewer.
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
    nothing_lost = LostShare.none_of(texts)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None and is_lossless(fast):
        return nothing_lost

    encoder = TextTokenizer(tokenizer, takes_written_tokens=takes_written_tokens)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    lost_bytes = 0
    unknown_bytes = 0
    example = ""
    example_tokens = ""
    for text, tokens in zip(texts, encoder.encode(texts, lambda _: NO_PARTS), strict=True):
        starts, ends = tokens.characters()
        lost = finder.find(text, tokens.ids, starts, ends)
        if lost is None:
            continue

        lengths = measure_utf8_lengths(text)
        lost_bytes += int(lengths[lost].sum())
        unknown = finder.has_unknown(tokens.ids)
        is_unknown = count_coverage(starts[unknown], ends[unknown], len(text)) > 0
        unknown_bytes += int(lengths[is_unknown].sum())

        if not example:
            start, end = _find_first_run(lost)
            example = text[start:end]
            touching = tokens.ids[(starts < end) & (ends > start)]
            names = [*map(tokenizer.backend_tokenizer.id_to_token, touching.tolist())]
            ellipsis = " …" if len(names) > EXAMPLE_TOKENS else ""
            example_tokens = " ".join(names[:EXAMPLE_TOKENS]) + ellipsis

    return LostShare(
        len(texts), nothing_lost.bytes, lost_bytes, unknown_bytes, example, example_tokens
    )


def find_lossy_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[bool]:
    """Tells for each text whether a tokenizer loses any of its characters.

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


def _find_first_run(lost: np.ndarray) -> tuple[int, int]:
    """Finds the start and end of the first lost part, cut to the length of an example."""
    start = int(np.argmax(lost))
    intact = np.flatnonzero(~lost[start : start + EXAMPLE_CHARACTERS])
    length = int(intact[0]) if len(intact) else EXAMPLE_CHARACTERS
    return start, start + length
