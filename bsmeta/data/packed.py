"""The pieces of a window packed into sequences, and one sequence as the model gets it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bsmeta.data.packing import best_fit, one_each
from bsmeta.data.pieces import Piece
from bsmeta.data.seeds import permutation

Packing = Callable[[Sequence[int], int], list[list[int]]]

PACKINGS: dict[str, Packing] = {"best_fit": best_fit, "pad": one_each}


@dataclass(slots=True)
class SequenceNotes:
    """What the trainer keeps of a sequence beside its tokens.

    Attributes:
        tokens: Number of tokens that are not padding.
        documents: Names of the documents with a piece in it, `<shard>:<number>`.
        counts: Sums for the log: documents that begin here, in all and by type.
        stream: The stream that it comes from.
        state: The position of that stream behind this sequence.
    """

    tokens: int
    documents: tuple[str, ...]
    counts: Counter[str]
    stream: int = -1
    state: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PackedSequence:
    """A sequence of L = `max_seq_len` tokens, as the model gets it.

    Attributes:
        arrays: Each of length L: `input_ids` (int32); `position_ids` (int32), from 0 in each piece,
            and in the padding; `loss_mask` (bool), the targets, never padding; `kinds` (uint8), 0
            for text, EOS and padding, 1 + i for metadata of type metadata_list[i];
            `document_types` (int32), bit i: the token's document was rendered with type i.
        notes: The rest.
    """

    arrays: dict[str, np.ndarray]
    notes: SequenceNotes


@dataclass(slots=True)
class PieceTable:
    """What is known of each piece of a window beyond its tokens; arrays of one entry a piece.

    Attributes:
        document: int64, number of its document in the shard.
        types: int32, the types that its document was rendered with (bit i: metadata_list[i]).
        opens: bool, whether it is the first piece of its document.
    """

    document: np.ndarray
    types: np.ndarray
    opens: np.ndarray

    def take(self, order: np.ndarray) -> PieceTable:
        """The rows in another order."""
        return PieceTable(self.document[order], self.types[order], self.opens[order])


class PackedWindow:
    """The sequences of a window, in the order in which they are given out.

    Tokens and pieces stand in that order, so that a sequence is a slice of each array: sequence s
    holds the pieces from `first_piece[s]` to `first_piece[s + 1]`, and piece p the tokens from
    `first_token[p]` to `first_token[p + 1]`. Padding is not stored.

    Args:
        pieces: The pieces.
        table: The same pieces' documents and types.
        shard: Name of the shard.
        keys: `metadata_list`.
        packing: A key of `PACKINGS`.
        capacity: Tokens of a sequence.
        seed: Of the order of the sequences.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        table: PieceTable,
        *,
        shard: str,
        keys: Sequence[str],
        packing: str,
        capacity: int,
        seed: int,
    ) -> None:
        lengths = [len(piece) for piece in pieces]
        packed = PACKINGS[packing](lengths, capacity)
        sequences = [packed[index] for index in permutation(len(packed), seed)]
        order = np.array([piece for sequence in sequences for piece in sequence], np.int64)
        chosen = [pieces[index] for index in order]
        self._ids = joined([piece.ids for piece in chosen], np.int32)
        self._kinds = joined([piece.kinds for piece in chosen], np.uint8)
        self._loss_mask = joined([piece.loss_mask for piece in chosen], np.bool_)
        self._first_token = offsets([lengths[index] for index in order])
        self._first_piece = offsets([len(sequence) for sequence in sequences])
        self._table = table.take(order)
        self._shard = shard
        self._keys = keys
        self._capacity = capacity

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._first_piece) - 1

    def sequence(self, index: int, pad: int) -> PackedSequence:
        """A sequence, filled up with the token `pad`."""
        first, last = self._first_piece[index], self._first_piece[index + 1]
        begin, end = self._first_token[first], self._first_token[last]
        # Where the pieces begin in the sequence; padding is one more, perhaps of length 0.
        begins = self._first_token[first : last + 1] - begin
        lengths = np.diff(begins, append=self._capacity)
        table = self._table
        positions = np.arange(self._capacity) - np.repeat(begins, lengths)
        arrays = {
            "input_ids": filled(self._ids[begin:end], self._capacity, pad),
            "position_ids": positions.astype(np.int32),
            "loss_mask": filled(self._loss_mask[begin:end], self._capacity, False),
            "kinds": filled(self._kinds[begin:end], self._capacity, 0),
            "document_types": np.repeat(np.append(table.types[first:last], np.int32(0)), lengths),
        }
        numbers = dict.fromkeys(table.document[first:last].tolist())
        notes = SequenceNotes(
            tokens=int(end - begin),
            documents=tuple(f"{self._shard}:{number}" for number in numbers),
            counts=self._counts(table.types[first:last][table.opens[first:last]]),
        )
        return PackedSequence(arrays, notes)

    def _counts(self, types: np.ndarray) -> Counter[str]:
        counts = Counter(documents=len(types))
        for bit, key in enumerate(self._keys):
            counts[f"documents/{key}"] = int(((types >> bit) & 1).sum())
        return counts


def joined(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    """The arrays behind each other; an empty one of the type where there is none."""
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def offsets(lengths: Sequence[int]) -> np.ndarray:
    """Where each part begins and, last, where all end (int64)."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def filled(part: np.ndarray, length: int, value: int) -> np.ndarray:
    """The array, filled up to a length with a value."""
    whole = np.full(length, value, part.dtype)
    whole[: len(part)] = part
    return whole
