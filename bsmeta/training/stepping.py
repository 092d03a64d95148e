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
from bsmeta.training.sums import add_up
from bsmeta.training.update import Update, Updater
from bsmeta.training.watchdog import Watchdog

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
    """

    def __init__(
        self, updater: Updater, last: int, ask: Callable[[], dict[str, float]],
        processes: Processes, watchdog: Watchdog, profile: Profile,
    ) -> None:  # fmt: skip
        self._updater = updater
        self._last = last
        self._ask = ask
        self._processes = processes
        self._watchdog = watchdog
        self._profile = profile
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
        self._watchdog.enter(f"step {step}: adding up over all ranks")
        totals = add_up(self._processes, self._told())
        self._targets = totals.on_device(f"{NEXT}targets")
        return totals.read()

    def update(self, step: int) -> Update:
        """An update, and the data of the next; on a GPU neither is waited for."""
        assert self._data is not None, "begin() fetches the first"
        self._watchdog.step = step - 1
        self._profile.before(step)

        def count() -> dict[str, float]:
            self._data = None if step == self._last else self._fetch(step + 1)
            return self._told()

        update = self._updater.run(step, self._data, self._targets, count)
        if self._data is not None:
            self._targets = update.totals.on_device(f"{NEXT}targets")
        self._profile.after(step)
        return update

    def _fetch(self, step: int) -> StepData:
        assert self._feed is not None, "open() says where from"
        self._watchdog.enter(f"step {step}: waiting for data")
        with self._profile.range("waiting for data"):
            return self._feed.fetch()

    def _told(self) -> dict[str, float]:
        counted = {} if self._data is None else self._data.counted()
        return {**self._ask(), **{NEXT + name: value for name, value in counted.items()}}


def counted(totals: dict[str, float]) -> dict[str, float]:
    """Of what the ranks told each other, what they counted in the data of the next update."""
    return {k[len(NEXT) :]: value for k, value in totals.items() if k.startswith(NEXT)}
