"""Encode texts into token ids and, on request, the characters that each token covers.

For byte-level BPE (GPT-2, Llama 3, Qwen, ...) the tokens of a text are its bytes cut into parts, so
the characters follow from cumulative sums of the tokens' byte lengths. This avoids offset tracking
in the tokenizer, which costs as much as the encoding. Other tokenizers report their own offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import choose_backend

OwnParts = Callable[[int], np.ndarray]

PROBE = "One  two\n\t3 naïve 😀 x<y"


class Tokens:
    """The tokens of a text.

    Attributes:
        ids: int32[n].
    """

    __slots__ = ("_characters", "_lengths", "_offsets", "_text", "ids")

    def __init__(
        self,
        ids: np.ndarray,
        text: str,
        lengths: np.ndarray | None = None,
        offsets: np.ndarray | None = None,
    ) -> None:
        self.ids = ids
        self._text = text
        self._lengths = lengths
        self._offsets = offsets
        self._characters: tuple[np.ndarray, np.ndarray] | None = None

    def characters(self) -> tuple[np.ndarray, np.ndarray]:
        """First character of each token, and the end of its last one (both int32[n]).

        A character encoded by several tokens is in the span of each of them.
        """
        if self._characters is None:
            self._characters = self._find_characters()
        return self._characters

    def _find_characters(self) -> tuple[np.ndarray, np.ndarray]:
        if self._lengths is None:
            assert self._offsets is not None
            return self._offsets[:, 0], self._offsets[:, 1]
        lengths = self._lengths.take(self.ids)
        ends = lengths.cumsum(dtype=np.int32)
        starts = ends - lengths
        if self._text.isascii() or not len(ends):
            return starts, ends
        raw = np.frombuffer(self._text.encode(), np.uint8)
        is_first = raw.view(np.int8) >= -0x40  # of its character: no continuation byte, 10xxxxxx
        characters = is_first.cumsum(dtype=np.int32)  # up to each byte
        return characters.take(starts) - 1, characters.take(ends - 1)

    def within(self, beginning: str) -> int:
        """Number of leading tokens that lie entirely in the beginning of the text."""
        if self._lengths is None:
            assert self._offsets is not None
            return int(np.searchsorted(self._offsets[:, 1], len(beginning), side="right"))
        size = len(beginning.encode())
        ends = self._lengths[self.ids[:size]].cumsum()  # every token has at least one byte
        return int(ends.searchsorted(size, side="right"))


NO_IDS = np.zeros(0, np.int32)


class SpecialTokens:
    """Finds a tokenizer's special tokens among tokens, and encodes texts without them.

    Args:
        tokenizer: The tokenizer; it is copied.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True  # as text
        added = tokenizer.get_added_tokens_decoder().items()
        self._numbers = {token.content: number for number, token in added if token.special}
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        self._is_special = np.zeros(largest + 1, np.bool_)
        self._is_special[list(self._numbers.values())] = True
        self._smallest = min(self._numbers.values(), default=largest + 1)
        longest_first = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, texts: Sequence[Tokens]) -> Iterator[tuple[int, np.ndarray]]:
        """The texts that have special tokens: their index, and the indices of the tokens (int64).

        All texts are searched at once, because most have none.
        """
        ids = np.concatenate([NO_IDS, *(text.ids for text in texts)])
        places = np.flatnonzero(ids >= self._smallest)  # usually, special ids are the last
        places = places[self._is_special[ids[places]]]
        ends = np.cumsum([len(text.ids) for text in texts])
        numbers, firsts = np.unique(np.searchsorted(ends, places, "right"), return_index=True)
        for number, found in zip(numbers.tolist(), np.split(places, firsts)[1:], strict=True):
            yield number, found - (ends[number] - len(texts[number].ids))

    def all_inside(self, tokens: Tokens, places: np.ndarray, parts: np.ndarray) -> bool:
        """Whether the tokens at these indices lie in the parts of the text (int[m, 2], sorted)."""
        starts, ends = tokens.characters()
        starts, ends = starts[places], ends[places]
        rows = np.searchsorted(parts[:, 0], starts, side="right") - 1
        limits = np.append(parts[:, 1], -1)  # row -1: before the first part
        return bool((ends <= limits[rows]).all())

    def encode(self, text: str, parts: np.ndarray, lengths: np.ndarray | None) -> Tokens:
        """Encodes a text, recognizing special tokens in these parts only.

        Args:
            parts: int[m, 2], sorted.
        """
        meant = [
            found
            for start, end in parts.tolist()
            for found in self._pattern.finditer(text, start, end)
        ]
        begins = [0, *(found.end() for found in meant)]
        ends = [*(found.start() for found in meant), len(text)]
        between = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        encodings = self._plain.encode_batch(between, add_special_tokens=False)
        for begin, encoding, found in zip(begins, encodings, [*meant, None], strict=True):
            ids += encoding.ids
            offsets += [(begin + start, begin + end) for start, end in encoding.offsets]
            if found is not None:
                ids.append(self._numbers[found.group()])
                offsets.append(found.span())
        numbers = np.array(ids, np.int32)
        if lengths is not None:
            return Tokens(numbers, text, lengths=lengths)
        return Tokens(numbers, text, offsets=np.array(offsets, np.int32).reshape(-1, 2))


