"""Decodes the tokens of a chunk one by one, for the terminal and for pages.

Each token is decoded from its own bytes, not by decoding the chunk, so that exactly the model's
input is shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.printable import make_printable
from bsmeta.data.text.chunks import Chunk
from bsmeta.data.text.tokenizer import compute_byte_lengths, map_byte_alphabet


class Part(Enum):
    """The part of a document that a token belongs to."""

    PREFIX = "prefix"
    TEXT = "text"
    LOCAL = "in the text"
    SUFFIX = "suffix"
    END = "end of the document"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token to show.

    Attributes:
        text: Its printable text; "" if it ends inside a character, which then appears in the
            character's last token.
        part: The part of the document that it belongs to.
        token_type: Its token type: 0 for text, 1 + i for metadata of type metadata_list[i].
        target: Whether it contributes to the loss.
    """

    id: int
    text: str
    part: Part
    token_type: int
    target: bool


class TokenTexts:
    """Decodes the tokens of a fast tokenizer one by one.

    If it is not byte-level BPE, the text of a token is its entry in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        fast = tokenizer.backend_tokenizer
        self._names = {number: entry for entry, number in fast.get_vocab().items()}
        self._added = {
            number: token.content for number, token in fast.get_added_tokens_decoder().items()
        }
        self._alphabet = None if compute_byte_lengths(fast) is None else map_byte_alphabet()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each of these consecutive tokens."""
        if self._alphabet is None:
            return [self._names[number].replace("\u2581", " ") for number in ids]

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._get_bytes(number, self._alphabet)) for number in ids]
        if texts:  # the chunk may end inside a character
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def _get_bytes(self, number: int, alphabet: dict[str, int]) -> bytes:
        """Returns the bytes of the token with this id."""
        if number in self._added:
            return self._added[number].encode()
        return bytes(alphabet[character] for character in self._names[number])


def decode_tokens(chunk: Chunk, texts: TokenTexts) -> list[ShownToken]:
    """Returns the tokens of a chunk, including its prefix."""
    ids = chunk.ids.tolist()
    columns = zip(
        ids,
        texts(ids),
        _find_parts(chunk),
        chunk.token_types.tolist(),
        chunk.loss_mask.tolist(),
        strict=True,
    )
    return [
        ShownToken(token_id, make_printable(text), part, token_type, is_target)
        for token_id, text, part, token_type, is_target in columns
    ]


def compute_metadata_mask(chunk: Chunk, config: MetadataConfig) -> np.ndarray:
    """Returns which tokens have at least one character of metadata: bool [len(chunk)].

    With `treat_local_metadata_as_regular_text`, only tokens of prefix and suffix count.
    """
    mask = chunk.token_types > 0
    if config.treat_local_metadata_as_regular_text:
        mask &= [part in (Part.PREFIX, Part.SUFFIX) for part in _find_parts(chunk)]
    return mask


def _find_parts(chunk: Chunk) -> list[Part]:
    """Returns the part of the document to which each token of a chunk belongs."""
    encoded = chunk.document
    token_types = encoded.token_types[chunk.start : chunk.stop].tolist()
    parts = [Part.LOCAL if token_type else Part.TEXT for token_type in token_types]

    if encoded.suffix_length:  # before the end-of-text token
        end = len(encoded.ids) - 1
        for index in range(max(end - encoded.suffix_length, chunk.start), min(end, chunk.stop)):
            parts[index - chunk.start] = Part.SUFFIX
    if chunk.stop == len(encoded.ids):
        parts[-1] = Part.END
    return [Part.PREFIX] * chunk.prefix_length + parts
