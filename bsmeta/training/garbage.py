"""Controls when the processes of a run collect garbage.

When Python's garbage collector pauses one rank, all wait for it at the next collective. So the
objects created during set-up are frozen, and the collector runs only when the loop pauses anyway
and every `STEPS_PER_COLLECTION` steps, on all ranks at once.
"""

from __future__ import annotations

import gc

STEPS_PER_COLLECTION = 200


class GarbageCollection:
    """Context that disables automatic garbage collection.

    Garbage is collected every `STEPS_PER_COLLECTION` steps, at the same step on all ranks, and when
    the loop pauses anyway (`collect`).
    """

    def __enter__(self) -> GarbageCollection:
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()

    def collect_if_due(self, step: int) -> None:
        """Collects garbage after every `STEPS_PER_COLLECTION`-th step."""
        if step % STEPS_PER_COLLECTION == 0:
            self.collect()

    def collect(self) -> None:
        """Collects garbage now."""
        gc.collect()
