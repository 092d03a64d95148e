"""Fragments: flat ranges of tensors, which ZeRO gives its ranks, in torch's distributed checkpoint.

ZeRO flattens the weights and gives each rank a range of their elements. Torch stores a tensor as
boxes, each with an offset and a size in every dimension, and reads a box from whatever boxes are
stored. A range is therefore written, and read, as the few boxes that it consists of: any number of
ranks, and engines that divide their tensors otherwise or not at all, can read the same files.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

_Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


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
    return [((row, *offsets), (1, *sizes)) for offsets, sizes in _split(row_shape, start, stop)]


class Fragment:
    """A range of the elements of a tensor, in the memory of this rank.

    Attributes:
        shape: Shape of the whole tensor.
        values: The elements of the range, in one dimension.
        boxes: The boxes that the range consists of.
    """

    def __init__(self, shape: torch.Size, start: int, values: torch.Tensor) -> None:
        """Refers to values, which are written from this memory and read into it.

        Args:
            start: Index of the first element in the flattened tensor.
        """
        self.shape = shape
        self.values = values.detach()
        self.boxes = split_flat_range(shape, start, start + values.numel())

    def replace_values(self, values: torch.Tensor) -> Fragment:
        """Returns the same range with its values in other memory."""
        fragment = copy.copy(self)
        fragment.values = values
        return fragment

    def get_box(self, offsets: torch.Size | None) -> torch.Tensor:
        """Returns the values of the box at some offsets, as a view."""
        position = 0
        for box in self.boxes:
            numel = math.prod(box.sizes)
            if box.offsets == offsets:
                return self.values.narrow(0, position, numel).view(box.sizes)
            position += numel
        raise KeyError(offsets)


class FragmentSavePlanner(dcp.DefaultSavePlanner):
    """Torch's planner, which also writes fragments."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._fragments, tensors = _separate_fragments(state_dict)
        super().set_up_planner(tensors, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = [*plan.items]
        for name, fragment in self._fragments.items():
            properties = TensorProperties.create_from_tensor(fragment.values)
            for box in fragment.boxes:
                data = TensorWriteData(chunk=box, properties=properties, size=fragment.shape)
                index = MetadataIndex(name, box.offsets)
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        return replace(plan, items=items)

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self._fragments:
            return self._fragments[index.fqn].get_box(index.offset)
        return super().lookup_object(index)


class FragmentLoadPlanner(dcp.DefaultLoadPlanner):
    """Torch's planner, which also reads fragments."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._fragments, tensors = _separate_fragments(state_dict)
        super().set_up_planner(tensors, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        plan = super().create_local_plan()
        assert self.metadata is not None
        items = [*plan.items]
        for name, fragment in self._fragments.items():
            entry = self.metadata.state_dict_metadata.get(name)
            if not isinstance(entry, TensorStorageMetadata):
                raise ValueError(f"{name} is missing")
            if entry.size != fragment.shape:
                raise ValueError(f"{name}: found {[*entry.size]}, expected {[*fragment.shape]}")
            items += create_read_items_for_chunk_list(name, entry, fragment.boxes)
        return replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        if index.fqn in self._fragments:
            return self._fragments[index.fqn].get_box(index.offset)
        return super().lookup_tensor(index)


def _separate_fragments(state: dict[str, Any]) -> tuple[dict[str, Fragment], dict[str, Any]]:
    """Returns the fragments of a state, and its other values."""
    fragments = {name: value for name, value in state.items() if isinstance(value, Fragment)}
    others = {name: value for name, value in state.items() if name not in fragments}
    return fragments, others
