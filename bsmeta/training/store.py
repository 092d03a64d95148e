"""The store of the process group, whose calls never block for long.

A call on torch's store waits for an answer from the machine that hosts it. If that machine vanishes
from the network, TCP resends for about a quarter of an hour (Linux, `tcp_retries2`) before the call
fails. Here a thread makes the calls, and the caller waits for it only a few seconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch.distributed as dist

Result = TypeVar("Result")

ANSWER_S = 10.0


class SharedStore:
    """A connection of its own to the store of the process group.

    The main thread may be blocked in a call on the connection of the group. Any thread may use this
    one.

    Args:
        connection: A connection to a store, used by this object only.
        answer_s: How long a call may take.
    """

    def __init__(self, connection: Any, answer_s: float = ANSWER_S) -> None:
        self._connection = connection
        self._answer_s = answer_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any]]] = (
            queue.SimpleQueue()
        )
        self._late: Future[Any] | None = None  # the call that has not returned in time
        # A daemon, unlike the threads of an executor: the process ends even if a call never does.
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    @classmethod
    def of_group(cls) -> SharedStore:
        store: Any = dist.distributed_c10d._get_default_store()
        return cls(store.clone())

    def call(self, use: Callable[[Any], Result]) -> Result:
        """Returns the result of `use`, which is called with the connection.

        Raises:
            RuntimeError: If the host of the store has ended or does not answer in time. As long as
                one call is unanswered, all others fail at once.
        """
        if self._late is not None and not self._late.done():
            raise RuntimeError("the host of the store does not answer")
        future: Future[Result] = Future()
        self._calls.put((future, use))
        try:
            return future.result(self._answer_s)
        except TimeoutError as error:
            if not future.cancel():  # otherwise it was waiting for the call of another thread
                self._late = future
            raise RuntimeError(
                f"the host of the store has not answered for {self._answer_s:g} s"
            ) from error

    def _serve(self) -> None:
        while True:
            future, use = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = use(self._connection)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
