"""Finds the characters that are lost when a text is tokenized and decoded again.

Text is lost under unknown tokens, and where a normalizer or pre-tokenizer changes or drops it
(lower-casing, accents, Unicode forms, tabs that become spaces). Such a token also stands for other
texts, so its probability is not the probability of its text: evaluations leave the text out.

The tokens of a text are decoded part by part and compared with the characters that they cover, so
that a loss is located within a token. Characters that a decoder adds (the space before the first
word, spaces around punctuation) do not count as lost text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.characters import count_coverage, measure_utf8_lengths
from bsmeta.data.text.lossless import is_lossless
from bsmeta.data.text.lost_share import LostShare
from bsmeta.data.text.tokenizer_parts import Part, list_pre_tokenizers, read_parts
from bsmeta.data.text.tokens import NO_PARTS, TextTokenizer

BORDER = "\ue000"
"""A private-use character that is decoded before and after tokens, to delimit their text."""

MAX_CACHED_PARTS = 200_000
"""Maximum number of decoded token groups in the cache, and of comparisons; most words recur."""

MAX_ALIGNMENT_SIZE = 40_000
"""Maximum product of the lengths of a part and its decoded text for aligning them.

The time of an alignment grows faster than this product, and a text may be crafted to have very long
parts. Longer parts count as lost.
"""

MAX_EXAMPLE_CHARS = 20
"""Maximum number of characters of an example in a message."""

MAX_EXAMPLE_TOKENS = 3
"""Maximum number of tokens of an example in a message."""


def _find_unknown_token(tokenizer: Tokenizer, model: Part) -> int | None:
    """Returns the id of the token for text outside the vocabulary; None if there is none."""
    if model["type"] == "Unigram":
        unknown: int | None = model["unk_id"]
        return unknown
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def _make_decoder(tokenizer: Tokenizer, parts: Part) -> Callable[[list[str]], str]:
    """Returns the function with which a tokenizer joins tokens to a text.

    For a tokenizer without a decoder, this is the usual decoder for its model or pre-tokenizer.
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

    Several tokens share a character if each represents some of its bytes, or if the character was
    normalized to several characters.

    Attributes:
        ids: The token ids.
        start: Index of their first character in the text.
        stop: End of their last character in the text, exclusive.
    """

    ids: tuple[int, ...]
    start: int
    stop: int


class LostTextFinder:
    """Finds the characters that are lost when a text is tokenized and decoded again.

    Attributes:
        is_lossless: Whether no text loses characters.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_lossless = is_lossless(tokenizer)
        if self.is_lossless:
            return

        parts = read_parts(tokenizer)
        self._tokenizer = tokenizer
        self._unknown_id = _find_unknown_token(tokenizer, parts["model"])
        self._decode = _make_decoder(tokenizer, parts)
        # The text that the decoder inserts between any two words, such as the space of WordPiece.
        self._word_gap = self._decode([BORDER, BORDER]).strip(BORDER)
        self._decoded_groups: dict[tuple[int, ...], str] = {}
        self._comparisons: dict[tuple[str, str], np.ndarray] = {}

    def find(
        self, text: str, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray | None:
        """Finds the lost characters of a text.

        Args:
            ids: int32 [n], the tokens of the text in order, possibly with metadata tokens between
                them.
            starts: int32 [n], first character of each token in the text.
            ends: int32 [n], end of each token's characters; its start if it covers none.

        Returns:
            Whether each character is lost, bool [len(text)]; None if none is.
        """
        if self.is_lossless or self._is_preserved(text, ids):
            return None

        lost = np.zeros(len(text), np.bool_)
        compared_end = 0  # end of the characters that have been compared
        carried_spaces = ""  # decoded, and compared with the next group
        for group in _group_tokens(ids, starts, ends):
            decoded = carried_spaces + self._decode_group(group.ids)
            if self._unknown_id is not None and self._unknown_id in group.ids:
                spaces = decoded[: len(decoded) - len(decoded.lstrip())]
                between = text[compared_end : group.start]
                lost[compared_end : group.start] = self._compare(between, spaces)
                lost[group.start : group.stop] = True
                carried_spaces = ""
            else:
                part = text[compared_end : group.stop]
                decoded, carried_spaces = _split_ending(decoded, part)
                added_space = "" if part[:1].isspace() else " "
                if decoded.removeprefix(added_space) != part:
                    lost[compared_end : group.stop] = self._compare(part, decoded)
            compared_end = group.stop

        if compared_end < len(text):
            lost[compared_end:] = self._compare(text[compared_end:], carried_spaces)
        return lost if lost.any() else None

    def find_unknown(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether each token is the unknown token: bool [n]."""
        if self.is_lossless or self._unknown_id is None:
            return np.zeros(len(ids), np.bool_)
        return ids == self._unknown_id

    def _is_preserved(self, text: str, ids: np.ndarray) -> bool:
        """Returns whether decoding the tokens restores the text; False with metadata tokens."""
        if self.find_unknown(ids).any():
            return False
        decoded: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return decoded == text

    def _decode_group(self, ids: tuple[int, ...]) -> str:
        """Returns the text of consecutive tokens, decoded between other tokens; cached."""
        decoded = self._decoded_groups.get(ids)
        if decoded is not None:
            return decoded

        tokens = [self._tokenizer.id_to_token(token_id) or "" for token_id in ids]
        bordered = self._decode([BORDER, *tokens, BORDER])
        _, _, after_border = bordered.partition(BORDER)
        between, _, _ = after_border.rpartition(BORDER)
        decoded = between.removesuffix(self._word_gap)

        if len(self._decoded_groups) > MAX_CACHED_PARTS:
            self._decoded_groups.clear()
        self._decoded_groups[ids] = decoded
        return decoded

    def _compare(self, part: str, decoded: str) -> np.ndarray:
        """Returns whether each character of a part is missing from its decoded text; cached."""
        lost = self._comparisons.get((part, decoded))
        if lost is not None:
            return lost

        lost = _find_missing(part, decoded)
        if len(self._comparisons) > MAX_CACHED_PARTS:
            self._comparisons.clear()
        self._comparisons[part, decoded] = lost
        return lost


def _group_tokens(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Iterator[TokenGroup]:
    """Yields the groups of tokens that share characters, in order; skips tokens without text."""
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
    """Splits off the spaces that some decoders append to a word; they belong to the next token.

    Args:
        part: The text that the decoded tokens cover.

    Returns:
        The decoded text without them, and the spaces.
    """
    if decoded[-1:].isspace() and not part[-1:].isspace():
        stripped = decoded.rstrip()
        return stripped, decoded[len(stripped) :]
    return decoded, ""


def _find_missing(part: str, decoded: str) -> np.ndarray:
    """Returns whether each character of a part is missing from its decoded text: bool [len(part)].

    The two texts are aligned. If they are too long, all characters count as missing.
    """
    missing = np.ones(len(part), np.bool_)
    if len(part) * len(decoded) > MAX_ALIGNMENT_SIZE:
        return missing

    matcher = SequenceMatcher(None, part, decoded, autojunk=False)
    for start, _, size in matcher.get_matching_blocks():
        missing[start : start + size] = False
    if len(part) != len(decoded):
        return missing

    # The matcher is greedy, so a comparison position by position may find fewer differences.
    differs = [
        character != decoded_character
        for character, decoded_character in zip(part, decoded, strict=True)
    ]
    differing = np.array(differs, np.bool_)
    return differing if differing.sum() < missing.sum() else missing


def measure_lost_text(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, takes_written_tokens: bool = False
) -> LostShare:
    """Measures how much of the texts a tokenizer loses.

    Args:
        takes_written_tokens: See `TextTokenizer`.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one.
    """
    nothing_lost = LostShare.without_loss(texts)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None and is_lossless(fast):
        return nothing_lost

    encoder = TextTokenizer(tokenizer, takes_written_tokens=takes_written_tokens)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    num_lost = 0
    num_unknown = 0
    example = ""
    example_tokens = ""
    for text, tokens in zip(texts, encoder.encode(texts, lambda _: NO_PARTS), strict=True):
        starts, ends = tokens.locate()
        lost = finder.find(text, tokens.ids, starts, ends)
        if lost is None:
            continue

        lengths = measure_utf8_lengths(text)
        num_lost += int(lengths[lost].sum())
        is_unknown_token = finder.find_unknown(tokens.ids)
        coverage = count_coverage(starts[is_unknown_token], ends[is_unknown_token], len(text))
        num_unknown += int(lengths[coverage > 0].sum())

        if not example:
            start, end = _find_first_run(lost)
            example = text[start:end]
            example_ids = tokens.ids[(starts < end) & (ends > start)]
            example_tokens = _format_tokens(tokenizer.backend_tokenizer, example_ids)

    return LostShare(
        len(texts), nothing_lost.num_bytes, num_lost, num_unknown, example, example_tokens
    )


def _format_tokens(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """Joins the first `MAX_EXAMPLE_TOKENS` tokens with spaces; adds an ellipsis for the others."""
    names = [tokenizer.id_to_token(token_id) or "" for token_id in ids.tolist()]
    ellipsis = " …" if len(names) > MAX_EXAMPLE_TOKENS else ""
    return " ".join(names[:MAX_EXAMPLE_TOKENS]) + ellipsis


def find_lossy_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[bool]:
    """Returns whether a tokenizer loses any character of each text.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one.
    """
    encoder = TextTokenizer(tokenizer)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    if finder.is_lossless:
        return [False] * len(texts)

    encoded = encoder.encode(texts, lambda _: NO_PARTS)
    return [
        finder.find(text, tokens.ids, *tokens.locate()) is not None
        for text, tokens in zip(texts, encoded, strict=True)
    ]


def _find_first_run(lost: np.ndarray) -> tuple[int, int]:
    """Returns the start and end of the first lost part, cut to the length of an example."""
    start = int(np.argmax(lost))
    preserved = np.flatnonzero(~lost[start : start + MAX_EXAMPLE_CHARS])
    length = int(preserved[0]) if len(preserved) else MAX_EXAMPLE_CHARS
    return start, start + length
