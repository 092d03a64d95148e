"""Cuts encoded documents into chunks that fit a sequence, and packs a window's chunks.

A document longer than `max_seq_len` is cut without splitting an inserted string (a tag, an entity).
Under `row_budget=text`, only its text (with EOS, and BOS before each chunk) is measured, so it is
cut at the same positions whatever its metadata. Training, evaluation and `explain` use the same
chunks.

Packing only depends on lengths. Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling") fills sequences almost completely and never splits a chunk. Under
`row_budget=text`, the length of a chunk is the length of its text, and its metadata has a separate
budget: which chunks share a sequence does not depend on the metadata. A sequence is a slice of
arrays over all tokens of a window. It is padded and gets its positions only when it is put into a
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


@dataclass(slots=True)  # not frozen: that would take four times as long to create
class Chunk:
    """Tokens `start` to `stop` of a document (prefix not counted), after its prefix if `prefixed`.

    Arrays are computed on access; all have the length of the chunk.

    Attributes:
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
        return self._join_prefix(self.document.prefix_ids, self.document.ids)

    @property
    def token_types(self) -> np.ndarray:
        """Token types (uint8): 0 for text and EOS, 1 + i for type metadata_list[i]."""
        return self._join_prefix(self.document.prefix_token_types, self.document.token_types)

    @property
    def text_starts(self) -> np.ndarray:
        """First character of the original text in each token (int32); see `EncodedDocument`."""
        return self._join_prefix(np.zeros_like(self.document.prefix_ids), self.document.text_starts)

    @property
    def text_ends(self) -> np.ndarray:
        """End of the original text's characters in each token (int32)."""
        return self._join_prefix(np.zeros_like(self.document.prefix_ids), self.document.text_ends)

    @property
    def loss_mask(self) -> np.ndarray:
        """Which tokens are targets (bool): all that the configuration trains on, except two.

        The exceptions are the first token of the chunk, which nothing predicts, and `masked_text`.
        """
        mask = self._join_prefix(self.document.prefix_targets, self.document.targets).copy()
        mask[[0, self.masked_text]] = False
        return mask

    @property
    def masked_text(self) -> int:
        """The first token of text after the prefix if it is excluded from the loss; otherwise 0.

        Without a prefix, that token comes first and is not a target. `loss_on_first_text=false`
        also excludes it after a prefix.
        """
        if not self.prefixed or self.first_text_is_target:
            return 0

        token_types = self.document.token_types
        first = max(self.start, self.document.lead)
        if first < self.stop and token_types[first] == 0:
            return self.prefix_length + first - self.start

        text = np.flatnonzero(token_types[first : self.stop] == 0)
        return self.prefix_length + first - self.start + int(text[0]) if len(text) else 0

    def _join_prefix(self, prefix: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Slices an array to the chunk, after the values of its prefix if there is one."""
        chunk_tokens = tokens[self.start : self.stop]
        return np.concatenate((prefix, chunk_tokens)) if self.prefixed else chunk_tokens


def cut_document(encoded: EncodedDocument, config: DataConfig) -> list[Chunk]:
    """Cuts a document into chunks, in order; together they contain each of its tokens once.

    No chunk is longer than `max_seq_len`, none consists of EOS alone, and none ends inside an
    inserted string, unless that string alone is longer than a chunk. Under `row_budget=text`, none
    has more than `max_seq_len` tokens of text and `compute_metadata_room` tokens of metadata.
    """
    if config.row_budget == BY_TEXT:
        room = compute_metadata_room(config)
        return [
            cut_metadata(chunk, room) for chunk in _cut_by_text(encoded, config.metadata_config)
        ]

    metadata = config.metadata_config
    end = len(encoded.ids)
    prefix_length = len(encoded.prefix_ids)
    chunks: list[Chunk] = []
    start = 0
    while start < end - 1:  # EOS alone is not worth training on
        prefixed = prefix_length > 0 and (not chunks or metadata.prefix_on == "every_piece")
        room = metadata.max_seq_len - (prefix_length if prefixed else 0)
        stop = end if end - start <= room else _find_boundary(encoded.run, start, start + room)
        if stop == end - 1:
            stop = _find_boundary(encoded.run, start, stop - 1)

        chunks.append(Chunk(encoded, start, stop, prefixed, metadata.loss_on_first_text))
        start = stop
    return chunks


def _find_boundary(run: np.ndarray, start: int, stop: int) -> int:
    """Finds the last position after `start` and up to `stop` that is not in an inserted string.

    It is `stop` itself if one string extends from `start` beyond `stop`.
    """
    if run[stop] < 0 or run[stop - 1] != run[stop]:
        return stop

    outside = np.flatnonzero(run[start:stop] != run[stop])
    return start + int(outside[-1]) + 1 if len(outside) else stop


def _cut_by_text(encoded: EncodedDocument, metadata: MetadataConfig) -> list[Chunk]:
    """Cuts a document every `max_seq_len` tokens of text; EOS is one, BOS is in each chunk.

    Without BOS, nothing but metadata comes before the first token of text of a chunk: without
    metadata there is no loss on it, so there is none with metadata.
    """
    text_tokens = np.flatnonzero(encoded.is_text)
    end = len(text_tokens)
    size = metadata.max_seq_len - encoded.bos
    later = encoded if metadata.prefix_on == "every_piece" else encoded.without_prefix
    first_is_target = encoded.bos > 0 and metadata.loss_on_first_text

    chunks: list[Chunk] = []
    first = start = 0  # counted in text tokens, and in all tokens
    while first < end - 1:  # EOS alone is not worth training on
        last = min(first + size, end)
        last -= last == end - 1
        stop = int(text_tokens[last - 1]) + 1  # tags before a token belong to its chunk
        document = later if chunks else encoded
        chunks.append(Chunk(document, start, stop, True, first_is_target))
        first = last
        start = stop
    return chunks


def cut_metadata(chunk: Chunk, limit: int) -> Chunk:
    """Cuts the metadata of a chunk to `limit` tokens and keeps its text (`row_budget=text`).

    A prefix is cut but keeps its separator, or is left out if nothing else of it would fit. The
    remaining room is for the inserted strings, up to the first that does not fit; appended metadata
    may be cut.
    """
    metadata_length = chunk.metadata_length
    if metadata_length <= limit:
        return chunk

    document = chunk.document
    tokens = slice(chunk.start, chunk.stop)

    # A prefix that would consist of its separator alone is left out, and the lead with it.
    prefix = chunk.prefix_length - document.bos
    lead = max(document.lead - chunk.start, 0)
    kept_prefix = min(prefix, limit - lead)
    if kept_prefix < prefix and kept_prefix <= len(document.separator):
        kept_prefix = lead = 0

    # The remaining room is for inserted strings and appended metadata.
    is_kept = document.is_text[tokens].copy()
    is_kept[:lead] = True
    inserted = np.flatnonzero(~is_kept)
    inserted = inserted[inserted >= document.lead - chunk.start]
    appended = document.suffix if chunk.stop == len(document.ids) else 0
    room = limit - kept_prefix - lead
    is_kept[inserted[: count_fitting(document.run[tokens][inserted], room, appended)]] = True

    shorter = replace(
        _cut_prefix(document, kept_prefix) if kept_prefix < prefix else document,
        ids=document.ids[tokens][is_kept],
        token_types=document.token_types[tokens][is_kept],
        targets=document.targets[tokens][is_kept],
        run=document.run[tokens][is_kept],
        lead=lead,
        suffix=int(is_kept[len(is_kept) - 1 - appended : -1].sum()) if appended else 0,
        locate=partial(_locate_kept_tokens, document, tokens, is_kept),
    )
    cut_chunk = Chunk(shorter, 0, len(shorter.ids), True, chunk.first_text_is_target)
    cut_chunk.left_out = chunk.left_out + metadata_length - cut_chunk.metadata_length
    return cut_chunk


def _locate_kept_tokens(
    document: EncodedDocument, tokens: slice, is_kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the characters of the original text that the kept tokens cover."""
    return document.text_starts[tokens][is_kept], document.text_ends[tokens][is_kept]


def count_fitting(run: np.ndarray, room: int, divisible: int) -> int:
    """Counts the first inserted tokens that fit without dividing a string.

    Args:
        run: The string of each token.
        room: Largest number of tokens.
        divisible: Number of last tokens that may be divided anywhere.
    """
    count = min(room, len(run))
    while 0 < count < len(run) - divisible and run[count - 1] == run[count]:
        count -= 1
    return count


def _cut_prefix(document: EncodedDocument, length: int) -> EncodedDocument:
    """Cuts the prefix of a document to `length` tokens besides BOS; 0 removes it."""
    if not length:
        return document.without_prefix

    end = document.bos + length
    separator_start = end - len(document.separator)
    token_types = document.prefix_token_types[:end].copy()
    token_types[separator_start:] = token_types[separator_start - 1]
    return replace(
        document,
        prefix_ids=np.concatenate((document.prefix_ids[:separator_start], document.separator)),
        prefix_token_types=token_types,
        prefix_targets=document.prefix_targets[:end],
        prefix_cut=True,
    )


def cut_alike(plain: EncodedDocument, chunks: Sequence[Chunk], config: DataConfig) -> list[Chunk]:
    """Cuts a document without metadata at the same positions as its chunks with metadata.

    Each chunk then has the same text as its counterpart, up to the token that contains the cut.
    EOS stays with the last text, even if its counterpart contains only closing tags besides EOS; if
    the chunk then exceeds `max_seq_len` by one token, the last text token is cut off with EOS.
    """
    end = len(plain.ids)
    text_ends = [chunk.document.text_starts[chunk.stop] for chunk in chunks[:-1]]
    stops = [*np.searchsorted(plain.text_starts, text_ends).tolist(), end]
    cuts = [
        Chunk(plain, start, stop, chunk.prefixed and len(plain.prefix_ids) > 0)
        for chunk, start, stop in zip(chunks, [0, *stops[:-1]], stops, strict=True)
        if stop > start
    ]
    if not cuts or cuts[-1].start < end - 1:
        return cuts

    # The last chunk is EOS alone, which nothing would predict: it joins the chunk before it. If
    # that would be too long, the last token of text joins EOS instead.
    eos_alone = cuts.pop()
    if cuts:
        last = replace(cuts.pop(), stop=end)
        if len(last) > config.metadata_config.max_seq_len:
            cuts.append(replace(last, stop=end - 2))
            last = replace(eos_alone, start=end - 2)
        cuts.append(last)
    return cuts


def pack_best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs chunks into as few sequences as best-fit decreasing finds.

    Each chunk, longest first, goes where it leaves the least room; a new sequence is opened only
    if it fits nowhere.

    Args:
        lengths: Lengths in tokens, each from 1 to `capacity`.

    Returns:
        For each sequence, the indices of its chunks.
    """
    sequences: list[list[int]] = []

    # The sequences with `room` tokens left are in `by_room[room]`, and bit `room` of `rooms` is set
    # if there are any, so that the best fit is found directly.
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 0
    longest_first = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    for chunk in longest_first.tolist():
        length = lengths[chunk]
        sufficient = rooms >> length
        if sufficient:
            room = length + (sufficient & -sufficient).bit_length() - 1
            sequence = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
            sequences[sequence].append(chunk)
        else:
            room = capacity
            sequence = len(sequences)
            sequences.append([chunk])

        remaining = room - length
        if remaining:
            by_room[remaining].append(sequence)
            rooms |= 1 << remaining
    return sequences


def pack_separately(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts each chunk into its own sequence, regardless of the room left (`packing: pad`)."""
    return [[chunk] for chunk in range(len(lengths))]


PACKINGS: dict[str, Packing] = {"best_fit": pack_best_fit, "pad": pack_separately}


def find_fair_share(amounts: Sequence[int], total: int) -> int:
    """Finds the largest limit for which the amounts, each cut to it, add up to `total` at most."""
    remaining = total
    for number, amount in enumerate(sorted(amounts)):
        share = remaining // (len(amounts) - number)
        if amount > share:
            return share
        remaining -= amount
    return max(amounts)


def _cut_to_room(
    chunks: Sequence[Chunk], sequences: Sequence[Sequence[int]], room: int
) -> list[Chunk]:
    """Cuts metadata so that no sequence has more than `room` tokens of it.

    All chunks of a sequence get the same limit; those below it are unchanged.
    """
    fitted = list(chunks)
    amounts = [chunk.metadata_length for chunk in chunks]
    for sequence in sequences:
        sequence_amounts = [amounts[index] for index in sequence]
        if sum(sequence_amounts) > room:
            share = find_fair_share(sequence_amounts, room)
            for index in sequence:
                fitted[index] = cut_metadata(chunks[index], share)
    return fitted


@dataclass(slots=True)
class PackedSequence:
    """A sequence of n tokens in p chunks, not padded yet.

    Attributes:
        ids: int32[n].
        token_types: uint8[n], 0 for text and EOS, 1 + i for type metadata_list[i].
        loss_mask: bool[n], the targets.
        lengths: int64[p], number of tokens of each chunk.
        types: int32[p], metadata types rendered for each chunk's document (bit i:
            metadata_list[i]).
        documents: Names of the documents with a chunk in it, `<shard>:<number>`.
        counts: float64[c], sums for the log; see `counts.count_names`.
        stream: The logical stream that yields it.
        position_after: The position of the stream after this sequence.
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
        documents: int64[chunks], number of each chunk's document in the shard.
        types: int32[chunks], as in `PackedSequence`.
        counts: float64[chunks, c], the contribution of each chunk to the sums for the log.
        packing: A key of `PACKINGS`.
        capacity: Tokens of a sequence, or its tokens of text if `compute_metadata_room` is given.
        metadata_room: Tokens of metadata in a sequence, if these do not count toward its length.
        seed: Seed for the order of the sequences.

    Attributes:
        chunks: The chunks, with metadata cut if it exceeds `compute_metadata_room`.
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

        # Sequence s holds the chunks from first_chunk[s] on, chunk p the tokens from
        # first_token[p] on; plain lists, because indexing them is faster.
        first_token = _compute_offsets(self._lengths)
        first_chunk = _compute_offsets([len(sequence) for sequence in self.packing])
        self._first_token: list[int] = first_token.tolist()
        self._first_chunk: list[int] = first_chunk.tolist()

        counts = counts[order]
        counts[:, -1] += [chunk.left_out for chunk in ordered]
        self._counts = np.add.reduceat(counts, first_chunk[:-1]) if packed else counts

        masked_text = np.array([chunk.masked_text for chunk in ordered], np.int64)
        self._loss_mask[first_token[:-1]] = False
        self._loss_mask[first_token[:-1] + masked_text] = False

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.packing)

    def list_documents(self, first: int, last: int) -> set[int]:
        """Returns the numbers of the documents with a chunk in the sequences of a range."""
        return set(self._documents[self._first_chunk[first] : self._first_chunk[last]])

    def make_sequence(self, index: int, stream: int, position_after: Position) -> PackedSequence:
        """Returns a sequence of stream `stream`, with the position after it."""
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
    """Concatenates the ids, token types and targets of all chunks."""
    ids = [NO_IDS]
    token_types = [np.zeros(0, np.uint8)]
    targets = [np.zeros(0, np.bool_)]
    for chunk in chunks:
        document = chunk.document
        tokens = slice(chunk.start, chunk.stop)
        if chunk.prefixed:
            ids.append(document.prefix_ids)
            token_types.append(document.prefix_token_types)
            targets.append(document.prefix_targets)
        ids.append(document.ids[tokens])
        token_types.append(document.token_types[tokens])
        targets.append(document.targets[tokens])
    return np.concatenate(ids), np.concatenate(token_types), np.concatenate(targets)


def _compute_offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Computes the start of each part, followed by the end of the last one (int64)."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
