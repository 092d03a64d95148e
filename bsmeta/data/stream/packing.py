"""Pack chunks into sequences: best fit over the chunks of a window.

Packing only depends on lengths. Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling") fills sequences almost completely and never splits a chunk.

Under `row_budget=text`, the length of a chunk is that of its text, and its metadata takes room of
its own: which chunks share a sequence does not depend on the metadata.

Arrays over all tokens of a window are built once; a sequence is a slice of them. It is padded and
gets its positions only when it is put into a batch (`loader`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.data.seeds import permutation
from bsmeta.data.stream.plan import Position
from bsmeta.data.text.chunks import Chunk, within
from bsmeta.data.text.tokens import NO_IDS

Packing = Callable[[Sequence[int], int], list[list[int]]]


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


def fair_share(amounts: Sequence[int], most: int) -> int:
    """The largest limit for which the amounts, each cut to it, add up to `most` at most."""
    for number, amount in enumerate(sorted(amounts)):
        share = most // (len(amounts) - number)
        if amount > share:
            return share
        most -= amount
    return max(amounts)


def within_room(
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


PACKINGS: dict[str, Packing] = {"best_fit": best_fit, "pad": one_each}


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


@dataclass(slots=True)
class ChunkTable:
    """The properties of each chunk besides its tokens; arrays with one entry per chunk.

    Attributes:
        document: int64, number of its document in the shard.
        types: int32, as in `PackedSequence`.
        counts: float64[chunks, c], its contribution to the sums for the log.
    """

    document: np.ndarray
    types: np.ndarray
    counts: np.ndarray


class PackedWindow:
    """The sequences of a window, in the order in which they are yielded.

    Args:
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
        table: ChunkTable,
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
            chunks = within_room(chunks, packed, metadata_room)
            lengths = [len(chunk) for chunk in chunks]
        self.chunks = chunks
        sequences = [packed[index] for index in permutation(len(packed), seed).tolist()]
        self.packing = sequences
        order = np.fromiter(itertools.chain.from_iterable(sequences), np.int64, len(chunks))
        chosen = [chunks[index] for index in order.tolist()]
        self._shard = shard
        self._ids, self._token_types, self._loss_mask = joined(chosen)
        self._lengths = np.array(lengths, np.int64)[order]
        self._documents = table.document[order].tolist()
        self._types = table.types[order]
        # Sequence s holds the chunks from first_chunk[s] on, chunk p the tokens from
        # first_token[p] on; plain lists, because indexing them is faster.
        first_token = offsets(self._lengths)
        first_chunk = offsets([len(sequence) for sequence in sequences])
        self._first_token: list[int] = first_token.tolist()
        self._first_chunk: list[int] = first_chunk.tolist()
        counts = table.counts[order]
        counts[:, -1] += [chunk.left_out for chunk in chosen]
        self._counts = np.add.reduceat(counts, first_chunk[:-1]) if sequences else counts
        masked_text = np.array([chunk.masked_text for chunk in chosen], np.int64)
        self._loss_mask[first_token[:-1]] = False
        self._loss_mask[first_token[:-1] + masked_text] = False

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._first_chunk) - 1

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


def joined(chunks: Sequence[Chunk]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """The start of each part, followed by the end of the last one (int64)."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
