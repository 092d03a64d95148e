"""Python's garbage collector, which would otherwise stop the ranks at moments of its own choice.

Where one rank stops, all wait for it at the next collective. So what the set-up made is taken out
of its sight, and it runs only where the loop pauses anyway and every so many updates, on all ranks
at once.
"""

from __future__ import annotations

import gc
from types import TracebackType

EVERY_STEPS = 200


class GarbageCollection:
    """In its context nothing is collected but by `collect` and every `EVERY_STEPS` updates."""

    def __enter__(self) -> GarbageCollection:
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.enable()
        gc.unfreeze()

    def after(self, step: int) -> None:
        """To be called after each update."""
        if step % EVERY_STEPS == 0:
            self.collect()

    def collect(self) -> None:
        """Collects what has become unreachable since the set-up."""
        gc.collect()
