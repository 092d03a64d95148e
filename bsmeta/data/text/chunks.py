"""Cut encoded documents into chunks that fit a sequence, each with its prefix.

A document longer than `max_seq_len` is cut without splitting an inserted string (a tag, an entity).
Under `row_budget=text`, only its text (with EOS, and BOS before each chunk) is measured, so that it
is cut at the same places whatever its metadata. Training, evaluation and `explain` use the same
chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bsmeta.config.data import BY_TEXT, DataConfig, metadata_room
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import EncodedDocument


@dataclass(slots=True)  # frozen, it would take four times as long to create
class Chunk:
    """Tokens `start` to `stop` of a document (prefix not counted), after its prefix if `prefixed`.

    Arrays are computed on access; all have the length of the chunk.

    Attributes:
        start: Its first token in this chunk.
        stop: The token after its last token in this chunk.
        prefixed: Whether the prefix (or BOS alone) comes first.
        first_text_is_target: Whether the first text token after the prefix is in the loss.
        left_out: Number of its metadata tokens that were left out for lack of room.
    """

    document: EncodedDocument
    start: int
    stop: int
    prefixed: bool
    first_text_is_target: bool = True
    left_out: int = 0

    def __len__(self) -> int:
        return self.prefix_length + self.stop - self.start

    @property
    def prefix_length(self) -> int:
        """Tokens of the prefix in this chunk."""
        return len(self.document.prefix_ids) if self.prefixed else 0

    @property
    def metadata_length(self) -> int:
        """Tokens that are neither text nor BOS nor EOS."""
        text = int(np.count_nonzero(self.document.is_text[self.start : self.stop]))
        return len(self) - text - (self.document.bos if self.prefixed else 0)

    @property
    def ids(self) -> np.ndarray:
        """Token ids (int32)."""
        return self._joined(self.document.prefix_ids, self.document.ids)

    @property
    def token_types(self) -> np.ndarray:
        """Token types (uint8): 0 for text and EOS, 1 + i for type metadata_list[i]."""
        return self._joined(self.document.prefix_token_types, self.document.token_types)

    @property
    def text_starts(self) -> np.ndarray:
        """First character of the original text in each token (int32); see `EncodedDocument`."""
        return self._joined(np.zeros_like(self.document.prefix_ids), self.document.text_starts)

    @property
    def text_ends(self) -> np.ndarray:
        """End of the original text's characters in each token (int32)."""
        return self._joined(np.zeros_like(self.document.prefix_ids), self.document.text_ends)

    @property
    def loss_mask(self) -> np.ndarray:
        """Which tokens are targets (bool): all that the configuration trains on, except two.

        These are the first token of the chunk, which nothing predicts, and `masked_text`.
        """
        mask = self._joined(self.document.prefix_targets, self.document.targets).copy()
        mask[[0, self.masked_text]] = False
        return mask

    @property
    def masked_text(self) -> int:
        """The first token of text after the prefix if it is excluded from the loss; otherwise 0.

        Without a prefix, that token comes first and is not a target. `loss_on_first_text=false`
        excludes it with a prefix, too.
        """
        if not self.prefixed or self.first_text_is_target:
            return 0
        token_types = self.document.token_types
        first = max(self.start, self.document.lead)
        if first < self.stop and token_types[first] == 0:
            return self.prefix_length + first - self.start
        text = np.flatnonzero(token_types[first : self.stop] == 0)
        return self.prefix_length + first - self.start + int(text[0]) if len(text) else 0

    def _joined(self, prefix: np.ndarray, rest: np.ndarray) -> np.ndarray:
        part = rest[self.start : self.stop]
        return np.concatenate((prefix, part)) if self.prefixed else part


def cut(encoded: EncodedDocument, config: DataConfig) -> list[Chunk]:
    """The chunks of a document, in order; together they contain each of its tokens once.

    No chunk is longer than `max_seq_len`, none consists of EOS alone, and none ends inside an
    inserted string, unless that string alone is longer than a chunk. Under `row_budget=text`, none
    has more than `max_seq_len` tokens of text and `metadata_room` tokens of metadata.
    """
    if config.row_budget == BY_TEXT:
        room = metadata_room(config)
        return [within(chunk, room) for chunk in cut_by_text(encoded, config.metadata_config)]
    metadata = config.metadata_config
    end, prefix = len(encoded.ids), len(encoded.prefix_ids)
    chunks: list[Chunk] = []
    start = 0
    while start < end - 1:  # EOS alone is not worth training on
        prefixed = prefix > 0 and (not chunks or metadata.prefix_on == "every_piece")
        room = metadata.max_seq_len - (prefix if prefixed else 0)
        stop = end if end - start <= room else boundary(encoded.run, start, start + room)
        if stop == end - 1:
            stop = boundary(encoded.run, start, stop - 1)
        chunks.append(Chunk(encoded, start, stop, prefixed, metadata.loss_on_first_text))
        start = stop
    return chunks


