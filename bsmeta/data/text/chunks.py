"""Cuts encoded documents into chunks that fit into a sequence, and packs the chunks of a window.

A document longer than `max_seq_len` is cut without splitting an inserted string (a tag, an entity).
Under `row_budget=text`, only its text (with EOS, and BOS before each chunk) counts toward the
length, so that it is cut at the same positions whatever its metadata. Training, evaluation and
`explain` use the same chunks.

Packing depends only on lengths. Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling") fills sequences almost completely and never splits a chunk. Under
`row_budget=text`, the length of a chunk is the length of its text, and metadata has a separate
budget, so that the chunks of a sequence do not depend on the metadata. A sequence is a slice of
arrays over all tokens of a window. Padding and positions are added when the sequence is put into a
batch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bsmeta.config.data import BY_TEXT, DataConfig, compute_metadata_room
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data import permute
from bsmeta.data.text.encoding import EncodedDocument
from bsmeta.data.text.tokens import NO_IDS

if TYPE_CHECKING:
    from bsmeta.data.stream.plan import Position

Packing = Callable[[Sequence[int], int], list[list[int]]]
"""Returns the indices of the chunks of each sequence, from the chunks' lengths and the capacity."""


@dataclass(slots=True)  # not frozen: that would take four times as long to create
class Chunk:
    """Tokens `start` to `stop` of a document, after its prefix if `has_prefix`.

    The arrays are computed on access, and have the length of the chunk.

    Attributes:
        start: Index of the first token, not counting the prefix.
        stop: End of the tokens, exclusive, not counting the prefix.
        has_prefix: Whether the document's prefix (or BOS alone) comes first.
        first_text_is_target: Whether the first text token after the prefix is in the loss.
        num_left_out: Number of metadata tokens that were left out for lack of room.
    """

    document: EncodedDocument
    start: int
    stop: int
    has_prefix: bool
    first_text_is_target: bool = True
    num_left_out: int = 0

    def __len__(self) -> int:
        """Returns the number of tokens, including the prefix."""
        return self.prefix_length + self.stop - self.start

    @property
    def prefix_length(self) -> int:
        """Number of prefix tokens in this chunk."""
        return len(self.document.prefix_ids) if self.has_prefix else 0

    @property
    def metadata_length(self) -> int:
        """Number of tokens that are neither text nor BOS nor EOS."""
        num_text = int(np.count_nonzero(self.document.is_text[self.start : self.stop]))
        num_bos = self.document.bos_length if self.has_prefix else 0
        return len(self) - num_text - num_bos

    @property
    def ids(self) -> np.ndarray:
        """Token ids (int32)."""
        return self._join_prefix(self.document.prefix_ids, self.document.ids)

    @property
    def token_types(self) -> np.ndarray:
        """Token types (uint8): 0 for text and EOS, 1 + i for type metadata_list[i]."""
        return self._join_prefix(self.document.prefix_token_types, self.document.token_types)

    @property
    def text_starts(self) -> np.ndarray:
        """The first character of the original text that each token covers (int32)."""
        return self._join_prefix(np.zeros_like(self.document.prefix_ids), self.document.text_starts)

    @property
    def text_ends(self) -> np.ndarray:
        """The end of the characters that each token covers (int32); see `EncodedDocument`."""
        return self._join_prefix(np.zeros_like(self.document.prefix_ids), self.document.text_ends)

    @property
    def loss_mask(self) -> np.ndarray:
        """Whether each token is a target (bool): a token that is trained on, with two exceptions.

        These are the first token of the chunk, which has no context, and the token at
        `masked_text_index`.
        """
        mask = self._join_prefix(self.document.prefix_targets, self.document.targets).copy()
        mask[[0, self.masked_text_index]] = False
        return mask

    @property
    def masked_text_index(self) -> int:
        """Index of the first text token after the prefix if it is not in the loss; otherwise 0.

        The first text token without a prefix is the first token of the chunk, which is never a
        target. `loss_on_first_text=false` also excludes the first text token after a prefix.
        """
        if not self.has_prefix or self.first_text_is_target:
            return 0

        token_types = self.document.token_types
        first = max(self.start, self.document.lead_length)
        if first < self.stop and token_types[first] == 0:
            return self.prefix_length + first - self.start

        text_indices = np.flatnonzero(token_types[first : self.stop] == 0)
        if not len(text_indices):
            return 0
        return self.prefix_length + first - self.start + int(text_indices[0])

    def _join_prefix(self, prefix: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Returns the values of the chunk's tokens, after those of the prefix if it has one.

        Args:
            prefix: A value for each token of the document's prefix.
            tokens: A value for each other token of the document.
        """
        chunk_tokens = tokens[self.start : self.stop]
        return np.concatenate((prefix, chunk_tokens)) if self.has_prefix else chunk_tokens


def cut_document(encoded: EncodedDocument, config: DataConfig) -> list[Chunk]:
    """Cuts a document into chunks, in order.

    No chunk is longer than `max_seq_len`, none consists of EOS alone, and none ends inside an
    inserted string, unless that string alone is longer than a chunk. The chunks contain each token
    of the document once, but the prefix may be repeated on each chunk.

    Under `row_budget=text`, a chunk has at most `max_seq_len` tokens of text and at most
    `compute_metadata_room` tokens of metadata; excess metadata is left out.
    """
    metadata = config.metadata_config
    if config.row_budget == BY_TEXT:
        metadata_room = compute_metadata_room(config)
        return [cut_metadata(chunk, metadata_room) for chunk in _cut_by_text(encoded, metadata)]

    end = len(encoded.ids)
    prefix_length = len(encoded.prefix_ids)
    chunks: list[Chunk] = []
    start = 0
    while start < end - 1:  # EOS alone is not worth training on
        has_prefix = prefix_length > 0 and (not chunks or metadata.prefix_on == "every_piece")
        room = metadata.max_seq_len - (prefix_length if has_prefix else 0)
        stop = end
        if end - start > room:
            stop = _find_boundary(encoded.runs, start, start + room)
        if stop == end - 1:
            stop = _find_boundary(encoded.runs, start, stop - 1)

        chunks.append(Chunk(encoded, start, stop, has_prefix, metadata.loss_on_first_text))
        start = stop
    return chunks


def _find_boundary(runs: np.ndarray, start: int, stop: int) -> int:
    """Returns the last index up to `stop` at which a chunk that begins at `start` may end.

    This is the last index that is not inside an inserted string; `stop` itself if a single string
    extends from `start` beyond `stop`.
    """
    if runs[stop] < 0 or runs[stop - 1] != runs[stop]:
        return stop

    outside = np.flatnonzero(runs[start:stop] != runs[stop])
    return start + int(outside[-1]) + 1 if len(outside) else stop


def _cut_by_text(encoded: EncodedDocument, metadata: MetadataConfig) -> list[Chunk]:
    """Cuts a document after every `max_seq_len` tokens of text, including BOS and EOS.

    Without BOS, the first text token of a chunk has no context except metadata. It is then excluded
    from the loss with and without metadata, so that both losses cover the same tokens.
    """
    text_indices = np.flatnonzero(encoded.is_text)
    num_text = len(text_indices)
    max_text = metadata.max_seq_len - encoded.bos_length
    later_document = encoded if metadata.prefix_on == "every_piece" else encoded.without_prefix
    first_is_target = encoded.bos_length > 0 and metadata.loss_on_first_text

    chunks: list[Chunk] = []
    text_start = start = 0  # counted in text tokens, and in all tokens
    while text_start < num_text - 1:  # EOS alone is not worth training on
        text_stop = min(text_start + max_text, num_text)
        if text_stop == num_text - 1:
            text_stop -= 1
        stop = int(text_indices[text_stop - 1]) + 1  # tags before a token belong to its chunk
        document = later_document if chunks else encoded
        chunks.append(
            Chunk(document, start, stop, has_prefix=True, first_text_is_target=first_is_target)
        )
        text_start = text_stop
        start = stop
    return chunks


def cut_metadata(chunk: Chunk, limit: int) -> Chunk:
    """Truncates the metadata of a chunk to `limit` tokens and keeps its text (`row_budget=text`).

    A truncated prefix keeps its separator, and is left out if only the separator would fit. The
    remaining room is for the inserted strings, up to the first that does not fit; appended metadata
    may be truncated anywhere.
    """
    metadata_length = chunk.metadata_length
    if metadata_length <= limit:
        return chunk

    document = chunk.document
    tokens = slice(chunk.start, chunk.stop)

    # A prefix that would consist of its separator alone is left out, and the lead with it.
    prefix_length = chunk.prefix_length - document.bos_length
    lead_length = max(document.lead_length - chunk.start, 0)
    kept_prefix_length = min(prefix_length, limit - lead_length)
    if kept_prefix_length < prefix_length and kept_prefix_length <= len(document.separator):
        kept_prefix_length = lead_length = 0

    # The remaining room is for inserted strings and appended metadata.
    is_kept = document.is_text[tokens].copy()
    is_kept[:lead_length] = True
    inserted = np.flatnonzero(~is_kept)
    inserted = inserted[inserted >= document.lead_length - chunk.start]
    num_appended = document.suffix_length if chunk.stop == len(document.ids) else 0
    room = limit - kept_prefix_length - lead_length
    num_fitting = count_fitting_tokens(document.runs[tokens][inserted], room, num_appended)
    is_kept[inserted[:num_fitting]] = True

    shorter = _select_tokens(document, tokens, is_kept, lead_length, num_appended)
    if kept_prefix_length < prefix_length:
        shorter = _cut_prefix(shorter, kept_prefix_length)
    cut_chunk = replace(chunk, document=shorter, start=0, stop=len(shorter.ids), has_prefix=True)
    cut_chunk.num_left_out += metadata_length - cut_chunk.metadata_length
    return cut_chunk


def _select_tokens(
    document: EncodedDocument,
    tokens: slice,
    is_kept: np.ndarray,
    lead_length: int,
    num_appended: int,
) -> EncodedDocument:
    """Returns a document with some of the tokens after the prefix.

    Args:
        tokens: The part of the tokens from which they are selected.
        is_kept: bool, whether each token of this part is kept.
        lead_length: Number of lead tokens that are kept.
        num_appended: Number of tokens of appended metadata in the part.
    """
    suffix_length = 0
    if num_appended:
        suffix_length = int(is_kept[len(is_kept) - 1 - num_appended : -1].sum())
    return replace(
        document,
        ids=document.ids[tokens][is_kept],
        token_types=document.token_types[tokens][is_kept],
        targets=document.targets[tokens][is_kept],
        runs=document.runs[tokens][is_kept],
        lead_length=lead_length,
        suffix_length=suffix_length,
        locate=partial(_locate_kept_tokens, document, tokens, is_kept),
    )


def _locate_kept_tokens(
    document: EncodedDocument, tokens: slice, is_kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends of the kept tokens in the original text."""
    return document.text_starts[tokens][is_kept], document.text_ends[tokens][is_kept]


def count_fitting_tokens(runs: np.ndarray, room: int, num_divisible: int) -> int:
    """Counts the leading inserted tokens that fit without dividing a string.

    Args:
        runs: The run of each inserted token.
        room: Maximum number of tokens.
        num_divisible: Number of tokens at the end that may be divided anywhere.
    """
    count = min(room, len(runs))
    while 0 < count < len(runs) - num_divisible and runs[count - 1] == runs[count]:
        count -= 1
    return count


def _cut_prefix(document: EncodedDocument, length: int) -> EncodedDocument:
    """Truncates the prefix of a document to `length` tokens, not counting BOS; 0 removes it."""
    if not length:
        return document.without_prefix

    end = document.bos_length + length
    separator_start = end - len(document.separator)
    token_types = document.prefix_token_types[:end].copy()
    token_types[separator_start:] = token_types[separator_start - 1]
    return replace(
        document,
        prefix_ids=np.concatenate((document.prefix_ids[:separator_start], document.separator)),
        prefix_token_types=token_types,
        prefix_targets=document.prefix_targets[:end],
        prefix_is_cut=True,
    )


def cut_alike(plain: EncodedDocument, chunks: Sequence[Chunk], config: DataConfig) -> list[Chunk]:
    """Cuts a document without metadata at the same text positions as its chunks with metadata.

    Each chunk then has the same text as its counterpart, except that a token that contains the cut
    is not divided. EOS stays with the last text, even if the last chunk with metadata contains only
    closing tags and EOS. If the chunk would thus exceed `max_seq_len` by one token, its last text
    token and EOS become a separate chunk.

    Args:
        plain: The document without metadata.
        chunks: Its chunks with metadata.
    """
    end = len(plain.ids)
    text_ends = [chunk.document.text_starts[chunk.stop] for chunk in chunks[:-1]]
    stops = [*np.searchsorted(plain.text_starts, text_ends).tolist(), end]
    starts = [0, *stops[:-1]]
    plain_chunks: list[Chunk] = []
    for chunk, start, stop in zip(chunks, starts, stops, strict=True):
        if stop > start:
            has_prefix = chunk.has_prefix and len(plain.prefix_ids) > 0
            plain_chunks.append(Chunk(plain, start, stop, has_prefix))
    if not plain_chunks or plain_chunks[-1].start < end - 1:
        return plain_chunks

    # The last chunk is EOS alone, which would have no context: it joins the previous chunk. If this
    # would then be too long, its last token of text joins EOS instead.
    eos_alone = plain_chunks.pop()
    if plain_chunks:
        last = replace(plain_chunks.pop(), stop=end)
        if len(last) > config.metadata_config.max_seq_len:
            plain_chunks.append(replace(last, stop=end - 2))
            last = replace(eos_alone, start=end - 2)
        plain_chunks.append(last)
    return plain_chunks


def pack_best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs chunks into sequences by best-fit decreasing.

    Each chunk, longest first, goes into the sequence in which it leaves the least room; a new
    sequence is opened only if the chunk fits into none.

    Args:
        lengths: Lengths in tokens, each from 1 to `capacity`.

    Returns:
        For each sequence, the indices of its chunks.
    """
    sequences: list[list[int]] = []

    # `by_room[room]` has the sequences with `room` tokens left. If there are any, bit `room` of
    # `room_bits` is set, so the best fit is the lowest set bit from the chunk's length on.
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    room_bits = 0
    longest_first = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    for chunk in longest_first.tolist():
        length = lengths[chunk]
        sufficient_bits = room_bits >> length
        if sufficient_bits:
            room = length + (sufficient_bits & -sufficient_bits).bit_length() - 1
            sequence = by_room[room].pop()
            if not by_room[room]:
                room_bits ^= 1 << room
            sequences[sequence].append(chunk)
        else:
            room = capacity
            sequence = len(sequences)
            sequences.append([chunk])

        remaining = room - length
        if remaining:
            by_room[remaining].append(sequence)
            room_bits |= 1 << remaining
    return sequences


def pack_separately(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts each chunk into a sequence of its own (`packing: pad`)."""
    return [[chunk] for chunk in range(len(lengths))]


PACKINGS: dict[str, Packing] = {"best_fit": pack_best_fit, "pad": pack_separately}


def find_fair_limit(amounts: Sequence[int], total: int) -> int:
    """Returns the largest limit such that the amounts, each cut to it, sum to at most `total`.

    If all amounts fit, this is the largest amount.
    """
    remaining = total
    for index, amount in enumerate(sorted(amounts)):
        share = remaining // (len(amounts) - index)
        if amount > share:
            return share
        remaining -= amount
    return max(amounts)


def _cut_to_room(
    chunks: Sequence[Chunk], sequences: Sequence[Sequence[int]], room: int
) -> list[Chunk]:
    """Truncates metadata so that no sequence has more than `room` metadata tokens.

    All chunks of a sequence get the same limit; chunks below the limit are unchanged.

    Args:
        sequences: For each sequence, the indices of its chunks.
    """
    fitted = list(chunks)
    for sequence in sequences:
        metadata_lengths = [chunks[index].metadata_length for index in sequence]
        if sum(metadata_lengths) > room:
            limit = find_fair_limit(metadata_lengths, room)
            for index in sequence:
                fitted[index] = cut_metadata(chunks[index], limit)
    return fitted


@dataclass(slots=True)
class PackedSequence:
    """A sequence of n tokens in p chunks, without padding.

    Attributes:
        ids: int32[n].
        token_types: uint8[n], 0 for text and EOS, 1 + i for type metadata_list[i].
        loss_mask: bool[n], whether each token is a target.
        lengths: int64[p], number of tokens of each chunk.
        types: int32[p], metadata types rendered for each chunk's document (bit i:
            metadata_list[i]).
        documents: Names of the documents with a chunk in the sequence, `<shard>:<number>`.
        counts: float64[c], sums for the log; see `counts.list_count_names`.
        stream: Number of the logical stream that yields the sequence.
        position_after: The position of the stream after the sequence.
    """

    ids: np.ndarray
    token_types: np.ndarray
    loss_mask: np.ndarray
    lengths: np.ndarray
    types: np.ndarray
    documents: tuple[str, ...]
    counts: np.ndarray
    stream: int
    position_after: Position


class PackedWindow:
    """The sequences of a window, shuffled.

    Args:
        documents: int64[chunks], number in the shard of each chunk's document.
        types: int32[chunks], as in `PackedSequence`.
        counts: float64[chunks, c], the contribution of each chunk to the sums for the log.
        shard: Name of the shard.
        packing: A key of `PACKINGS`.
        capacity: Maximum number of tokens in a sequence; if `metadata_room` is given, of its text
            tokens.
        metadata_room: Maximum number of metadata tokens in a sequence; None if they count toward
            `capacity`.
        seed: Seed for the order of the sequences.

    Attributes:
        chunks: The chunks, whose metadata is truncated where it exceeds `metadata_room`.
        packing: For each sequence, the indices of its chunks in order.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        documents: np.ndarray,
        types: np.ndarray,
        counts: np.ndarray,
        *,
        shard: str,
        packing: str,
        capacity: int,
        metadata_room: int | None = None,
        seed: int,
    ) -> None:
        lengths = [len(chunk) for chunk in chunks]
        if metadata_room is None:
            packed = PACKINGS[packing](lengths, capacity)
        else:
            text_lengths = [len(chunk) - chunk.metadata_length for chunk in chunks]
            packed = PACKINGS[packing](text_lengths, capacity)
            chunks = _cut_to_room(chunks, packed, metadata_room)
            lengths = [len(chunk) for chunk in chunks]
        self.chunks = chunks
        self.packing = [packed[index] for index in permute(len(packed), seed).tolist()]

        # From here on, chunks are in the order of the shuffled sequences.
        order = np.fromiter(itertools.chain.from_iterable(self.packing), np.int64, len(chunks))
        ordered = [chunks[index] for index in order.tolist()]
        self._shard = shard
        self._ids, self._token_types, self._loss_mask = _concatenate(ordered)
        self._lengths = np.array(lengths, np.int64)[order]
        self._documents = documents[order].tolist()
        self._types = types[order]

        # Sequence s consists of the chunks from first_chunk[s] on, chunk p of the tokens from
        # first_token[p] on; plain lists, because indexing them is faster.
        first_token = _compute_offsets(self._lengths)
        first_chunk = _compute_offsets([len(sequence) for sequence in self.packing])
        self._first_token: list[int] = first_token.tolist()
        self._first_chunk: list[int] = first_chunk.tolist()

        counts = counts[order]
        counts[:, -1] += [chunk.num_left_out for chunk in ordered]
        self._counts = np.add.reduceat(counts, first_chunk[:-1]) if packed else counts

        masked_indices = np.array([chunk.masked_text_index for chunk in ordered], np.int64)
        self._loss_mask[first_token[:-1]] = False
        self._loss_mask[first_token[:-1] + masked_indices] = False

    def __len__(self) -> int:
        """Returns the number of sequences."""
        return len(self.packing)

    def list_documents(self, first: int, last: int) -> set[int]:
        """Returns the documents in a range of sequences, by their numbers in the shard.

        Args:
            first: Index of the first sequence.
            last: End of the range, exclusive.
        """
        return set(self._documents[self._first_chunk[first] : self._first_chunk[last]])

    def make_sequence(self, index: int, stream: int, position_after: Position) -> PackedSequence:
        """Returns the sequence with the given index.

        Args:
            stream: Number of the stream that yields the sequence.
            position_after: The position of the stream after the sequence.
        """
        first, last = self._first_chunk[index : index + 2]
        tokens = slice(self._first_token[first], self._first_token[last])
        return PackedSequence(
            ids=self._ids[tokens],
            token_types=self._token_types[tokens],
            loss_mask=self._loss_mask[tokens],
            lengths=self._lengths[first:last],
            types=self._types[first:last],
            documents=tuple(
                f"{self._shard}:{number}" for number in dict.fromkeys(self._documents[first:last])
            ),
            counts=self._counts[index],
            stream=stream,
            position_after=position_after,
        )


def _concatenate(chunks: Sequence[Chunk]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the concatenated ids, token types and targets of all chunks."""
    ids = [NO_IDS]
    token_types = [np.zeros(0, np.uint8)]
    targets = [np.zeros(0, np.bool_)]
    for chunk in chunks:
        document = chunk.document
        tokens = slice(chunk.start, chunk.stop)
        if chunk.has_prefix:
            ids.append(document.prefix_ids)
            token_types.append(document.prefix_token_types)
            targets.append(document.prefix_targets)
        ids.append(document.ids[tokens])
        token_types.append(document.token_types[tokens])
        targets.append(document.targets[tokens])
    return np.concatenate(ids), np.concatenate(token_types), np.concatenate(targets)


def _compute_offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the start of each concatenated part, then the end of the last (int64)."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
