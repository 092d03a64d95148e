"""Cut encoded documents into chunks that fit a sequence, and pack those of a window into sequences.

A document longer than `max_seq_len` is cut without splitting an inserted string (a tag, an entity).
Under `row_budget=text`, only its text (with EOS, and BOS before each chunk) is measured, so that it
is cut at the same places whatever its metadata. Training, evaluation and `explain` use the same
chunks.

Packing only depends on lengths. Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling") fills sequences almost completely and never splits a chunk. Under
`row_budget=text`, the length of a chunk is that of its text, and its metadata takes room of its
own: which chunks share a sequence does not depend on the metadata. A sequence is a slice of arrays
over all tokens of a window. It is padded and gets its positions only when it is put into a batch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bsmeta.config.data import BY_TEXT, DataConfig, metadata_room
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data import permutation
from bsmeta.data.text.encoding import EncodedDocument
from bsmeta.data.text.tokens import NO_IDS

if TYPE_CHECKING:
    from bsmeta.data.stream.plan import Position

Packing = Callable[[Sequence[int], int], list[list[int]]]


@dataclass(slots=True)  # frozen, it would take four times as long to create
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
        return [within(chunk, room) for chunk in _cut_by_text(encoded, config.metadata_config)]
    metadata = config.metadata_config
    end, prefix = len(encoded.ids), len(encoded.prefix_ids)
    chunks: list[Chunk] = []
    start = 0
    while start < end - 1:  # EOS alone is not worth training on
        prefixed = prefix > 0 and (not chunks or metadata.prefix_on == "every_piece")
        room = metadata.max_seq_len - (prefix if prefixed else 0)
        stop = end if end - start <= room else _boundary(encoded.run, start, start + room)
        if stop == end - 1:
            stop = _boundary(encoded.run, start, stop - 1)
        chunks.append(Chunk(encoded, start, stop, prefixed, metadata.loss_on_first_text))
        start = stop
    return chunks


def _boundary(run: np.ndarray, start: int, stop: int) -> int:
    """The last place after `start` and up to `stop` that is not inside an inserted string.

    It is `stop` itself if one string extends from `start` beyond `stop`.
    """
    if run[stop] < 0 or run[stop - 1] != run[stop]:
        return stop
    outside = np.flatnonzero(run[start:stop] != run[stop])
    return start + int(outside[-1]) + 1 if len(outside) else stop


def _cut_by_text(encoded: EncodedDocument, metadata: MetadataConfig) -> list[Chunk]:
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


def _located(
    document: EncodedDocument, part: slice, is_kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return document.text_starts[part][is_kept], document.text_ends[part][is_kept]


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


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs chunks into as few sequences as best-fit decreasing finds.

    Each chunk, longest first, goes where it leaves the least room; a new sequence is opened only
    if it fits nowhere. The sequences with `room` tokens left are in `by_room[room]`, and bit
    `room` of `rooms` is set if there are any, so that the best fit is found directly.

    Args:
        lengths: Lengths in tokens, each from 1 to `capacity`.

    Returns:
        For each sequence, the indices of its chunks.
    """
    sequences: list[list[int]] = []
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 0
    for chunk in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        length = lengths[chunk]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            sequence = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
            sequences[sequence].append(chunk)
        else:
            room = capacity
            sequence = len(sequences)
            sequences.append([chunk])
        left = room - length
        if left:
            by_room[left].append(sequence)
            rooms |= 1 << left
    return sequences


