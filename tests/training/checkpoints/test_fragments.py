"""A flat range of a tensor is written as boxes, and read into whatever ranges a reader has."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from bsmeta.training.checkpoints.fragments import (
    Fragment,
    FragmentLoadPlanner,
    FragmentSavePlanner,
    split_flat_range,
)

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("shape", "start", "stop", "boxes"),
    [
        ((), 0, 1, [((), ())]),
        ((), 0, 0, []),
        ((0, 3), 0, 0, []),
        ((7,), 2, 5, [((2,), (3,))]),
        ((3, 4), 4, 12, [((1, 0), (2, 4))]),
        ((3, 4), 5, 7, [((1, 1), (1, 2))]),
        ((3, 4), 3, 5, [((0, 3), (1, 1)), ((1, 0), (1, 1))]),
        ((4, 4), 3, 15, [((0, 3), (1, 1)), ((1, 0), (2, 4)), ((3, 0), (1, 3))]),
        (
            (3, 3, 3), 1, 26,
            [((0, 0, 1), (1, 1, 2)), ((0, 1, 0), (1, 2, 3)), ((1, 0, 0), (1, 3, 3)),
             ((2, 0, 0), (1, 2, 3)), ((2, 2, 0), (1, 1, 2))],
        ),
    ],
)  # fmt: skip
def test_a_range_is_split_into_boxes(
    shape: tuple[int, ...], start: int, stop: int, boxes: list[Any]
) -> None:
    split = split_flat_range(shape, start, stop)
    assert [(tuple(box.offsets), tuple(box.sizes)) for box in split] == boxes


@given(SHAPES, st.data())
def test_boxes_hold_each_element_of_a_range_once_and_in_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    numel = math.prod(shape)
    start = data.draw(st.integers(0, numel))
    stop = data.draw(st.integers(start, numel))
    indices = torch.arange(numel).reshape(shape)
    elements: list[int] = []
    boxes = split_flat_range(shape, start, stop)
    for box in boxes:
        ranges = zip(box.offsets, box.sizes, strict=True)
        part = indices[tuple(slice(offset, offset + size) for offset, size in ranges)]
        assert part.shape == box.sizes
        elements += part.flatten().tolist()
    assert elements == list(range(start, stop))
    assert len(boxes) <= max(2 * len(shape) - 1, 1)


def cut(shape: torch.Size, values: torch.Tensor, positions: list[int]) -> list[Fragment]:
    """Cuts a flattened tensor at some positions, as if each part were on another rank."""
    edges = [0, *sorted(positions), values.numel()]
    return [Fragment(shape, start, values[start:stop]) for start, stop in itertools.pairwise(edges)]


def write(state: dict[str, Any], folder: str) -> None:
    writer = dcp.FileSystemWriter(folder)
    dcp.save(state, storage_writer=writer, planner=FragmentSavePlanner(), no_dist=True)


def read(state: dict[str, Any], folder: str) -> None:
    reader = dcp.FileSystemReader(folder)
    dcp.load(state, storage_reader=reader, planner=FragmentLoadPlanner(), no_dist=True)


class Fragments(Fragment):
    """The fragments of all ranks, in one process."""

    def __init__(self, fragments: list[Fragment]) -> None:
        self.shape = fragments[0].shape
        self.values = torch.cat([fragment.values for fragment in fragments])
        self.boxes = [box for fragment in fragments for box in fragment.boxes]


@settings(deadline=None, max_examples=15)
@given(SHAPES, st.data())
def test_fragments_of_any_ranks_read_what_fragments_of_others_have_written(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    numel = math.prod(shape)
    tensor = torch.arange(1.0, numel + 1).reshape(shape)
    positions = st.lists(st.integers(0, numel), max_size=4)
    written = cut(tensor.shape, tensor.flatten(), data.draw(positions))
    whole = torch.zeros(shape)
    from_fragments, from_whole = (
        Fragments(cut(tensor.shape, torch.zeros(numel), data.draw(positions))) for _ in range(2)
    )
    with tempfile.TemporaryDirectory() as folder:
        write({"a": Fragments(written), "b": Fragments(written), "c": tensor}, folder)
        read({"a": whole, "b": from_fragments, "c": from_whole}, folder)
    assert torch.equal(whole, tensor)
    assert torch.equal(from_fragments.values, tensor.flatten())
    assert torch.equal(from_whole.values, tensor.flatten())


def test_values_are_stored_once_in_the_shape_of_the_tensor_without_the_rest_of_their_memory(
    tmp_path: Path,
) -> None:
    partition = torch.arange(100_000.0)
    fragment = Fragment(torch.Size([4, 5]), 3, partition[7:15])
    write({"weight": fragment}, str(tmp_path))
    entry = dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata["weight"]
    assert isinstance(entry, TensorStorageMetadata)
    assert entry.size == torch.Size([4, 5])
    assert [chunk.sizes for chunk in entry.chunks] == [(1, 2), (1, 5), (1, 1)]
    (file,) = tmp_path.glob("*.distcp")
    assert file.stat().st_size < 10_000


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    write({"weight": torch.zeros(4, 5)}, str(tmp_path))
    fragment = Fragment(torch.Size([5, 4]), 0, torch.zeros(3))
    with pytest.raises(CheckpointException, match=r"weight: found \[4, 5\], expected \[5, 4\]"):
        read({"weight": fragment}, str(tmp_path))