def cut_by_text(encoded: EncodedDocument, metadata: MetadataConfig) -> list[Chunk]:
    """The chunks of a document, cut after that number of text tokens; EOS is one, BOS is in each.

    Where there is no BOS, nothing but metadata comes before the first token of text of a chunk:
    without metadata there is no loss on it, so there is none with metadata.
    """
    places = np.flatnonzero(encoded.is_text)
    size, end = metadata.max_seq_len - encoded.bos, len(places)
    later = encoded if metadata.prefix_on == "every_piece" else encoded.without_prefix
    first_is_target = encoded.bos > 0 and metadata.loss_on_first_text
    chunks: list[Chunk] = []
    first = start = 0
    while first < end - 1:  # EOS alone is not worth training on
        last = min(first + size, end)
        last -= last == end - 1
        stop = int(places[last - 1]) + 1  # tags before a token come with it
        document = later if chunks else encoded
        chunks.append(Chunk(document, start, stop, True, first_is_target))
        first, start = last, stop
    return chunks


def within(chunk: Chunk, most: int) -> Chunk:
    """The chunk with its metadata cut to a number of tokens, and the same text (`row_budget=text`).

    A prefix is cut but keeps its separator, or is left out if nothing else of it would fit. Then
    come the inserted strings, up to the first that does not fit; appended metadata may be cut.
    """
    before = chunk.metadata_length
    if before <= most:
        return chunk
    document, part = chunk.document, slice(chunk.start, chunk.stop)
    prefix = chunk.prefix_length - document.bos
    lead = max(document.lead - chunk.start, 0)
    kept = min(prefix, most - lead)
    if kept < prefix and kept <= len(document.separator):
        kept = lead = 0
    is_kept = document.is_text[part].copy()
    is_kept[:lead] = True
    inserted = np.flatnonzero(~is_kept)
    inserted = inserted[inserted >= document.lead - chunk.start]
    appended = document.suffix if chunk.stop == len(document.ids) else 0
    is_kept[inserted[: fitting(document.run[part][inserted], most - kept - lead, appended)]] = True
    shorter = replace(
        _with_prefix_of(document, kept) if kept < prefix else document,
        ids=document.ids[part][is_kept],
        token_types=document.token_types[part][is_kept],
        targets=document.targets[part][is_kept],
        run=document.run[part][is_kept],
        lead=lead,
        suffix=int(is_kept[len(is_kept) - 1 - appended : -1].sum()) if appended else 0,
        locate=partial(_located, document, part, is_kept),
    )
    cut_chunk = Chunk(shorter, 0, len(shorter.ids), True, chunk.first_text_is_target)
    cut_chunk.left_out = chunk.left_out + before - cut_chunk.metadata_length
    return cut_chunk


def fitting(run: np.ndarray, most: int, divisible: int) -> int:
    """How many of some inserted tokens fit, such that no string is divided.

    Args:
        run: The string of each token.
        most: Number of tokens that there is room for.
        divisible: How many of the last tokens may be divided anywhere.
    """
    count = min(most, len(run))
    while 0 < count < len(run) - divisible and run[count - 1] == run[count]:
        count -= 1
    return count


def _with_prefix_of(document: EncodedDocument, length: int) -> EncodedDocument:
    """The document with a prefix cut to a number of tokens besides BOS; with 0, without one."""
    if not length:
        return document.without_prefix
    closing, last = len(document.separator), document.bos + length
    head = last - closing
    token_types = document.prefix_token_types[:last].copy()
    token_types[head:] = token_types[head - 1]
    return replace(
        document,
        prefix_ids=np.concatenate((document.prefix_ids[:head], document.separator)),
        prefix_token_types=token_types,
        prefix_targets=document.prefix_targets[:last],
        prefix_cut=True,
    )


def _located(
    document: EncodedDocument, part: slice, is_kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return document.text_starts[part][is_kept], document.text_ends[part][is_kept]


def boundary(run: np.ndarray, start: int, stop: int) -> int:
    """The last place after `start` and up to `stop` that is not inside an inserted string.

    Args:
        run: For each token, the inserted string that it belongs to; -1 for text.
        start: Where the chunk begins.
        stop: Where it would end without this constraint.

    Returns:
        `stop` itself if one string extends from `start` beyond `stop`.
    """
    if run[stop] < 0 or run[stop - 1] != run[stop]:
        return stop
    outside = np.flatnonzero(run[start:stop] != run[stop])
    return start + int(outside[-1]) + 1 if len(outside) else stop


def cut_alike(plain: EncodedDocument, chunks: Sequence[Chunk], config: DataConfig) -> list[Chunk]:
    """Cuts a document without metadata at the same places as its chunks with metadata.

    Each chunk then has the same text as its counterpart, up to the token that contains the cut.
    EOS stays with the last text, even if its counterpart contains only closing tags besides EOS; if
    that exceeds `max_seq_len` by one token, the last text token is cut off together with EOS.
    """
    end = len(plain.ids)
    ends = [chunk.document.text_starts[chunk.stop] for chunk in chunks[:-1]]
    stops = [*np.searchsorted(plain.text_starts, ends).tolist(), end]
    cuts = [
        Chunk(plain, start, stop, chunk.prefixed and len(plain.prefix_ids) > 0)
        for chunk, start, stop in zip(chunks, [0, *stops[:-1]], stops, strict=True)
        if stop > start
    ]
    if not cuts or cuts[-1].start < end - 1:
        return cuts
    alone = cuts.pop()  # EOS
    if cuts:
        last = replace(cuts.pop(), stop=end)
        if len(last) > config.metadata_config.max_seq_len:
            cuts.append(replace(last, stop=end - 2))
            last = replace(alone, start=end - 2)
        cuts.append(last)
    return cuts