def one_each(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """One chunk per sequence, regardless of the room left (`packing: pad`)."""
    return [[chunk] for chunk in range(len(lengths))]


PACKINGS: dict[str, Packing] = {"best_fit": best_fit, "pad": one_each}


def fair_share(amounts: Sequence[int], most: int) -> int:
    """The largest limit for which the amounts, each cut to it, add up to `most` at most."""
    for number, amount in enumerate(sorted(amounts)):
        share = most // (len(amounts) - number)
        if amount > share:
            return share
        most -= amount
    return max(amounts)


def _within_room(
    chunks: Sequence[Chunk], sequences: Sequence[Sequence[int]], room: int
) -> list[Chunk]:
    """The chunks, with metadata cut where a sequence has more than `room` tokens of it.

    No chunk of a sequence is cut to less than another one keeps.
    """
    found = list(chunks)
    amounts = [chunk.metadata_length for chunk in chunks]
    for sequence in sequences:
        own = [amounts[index] for index in sequence]
        if sum(own) > room:
            share = fair_share(own, room)
            for index in sequence:
                found[index] = within(chunks[index], share)
    return found


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
        counts: float64[c], sums for the log; see `windows.count_names`.
        stream: The stream that it comes from.
        position_after: The position of that stream after this sequence.
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
    """The sequences of a window, in the order in which they are yielded.

    Args:
        documents: int64[chunks], number of each chunk's document in the shard.
        types: int32[chunks], as in `PackedSequence`.
        counts: float64[chunks, c], the contribution of each chunk to the sums for the log.
        packing: A key of `PACKINGS`.
        capacity: Tokens of a sequence, or its tokens of text if `metadata_room` is given.
        metadata_room: Tokens of metadata in a sequence, if they do not count as its length.
        seed: Seed for the order of the sequences.

    Attributes:
        chunks: The chunks as they are trained on.
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
            text = [len(chunk) - chunk.metadata_length for chunk in chunks]
            packed = PACKINGS[packing](text, capacity)
            chunks = _within_room(chunks, packed, metadata_room)
            lengths = [len(chunk) for chunk in chunks]
        self.chunks = chunks
        self.packing = [packed[index] for index in permutation(len(packed), seed).tolist()]
        order = np.fromiter(itertools.chain.from_iterable(self.packing), np.int64, len(chunks))
        chosen = [chunks[index] for index in order.tolist()]
        self._shard = shard
        self._ids, self._token_types, self._loss_mask = _joined(chosen)
        self._lengths = np.array(lengths, np.int64)[order]
        self._documents = documents[order].tolist()
        self._types = types[order]
        # Sequence s holds the chunks from first_chunk[s] on, chunk p the tokens from
        # first_token[p] on; plain lists, because indexing them is faster.
        first_token = _offsets(self._lengths)
        first_chunk = _offsets([len(sequence) for sequence in self.packing])
        self._first_token: list[int] = first_token.tolist()
        self._first_chunk: list[int] = first_chunk.tolist()
        counts = counts[order]
        counts[:, -1] += [chunk.left_out for chunk in chosen]
        self._counts = np.add.reduceat(counts, first_chunk[:-1]) if packed else counts
        masked_text = np.array([chunk.masked_text for chunk in chosen], np.int64)
        self._loss_mask[first_token[:-1]] = False
        self._loss_mask[first_token[:-1] + masked_text] = False

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.packing)

    def documents(self, first: int, last: int) -> set[int]:
        """Numbers of the documents with a chunk in the sequences from `first` to before `last`."""
        return set(self._documents[self._first_chunk[first] : self._first_chunk[last]])

    def sequence(self, index: int, stream: int, position_after: Position) -> PackedSequence:
        """A sequence, with its stream and position."""
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


def _joined(chunks: Sequence[Chunk]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ids, token types and targets of all chunks, each concatenated."""
    ids, token_types, targets = [NO_IDS], [np.zeros(0, np.uint8)], [np.zeros(0, np.bool_)]
    for chunk in chunks:
        document, start, stop = chunk.document, chunk.start, chunk.stop
        if chunk.prefixed:
            ids.append(document.prefix_ids)
            token_types.append(document.prefix_token_types)
            targets.append(document.prefix_targets)
        ids.append(document.ids[start:stop])
        token_types.append(document.token_types[start:stop])
        targets.append(document.targets[start:stop])
    return np.concatenate(ids), np.concatenate(token_types), np.concatenate(targets)


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """The start of each part, followed by the end of the last one (int64)."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
