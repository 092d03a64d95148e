"""Python's garbage collector, which would otherwise pause the ranks at arbitrary times.

When one rank pauses, all wait for it at the next collective. So the objects created during set-up
are frozen, and the collector runs only when the loop pauses anyway and every `EVERY_STEPS` steps,
on all ranks at once.
"""

from __future__ import annotations

import gc
from types import TracebackType

EVERY_STEPS = 200


class GarbageCollection:
    """A context in which garbage is collected only by `collect`, and every `EVERY_STEPS` steps."""

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
        """To be called after each step."""
        if step % EVERY_STEPS == 0:
            self.collect()

    def collect(self) -> None:
        """Collects objects that have become unreachable since the set-up."""
        gc.collect()
