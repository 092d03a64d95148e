"""The tokens of a chunk: their text, the part of the document they belong to, and their loss mask.

Between `selection` and the views. Each token is decoded from its own bytes, not by decoding the
chunk, so that the view shows exactly the model's input.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.backends import byte_alphabet
from bsmeta.data.text.chunks import Chunk
from bsmeta.data.text.tokens import byte_lengths
from bsmeta.metadata.rendering import Rendered


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
        id: Its id.
        text: Its text; "" if it ends inside a character, which is then part of the text of the
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
    """Decodes the tokens of a tokenizer one by one.

    Args:
        tokenizer: A fast tokenizer. If it is not byte-level BPE, the text of a token is its entry
            in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        fast = tokenizer.backend_tokenizer
        self._names = {number: entry for entry, number in fast.get_vocab().items()}
        self._added = {
            number: token.content for number, token in fast.get_added_tokens_decoder().items()
        }
        self._alphabet = None if byte_lengths(fast) is None else byte_alphabet()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these consecutive tokens."""
        if self._alphabet is None:
            return [self._names[number].replace("\u2581", " ") for number in ids]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._bytes(number, self._alphabet)) for number in ids]
        if texts:  # the chunk may end inside a character
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def _bytes(self, number: int, alphabet: dict[str, int]) -> bytes:
        if number in self._added:
            return self._added[number].encode()
        return bytes(alphabet[character] for character in self._names[number])


def shown_tokens(chunk: Chunk, rendered: Rendered, texts: TokenTexts) -> list[ShownToken]:
    """The tokens of a chunk, including its prefix.

    Args:
        chunk: The chunk.
        rendered: The document that it is part of.
        texts: Decodes tokens to text.
    """
    ids = chunk.ids.tolist()
    parts = _parts(chunk, rendered)
    columns = (ids, texts(ids), parts, chunk.token_types.tolist(), chunk.loss_mask.tolist())
    return [ShownToken(*row) for row in zip(*columns, strict=True)]


def metadata_mask(chunk: Chunk, rendered: Rendered, config: MetadataConfig) -> np.ndarray:
    """Mask of the tokens that contain at least one character of metadata: bool [len(chunk)].

    With `treat_local_metadata_as_regular_text`, only tokens of the prefix and the suffix.
    """
    mask = chunk.token_types > 0
    if config.treat_local_metadata_as_regular_text:
        mask &= [part in (Part.PREFIX, Part.SUFFIX) for part in _parts(chunk, rendered)]
    return mask


def _parts(chunk: Chunk, rendered: Rendered) -> list[Part]:
    encoded, part = chunk.document, slice(chunk.start, chunk.stop)
    parts = [
        Part.LOCAL if token_type else Part.TEXT for token_type in encoded.token_types[part].tolist()
    ]
    if rendered.suffix:  # the last run, before the end-of-text token
        for place in np.flatnonzero(encoded.run[part] == encoded.run[-2]).tolist():
            parts[place] = Part.SUFFIX
    if chunk.stop == len(encoded.ids):
        parts[-1] = Part.END
    return [Part.PREFIX] * chunk.prefix_length + parts


# Characters that would move the cursor, color the terminal or change the text direction.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


def harmless(text: str) -> str:
    """The text with control characters other than tab and newline made visible."""
    return text.translate(_CONTROLS)
