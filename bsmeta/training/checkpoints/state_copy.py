"""Copies of an engine's state in main memory, which a thread writes (`async_save`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bsmeta.core.files import format_bytes
from bsmeta.training.checkpoints.fragments import Fragment

logger = logging.getLogger(__name__)


class StateCopier:
    """Copies the state of an engine to main memory, each time over the last copy.

    The first write to new memory takes several times as long as a copy, because the system has to
    find and clear each page. For copies from a GPU the memory is page-locked (pinned); otherwise
    the driver would copy each part twice.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepares copies.

        Args:
            device: The device of the model.
        """
        self._pins_memory = device.type == "cuda"
        self._has_copied = False

    def copy(self, state: dict[str, torch.Tensor | Fragment]) -> dict[str, torch.Tensor | Fragment]:
        """Returns a copy of a state, which is valid until the next call.

        Memory that tensors share is copied once, and as a whole: under ZeRO, all fragments of a
        partition are.
        """
        tensors = {
            name: value.values if isinstance(value, Fragment) else value
            for name, value in state.items()
        }
        if not self._has_copied:
            logger.info(
                "async_save: the copy of a checkpoint takes %s of main memory%s, for the whole run",
                format_bytes(_count_storage_bytes(tensors.values())),
                " (page-locked)" if self._pins_memory else "",
            )
            self._has_copied = True

        copied_tensors = self._stager.stage(tensors)
        return {
            name: value.replace_values(copied_tensors[name])
            if isinstance(value, Fragment)
            else copied_tensors[name]
            for name, value in state.items()
        }

    @cached_property
    def _stager(self) -> Any:
        """Torch's stager, which keeps the memory of its copies."""
        from torch.distributed.checkpoint import staging  # slow; only needed if it copies

        return staging.DefaultStager(
            staging.StagingOptions(
                use_pinned_memory=self._pins_memory,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=self._pins_memory,
            )
        )


def _count_storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Returns the bytes of this rank's memory of tensors; shared memory counts once."""
    bytes_by_address: dict[int, int] = {}
    for tensor in tensors:
        local_tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local_tensor.untyped_storage()
        bytes_by_address[storage.data_ptr()] = storage.nbytes()
    return sum(bytes_by_address.values())
