"""Fragments: flat ranges of tensors, which ZeRO gives its ranks, in torch's distributed checkpoint.

ZeRO flattens the weights and gives each rank a range of their elements. Torch stores a tensor as
boxes, each with an offset and a size in every dimension, and reads a box from whatever boxes are
stored. A range is therefore written, and read, as the few boxes that it consists of: any number of
ranks, and engines that divide their tensors otherwise or not at all, can read the same files.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


def split_flat_range(shape: tuple[int, ...], start: int, stop: int) -> list[ChunkStorageMetadata]:
    """Splits a range of the elements of a tensor into boxes.

    The elements of each box are consecutive, and the boxes are in the order of the elements. A
    range consists of a part of a row, whole rows, and a part of a row; so a tensor with n
    dimensions (n > 0) gives at most 2n - 1 boxes.

    Args:
        shape: Shape of the whole tensor.
        start: Index of the first element in the flattened tensor.
        stop: Index after the last element.
    """
    return [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in _split(shape, start, stop)
    ]


_Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


def _split(shape: tuple[int, ...], start: int, stop: int) -> list[_Box]:
    """Splits a range of elements into the offsets and sizes of boxes."""
    if start >= stop:
        return []
    if not shape:
        return [((), ())]
    if len(shape) == 1:
        return [((start,), (stop - start,))]

    row_shape = shape[1:]
    row_numel = math.prod(row_shape)
    first_row, head = divmod(start, row_numel)
    last_row, tail = divmod(stop, row_numel)
    if first_row == last_row:
        return _split_row(row_shape, first_row, head, tail)

    boxes: list[_Box] = []
    if head:
        boxes += _split_row(row_shape, first_row, head, row_numel)
        first_row += 1
    if first_row < last_row:
        boxes.append(((first_row, *(0 for _ in row_shape)), (last_row - first_row, *row_shape)))
    return boxes + _split_row(row_shape, last_row, 0, tail)


def _split_row(row_shape: tuple[int, ...], row: int, start: int, stop: int) -> list[_Box]:
    """Splits a range of the elements of one row."""
    return [
        ((row, *offsets), (1, *sizes)) for offsets, sizes in _split(row_shape, start, stop)
    ]


class Fragment:
    """A range of the elements of a tensor, in the memory of this rank.

    It has the methods by which torch's planners describe values that are not tensors
    (`torch.distributed._checkpointable`).

    Attributes:
        shape: Shape of the whole tensor.
        values: The elements of the range, in one dimension.
    """

    def __init__(self, shape: torch.Size, start: int, values: torch.Tensor) -> None:
        """Refers to values, which are written from this memory and read into it.

        Args:
            start: Index of the first element in the flattened tensor.
        """
        self.shape = shape
        self.values = values.detach()
        self._boxes = split_flat_range(shape, start, start + values.numel())

    def size(self) -> torch.Size:
        """Returns the shape of the whole tensor, which torch compares with the stored one."""
        return self.shape

    def __create_write_items__(self, name: str, _: Fragment) -> list[WriteItem]:
        """Describes the boxes for a plan to write them."""
        properties = TensorProperties.create_from_tensor(self.values)
        return [
            WriteItem(
                index=MetadataIndex(name, box.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=box, properties=properties, size=self.shape),
            )
            for box in self._boxes
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Describes the boxes for a plan to read them."""
        return self._boxes

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the box at the offsets of an index, as a view of the values."""
        position = 0
        for box in self._boxes:
            numel = math.prod(box.sizes)
            if box.offsets == index.offset:
                return self.values.narrow(0, position, numel).view(box.sizes)
            position += numel
        raise ValueError(f"{index.fqn}: this rank has no box at {index.offset}")


class FragmentSavePlanner(dcp.DefaultSavePlanner):
    """Torch's planner, which also writes fragments."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        value = self.state_dict[index.fqn]
        if isinstance(value, Fragment):
            return value.__get_tensor_shard__(index)
        return super().lookup_object(index)


class FragmentLoadPlanner(dcp.DefaultLoadPlanner):
    """Torch's planner, which also reads fragments."""

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        value = self.state_dict[index.fqn]
        if isinstance(value, Fragment):
            return value.__get_tensor_shard__(index)
        return super().lookup_tensor(index)