class TextTokenizer:
    """Encodes batches of texts as a fast Hugging Face tokenizer does; adds no special tokens.

    Args:
        backend: A name of `choose_backend`; all except `hf` are for byte-level BPE only.
        sample: Texts on which it must return the same ids as the tokenizer itself.

    Raises:
        ConfigurationError: If the tokenizer is not a fast one, or the backend does not suit it.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, backend: str = "hf", sample: Sequence[str] = ()
    ) -> None:
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is no fast tokenizer (it has no "
                "tokenizer.json); expected one that the tokenizers library can run"
            )
        self._oracle = Tokenizer.from_str(fast.to_str())  # a copy: its settings are changed
        self._oracle.no_truncation()
        self._oracle.no_padding()
        self._special = SpecialTokens(self._oracle)
        self._lengths = byte_lengths(self._oracle)
        if self._lengths is not None:
            self._backend = choose_backend(backend, self._oracle, [*sample, PROBE])
        elif backend not in ("hf", "auto"):
            raise ConfigurationError(
                f"data_config.tokenizer_backend={backend} needs byte-level BPE, which "
                f"{tokenizer.name_or_path} is not; use auto or hf"
            )

    def encode(self, texts: Sequence[str], own: OwnParts | None = None) -> list[Tokens]:
        """The tokens of each text.

        Args:
            own: Maps the index of a text to the parts of it (int[m, 2], sorted) in which literal
                special tokens are recognized; elsewhere they are text. None: they are recognized
                everywhere.
        """
        if self._lengths is not None:
            pairs = zip(self._backend(texts), texts, strict=True)
            tokens = [Tokens(ids, text, lengths=self._lengths) for ids, text in pairs]
        else:
            encodings = self._oracle.encode_batch(list(texts), add_special_tokens=False)
            tokens = [
                Tokens(
                    np.array(encoding.ids, np.int32),
                    text,
                    offsets=np.array(encoding.offsets, np.int32).reshape(-1, 2),
                )
                for encoding, text in zip(encodings, texts, strict=True)
            ]
        if own is None:
            return tokens
        # Few texts contain literal special tokens: all texts are encoded with them recognized, at
        # full speed, and those with one outside the allowed parts are encoded a second time.
        for number, places in self._special.find(tokens):
            if not self._special.all_inside(tokens[number], places, own(number)):
                tokens[number] = self._special.encode(texts[number], own(number), self._lengths)
        return tokens


def byte_lengths(tokenizer: Tokenizer) -> np.ndarray | None:
    """Byte length of each entry of a byte-level BPE vocabulary (int32); None for other tokenizers.

    A byte-level vocabulary represents each byte as one character, so lengths are those of entries.
    """
    parts = json.loads(tokenizer.to_str())
    steps = (parts["pre_tokenizer"] or {}).get("pretokenizers", [parts["pre_tokenizer"] or {}])
    if parts["model"]["type"] != "BPE" or "ByteLevel" not in [step.get("type") for step in steps]:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token["content"]: token["id"] for token in parts["added_tokens"]}
    lengths = np.zeros(max([*vocabulary.values(), *added.values()]) + 1, np.int32)
    for entry, number in vocabulary.items():
        lengths[number] = len(entry)
    for entry, number in added.items():
        lengths[number] = len(entry.encode())
    # A tokenizer may still add, drop or replace characters in many ways.
    whole = [PROBE, *(f"a{entry} b" for entry in added), " a", "a "]
    totals = [
        int(lengths[encoding.ids].sum())
        for encoding in tokenizer.encode_batch(whole, add_special_tokens=False)
    ]
    return lengths if totals == [len(text.encode()) for text in whole] else None


def text_positions(positions: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Map positions in the rendered body to positions in the text without its metadata.

    Args:
        positions: int32 [n], character positions in the body, which may include the body's end.
        spans: int32 [m, 2], the inserted strings.

    Returns:
        int32 [n]: the number of text characters before each position.
    """
    if not len(spans):
        return positions
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    rows = np.searchsorted(spans[:, 0], positions, side="right")
    overhang = np.maximum(np.append(spans[:, 1], 0)[rows - 1] - positions, 0)
    overhang[rows == 0] = 0
    return (positions - before[rows] + overhang).astype(np.int32)


def covered_token_types(
    places: np.ndarray, spans: np.ndarray, token_types: np.ndarray
) -> np.ndarray:
    """The token type (uint8) at each of the given characters; the spans cover the whole text."""
    return token_types[spans[:, 1].searchsorted(places, side="right")]


def mark_spans(
    token_types: np.ndarray,
    run: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    spans: np.ndarray,
    span_token_types: np.ndarray,
) -> None:
    """Marks the tokens that hold characters of inserted strings.

    A token with characters of several strings gets the type of the first; since no cut may divide
    any of them, they form one run.

    Args:
        token_types: uint8, 0 for text; the token types are written into it.
        run: int32, -1 for text; the run numbers are written into it.
        starts: int32[n], first character of each of the first n tokens; non-decreasing.
        ends: int32[n], the end of its last character.
        spans: int32[m, 2], the inserted strings, sorted and disjoint.
        span_token_types: uint8[m].
    """
    first = ends.searchsorted(spans[:, 0], side="right")
    last = starts.searchsorted(spans[:, 1], side="left")
    before = np.concatenate((np.zeros(1, np.int64), last[:-1]))
    number = np.cumsum(first >= before, dtype=np.int32)
    first = np.maximum(first, before)
    sizes = last - first
    tokens = (first - sizes.cumsum() + sizes).repeat(sizes) + np.arange(sizes.sum())
    token_types[tokens] = span_token_types.repeat(sizes)
    run[tokens] = number.repeat(sizes)
