"""One update after the other, each made while the data of the next is fetched.

What the ranks must know before an update (how many targets it has, and whether to go on) they add
up together with the losses of the update before, so that a step needs one collective.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bsmeta.training.distributed import Processes
from bsmeta.training.feed import Feed, StepData
from bsmeta.training.profiling import Profile
from bsmeta.training.signals import StopRequest, WaitEnded
from bsmeta.training.sums import add_up
from bsmeta.training.update import Update, Updater
from bsmeta.training.watchdog import Watchdog, report_of, reported_error

NEXT = "next/"
"""Before the names of what the ranks add up of the next step."""


class Stepper:
    """Makes the updates of this rank. All ranks call `begin` and `update` together.

    Args:
        updater: Makes one update.
        last: The number of the last update.
        ask: What this rank tells the others with each update.
        processes: The ranks.
        watchdog: Is told what the loop does.
        profile: Is told, too.
        stop: Ends the wait for data.
        agrees: Whether the ranks agree before each update that all of them have its data. Needed
            where an update begins before what they added up with the one before it is read.
    """

    def __init__(
        self, updater: Updater, last: int, ask: Callable[[], dict[str, float]],
        processes: Processes, watchdog: Watchdog, profile: Profile, stop: StopRequest,
        *, agrees: bool,
    ) -> None:  # fmt: skip
        self._updater = updater
        self._last = last
        self._ask = ask
        self._processes = processes
        self._watchdog = watchdog
        self._profile = profile
        self._stop = stop
        self._agrees = agrees
        self._error: Exception | None = None
        self._names: list[str] = []  # of what is counted in the data of a step
        self._feed: Feed | None = None
        # The next step: its data, and its targets over all ranks (on the device).
        self._data: StepData | None = None
        self._targets = torch.zeros((), dtype=torch.float64)

    def open(self, feed: Feed) -> None:
        """Takes the data from here."""
        self._feed = feed

    @property
    def ready(self) -> bool:
        """Whether the data of the next update is there."""
        return self._data is not None

    def begin(self, step: int) -> dict[str, float]:
        """Fetches the data of an update before there was one to do it with.

        Returns:
            What the ranks told each other, added up; see `counted`.
        """
        self._data = self._fetch(step)
        if self._error is not None:
            raise self._error  # there is no update to finish
        if not self._agree(step, self._data is not None):
            self._data = None
            return {"stop": 1.0, "unsaved": 0.0, "dataless": 0.0}
        self._watchdog.enter(f"step {step}: adding up over all ranks")
        totals = add_up(self._processes, self._told(has_next=True))
        self._targets = totals.on_device(f"{NEXT}targets")
        return totals.read()

    def update(self, step: int) -> Update:
        """An update, and the data of the next; on a GPU neither is waited for."""
        assert self._data is not None, "begin() fetches the first"
        self._watchdog.step = step - 1
        self._profile.before(step)

        def count() -> dict[str, float]:
            self._data = None
            if step < self._last:
                data = self._fetch(step + 1)
                is_everywhere = not self._agrees or self._agree(step + 1, data is not None)
                self._data = data if is_everywhere else None
            return self._told(step < self._last)

        update = self._updater.run(step, self._data, self._targets, count)
        if self._data is not None:
            self._targets = update.totals.on_device(f"{NEXT}targets")
        self._profile.after(step)
        return update

    def raise_error(self) -> None:
        """Raises, on every rank, why one of them has no more data. All ranks call it together."""
        errors = self._processes.gather(None if self._error is None else report_of(self._error))
        if self._error is not None:
            raise self._error
        for rank, report in enumerate(errors):
            if report is not None:
                raise reported_error(rank, report)

    def _fetch(self, step: int) -> StepData | None:
        """The data of a step; None where the run has to end without that step.

        Either a signal came while this rank waited, or the data cannot be read (see `raise_error`).
        """
        assert self._feed is not None, "open() says where from"
        self._watchdog.enter(f"step {step}: waiting for data")
        try:
            with self._profile.range("waiting for data"), self._stop.ends_wait():
                return self._feed.fetch()
        except WaitEnded:
            return None
        except Exception as error:  # raised when the step before is finished and saved
            self._error = self._watchdog.named(error)
            return None

    def _agree(self, step: int, has_data: bool) -> bool:
        self._watchdog.enter(f"step {step}: waiting for the data of the other ranks")
        return self._processes.agree(has_data)

    def _told(self, has_next: bool) -> dict[str, float]:
        if self._data is not None:
            self._names = list(self._data.counted())
        # All ranks add up the same names, also one that has no data for the next update.
        data = self._data.counted() if self._data is not None else dict.fromkeys(self._names, 0.0)
        told = {**self._ask(), "dataless": float(self._error is not None)}
        return told | {NEXT + name: value for name, value in data.items() if has_next}


def counted(totals: dict[str, float]) -> dict[str, float]:
    """Of what the ranks told each other, what they counted in the data of the next update."""
    return {k[len(NEXT) :]: value for k, value in totals.items() if k.startswith(NEXT)}
