"""Copies of states with fragments, whose partitions are copied once, over the last copy."""

from __future__ import annotations

import logging

import pytest
import torch

from bsmeta.training.checkpoints.fragments import Fragment
from bsmeta.training.checkpoints.state_copy import StateCopier


def make_state(partition: torch.Tensor) -> dict[str, torch.Tensor | Fragment]:
    """Returns two fragments of a partition, the last element of which is padding."""
    return {
        "first": Fragment(torch.Size([2, 3]), 2, partition[:4]),
        "second": Fragment(torch.Size([9]), 0, partition[4:9]),
        "step": torch.tensor(3.0),
    }


def list_values(state: dict[str, torch.Tensor | Fragment]) -> list[torch.Tensor]:
    return [value.values if isinstance(value, Fragment) else value for value in state.values()]


def test_fragments_are_copied_with_their_boxes_into_the_same_memory() -> None:
    partition = torch.arange(10.0)
    state = make_state(partition)
    copier = StateCopier(torch.device("cpu"))
    copied = copier.copy(state)
    partition += 100

    first, second, step = list_values(copied)
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [4, 5, 6, 7, 8]
    assert float(step) == 3
    fragment = copied["first"]
    assert isinstance(fragment, Fragment)
    assert [(tuple(box.offsets), tuple(box.sizes)) for box in fragment.boxes] == [
        ((0, 2), (1, 1)), ((1, 0), (1, 3)),
    ]  # fmt: skip
    assert second.data_ptr() - first.data_ptr() == 4 * 4  # bytes: still one partition

    later, _, _ = list_values(copier.copy(state))
    assert later.tolist() == [100, 101, 102, 103]
    assert later.data_ptr() == first.data_ptr()


def test_the_log_states_the_memory_of_partitions_once(caplog: pytest.LogCaptureFixture) -> None:
    """The partition has 2,000,000 values of 4 bytes, and the fragments only nine of them."""
    caplog.set_level(logging.INFO)
    copier = StateCopier(torch.device("cpu"))
    state = make_state(torch.zeros(2_000_000))
    copier.copy(state)
    copier.copy(state)
    assert caplog.messages == [
        "async_save: the copy of a checkpoint takes 8,000 kB of main memory, for the whole run"
    ]
