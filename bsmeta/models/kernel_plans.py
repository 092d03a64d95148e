"""Disables attention kernels that are planned for each shape, for batches of many shapes.

cuDNN plans its attention for each new number of rows and length, which is expected to take 25 to
150 ms (not measured). Without it, sdpa uses flash or memory-efficient attention, which need no
plan. cuDNN is disabled, not given the lowest priority, because torch sets its own order at the
first call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def disable_planned_attention() -> Iterator[None]:
    """Disables cuDNN for sdpa within the context."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    disable_planned_attention_for_good()
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def disable_planned_attention_for_good() -> None:
    """Disables cuDNN for sdpa for the rest of the process.

    Training needs this, because its backward pass may recompute layers outside of any context.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
