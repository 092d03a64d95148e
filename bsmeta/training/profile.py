"""`profile=true`: traces of some steps by torch's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bsmeta.core.progress import report_opaque_work

PROFILE_FOLDER = "profile"
"""Folder of the traces in the run folder."""


class Profile:
    """Records a trace of some steps by torch's profiler.

    Chrome's about:tracing and https://ui.perfetto.dev read it. Its ranges are named `bsmeta: …`
    after the phases of the loop. Each rank writes `profile/steps-{first}-{last}-rank{r}.json` in
    the run folder.

    Args:
        steps: The first and the last step to record (`profile_steps`); None: record nothing.
        folder: The run folder.
    """

    def __init__(self, steps: Sequence[int] | None, folder: Path, rank: int) -> None:
        self._first = 0 if steps is None else steps[0]
        self._last = 0 if steps is None else steps[1]
        self._file = folder / PROFILE_FOLDER / f"steps-{self._first}-{self._last}-rank{rank}.json"
        self._profiler: profile | None = None

    def mark_range(self, name: str) -> AbstractContextManager[Any]:
        """Returns a context in which the trace has a range of this name."""
        if self._profiler is None:
            return nullcontext()
        return record_function(f"bsmeta: {name}")

    def start_if_due(self, step: int) -> None:
        """Starts the trace if `step` is the first step to record."""
        if self._profiler is None and step == self._first:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=activities)
            self._profiler.start()

    def stop_if_due(self, step: int) -> None:
        """Writes the trace if `step` is the last step to record."""
        if step == self._last:
            self.stop()

    def stop(self) -> None:
        """Writes the trace if one has been started, also before the last step to record."""
        if self._profiler is None:
            return

        profiler = self._profiler
        self._profiler = None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()

        self._file.parent.mkdir(parents=True, exist_ok=True)
        with report_opaque_work():
            profiler.export_chrome_trace(str(self._file))
