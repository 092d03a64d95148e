"""What the views show of documents: their tokens, and facts about them in words or as JSON.

Between `selection` and the views. Each token is decoded from its own bytes, not by decoding the
chunk, so that the view shows exactly the model's input.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.chunks import Chunk
from bsmeta.data.text.tokenizer import byte_alphabet
from bsmeta.data.text.tokens import byte_lengths
from bsmeta.tasks.causal_lm.explaining.selection import (
    ExplainedDocument,
    ExplainedWindow,
    PackedChunk,
)

# Characters that would move the cursor, color the terminal or change the text direction.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


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


def shown_tokens(chunk: Chunk, texts: TokenTexts) -> list[ShownToken]:
    """The tokens of a chunk, including its prefix."""
    ids = chunk.ids.tolist()
    parts = _parts(chunk)
    columns = (ids, texts(ids), parts, chunk.token_types.tolist(), chunk.loss_mask.tolist())
    return [ShownToken(*row) for row in zip(*columns, strict=True)]


def metadata_mask(chunk: Chunk, config: MetadataConfig) -> np.ndarray:
    """Mask of the tokens that contain at least one character of metadata: bool [len(chunk)].

    With `treat_local_metadata_as_regular_text`, only tokens of the prefix and the suffix.
    """
    mask = chunk.token_types > 0
    if config.treat_local_metadata_as_regular_text:
        mask &= [part in (Part.PREFIX, Part.SUFFIX) for part in _parts(chunk)]
    return mask


def _parts(chunk: Chunk) -> list[Part]:
    encoded, part = chunk.document, slice(chunk.start, chunk.stop)
    parts = [
        Part.LOCAL if token_type else Part.TEXT for token_type in encoded.token_types[part].tolist()
    ]
    if encoded.suffix:  # before the end-of-text token
        end = len(encoded.ids) - 1
        for place in range(max(end - encoded.suffix, chunk.start), min(end, chunk.stop)):
            parts[place - chunk.start] = Part.SUFFIX
    if chunk.stop == len(encoded.ids):
        parts[-1] = Part.END
    return [Part.PREFIX] * chunk.prefix_length + parts


def harmless(text: str) -> str:
    """The text with control characters other than tab and newline made visible."""
    return text.translate(_CONTROLS)


def document_facts(
    document: ExplainedDocument, chunks: Sequence[Sequence[ShownToken]]
) -> tuple[str, str]:
    """Describes a document's metadata, and its lengths."""
    given = document.rendered.types
    others = [name for name in document.present if name not in given]
    metadata = f"metadata: {', '.join(given) or 'none'}"
    if others:
        metadata += f"; it also has {', '.join(others)}"
    if document.lacking:
        metadata += f"; no record of {', '.join(document.lacking)}"
    tokens = sum(map(len, chunks))
    targets = sum(token.target for chunk in chunks for token in chunk)
    lengths = (
        f"{count(len(document.rendered.text), 'character')} of text, {count(tokens, 'token')} in "
        f"{count(len(chunks), 'chunk')}, loss on {targets:,}"
    )
    return metadata, lengths


def chunk_facts(
    document: ExplainedDocument, place: int, tokens: Sequence[ShownToken], sequences: int
) -> str:
    """Describes the lengths of a chunk, and the sequence that it is packed into.

    Args:
        place: Index of the chunk in the document.
    """
    lengths = Counter(token.part for token in tokens)
    parts = ", ".join(f"{part.value} {lengths[part]:,}" for part in Part if lengths[part])
    return (
        f"chunk {place + 1} of {len(document.chunks)}: {count(len(tokens), 'token')} ({parts}), "
        f"loss on {sum(token.target for token in tokens):,}; "
        f"sequence {document.sequences[place] + 1:,} of {sequences:,}"
    )


def packing_facts(window: ExplainedWindow) -> str:
    """Describes how densely a window is packed."""
    chunks = sum(map(len, window.sequences))
    used = sum(chunk.counted for sequence in window.sequences for chunk in sequence)
    places = max(len(window.sequences) * window.capacity, 1)
    which = f"documents {window.first} to {window.last} of {window.shard}"
    if window.count <= window.last - window.first:
        which = f"{window.count:,} of {which} (the others are in windows of other streams)"
    return (
        f"{which} are one window: "
        f"{count(chunks, 'chunk')} in {count(len(window.sequences), 'sequence')} of "
        f"{window.capacity:,} tokens{' of text' if window.by_text else ''}, "
        f"{used / places:.1%} full"
    )


def shown_sequences(window: ExplainedWindow, most: int) -> list[int]:
    """Indices of the sequences to show: the first, then others that contain shown documents.

    Args:
        most: Maximum number of each.
    """
    own = {place for document in window.documents for place in document.sequences}
    others = sorted(place for place in own if place >= most)
    return [*range(min(most, len(window.sequences))), *others[:most]]


def chunk_name(chunk: PackedChunk) -> str:
    """`17 (1/3): 256`: number of the document, chunk and number of chunks, tokens."""
    part = f" ({chunk.place + 1}/{chunk.count})" if chunk.count > 1 else ""
    return f"{chunk.number}{part}: {chunk.length}"


def padding(sequence: Sequence[PackedChunk], capacity: int) -> int:
    """Number of tokens that would still fit into a sequence."""
    return capacity - sum(chunk.counted for chunk in sequence)


def count(number: int, name: str) -> str:
    """`1 chunk`, `2,000 chunks`."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """One document as a line of JSON, without the newline.

    `text` is the whole text that the model reads, including `prefix` (untruncated, even if it is
    truncated in the chunks). The lists of a chunk have one entry per token; masks are 0 or 1.
    """
    rendered = document.rendered
    chunks = [
        {
            "input_ids": chunk.ids.tolist(),
            "metadata_mask": metadata_mask(chunk, config).astype(int).tolist(),
            "loss_mask": chunk.loss_mask.astype(int).tolist(),
        }
        for chunk in document.chunks
    ]
    return json.dumps(
        {
            "document": document.name,
            "text": rendered.whole,
            "prefix": rendered.prefix,
            "pieces": chunks,
        }
    )
