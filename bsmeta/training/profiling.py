"""`profile=true`: a trace of some steps by torch's profiler, to be opened in a browser.

Chrome's about:tracing and https://ui.perfetto.dev read it. Its ranges are named `bsmeta: …` after
the phases of the loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

FOLDER = "profile"


class Profile:
    """Records a trace of the steps `first` to `last`; does nothing if it is off.

    Args:
        steps: First and last step, or None: off.
        folder: The run folder; each rank writes `profile/steps-{first}-{last}-rank{r}.json` there.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path, rank: int) -> None:
        self._steps = steps
        self._folder = folder
        self._rank = rank
        self._running: profile | None = None

    def range(self, name: str) -> AbstractContextManager[Any]:
        """A named range of the trace."""
        return nullcontext() if self._running is None else record_function(f"bsmeta: {name}")

    def before(self, step: int) -> None:
        """To be called before each step."""
        if self._steps is not None and self._running is None and step == self._steps[0]:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()

    def after(self, step: int) -> None:
        """To be called after each step."""
        if self._steps is not None and step == self._steps[1]:
            self.stop()

    def stop(self) -> None:
        """Writes the trace, even if the run ends before the last step to record."""
        if self._running is None or self._steps is None:
            return
        running, self._running = self._running, None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        running.stop()
        (self._folder / FOLDER).mkdir(exist_ok=True)
        name = f"steps-{self._steps[0]}-{self._steps[1]}-rank{self._rank}.json"
        running.export_chrome_trace(str(self._folder / FOLDER / name))
