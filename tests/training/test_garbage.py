"""Garbage is collected at the same steps on all ranks, and otherwise not at all."""

from __future__ import annotations

import gc
from typing import Any

from bsmeta.training.garbage import STEPS_PER_COLLECTION, GarbageCollection


def test_garbage_is_collected_at_regular_steps() -> None:
    with GarbageCollection() as garbage:
        assert not gc.isenabled()
        loop: list[Any] = []
        loop.append(loop)
        before = gc.get_stats()[2]["collections"]
        garbage.collect_if_due(STEPS_PER_COLLECTION - 1)
        assert gc.get_stats()[2]["collections"] == before
        garbage.collect_if_due(STEPS_PER_COLLECTION)
        assert gc.get_stats()[2]["collections"] == before + 1
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
