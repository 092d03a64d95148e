"""Ranks as threads of one process, for code that only gathers and broadcasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bsmeta.training.ranks.processes import Processes

Result = TypeVar("Result")
_TIMEOUT_S = 60.0


class Board:
    """Values that the ranks exchange."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class RankThreads(Processes):
    """One of several ranks, which has a thread of its own."""

    board: Board = field(repr=False)

    def gather(self, value: Any) -> list[Any]:
        self.board.values[self.rank] = value
        self.board.barrier.wait()
        values = list(self.board.values)
        self.board.barrier.wait()
        return values

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]

    def barrier(self) -> None:
        self.gather(None)


def run_ranks(
    size: int, action: Callable[[Processes], Result], leaders: tuple[int, ...] = ()
) -> list[Result]:
    """Calls `action` on each rank; returns the results in the order of the ranks."""
    board = Board(size)
    ranks = [RankThreads(rank, size, leaders=leaders, board=board) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(action, ranks)]
