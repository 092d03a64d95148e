"""The store of torch's process group, through a connection whose calls never block for long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

ANSWER_TIMEOUT_S = 10.0
"""Time limit of a call on the store."""

Result = TypeVar("Result")


class SharedStore:
    """A separate connection to the store of the process group, whose calls never block for long.

    The main thread may be blocked in a call on the connection of the group; any thread may use this
    connection. A call on torch's store waits for an answer from the machine that hosts it. If that
    machine vanishes from the network, TCP resends for about a quarter of an hour (Linux,
    `tcp_retries2`) before the call fails. Here a thread makes the calls, and the caller waits for
    it only a few seconds.
    """

    def __init__(self, connection: Any, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._connection = connection
        self._answer_timeout_s = answer_timeout_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any]]] = (
            queue.SimpleQueue()
        )
        self._late: Future[Any] | None = None  # the call that did not return in time
        # A daemon, unlike the threads of an executor: the process ends even if a call never does.
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    def call(self, action: Callable[[Any], Result]) -> Result:
        """Calls `action` with the connection; returns its result.

        Raises:
            RuntimeError: If the host of the store has ended or does not answer in time. As long as
                one call is unanswered, all others fail at once.
        """
        if self._late is not None and not self._late.done():
            raise RuntimeError("the host of the store does not answer")

        future: Future[Result] = Future()
        self._calls.put((future, action))
        try:
            return future.result(self._answer_timeout_s)
        except TimeoutError as error:
            if not future.cancel():  # otherwise it was waiting for the call of another thread
                self._late = future
            raise RuntimeError(
                f"the host of the store has not answered for {self._answer_timeout_s:g} s"
            ) from error

    def _serve(self) -> None:
        """Main loop of the thread, which makes one call after another."""
        while True:
            future, action = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = action(self._connection)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
