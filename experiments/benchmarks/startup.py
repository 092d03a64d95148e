"""What the start of a run asks of its data: requests, bytes and seconds for 8, 64 and 1,024 ranks.

    python experiments/benchmarks/startup.py                    # the table of docs/scaling.md
    python experiments/benchmarks/startup.py shards=2500 alone=64

Synthetic shards (names of one file of 104 kB) are on a local disk, and on a Hub on this machine
that pages its listings and limits requests like the real one for a free account. One process is all
ranks, one after another. The first surveys the shards (`survey_data`); each of the others unpickles
the result and opens its corpora (`Survey.open_corpora`), and the last opens its whole stream. What
a rank reads afterwards, to train, is not counted.

Keys (defaults in `Setting`): shards; alone, how many ranks are measured where each surveys for
itself, with a cache of its own; others, how many are measured that take over the survey of the
first. Requests and bytes of the rest are those of the first of them, and the time that they wait
for the rate limit is computed.
"""

from __future__ import annotations

import operator
import os
import pickle
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from scaling import given

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))  # for the Hub of the tests
from bsmeta.config.data import DataConfig  # noqa: E402
from bsmeta.core.process import run_and_report  # noqa: E402
from bsmeta.data.io.remote.hub import resolve_commit  # noqa: E402
from bsmeta.data.stream.survey import survey_data  # noqa: E402
from bsmeta.data.stream.train_stream import TrainStream  # noqa: E402
from tests.data.helpers import pages, small_config, small_tokenizer, write_shard  # noqa: E402
from tests.data.hub_server import REPO, Answer, Hub, used_hub  # noqa: E402

RANKS = (8, 64, 1024)
DOCUMENTS = 7000  # of a shard
PAGE = 1000  # entries of a page of the Hub's listing
WINDOW_S = 300
QUOTAS = {"api": 1000, "resolvers": 5000}
"""Requests in a window for a free account (https://huggingface.co/docs/hub/rate-limits)."""
MB = 1e6
OWN_READS = 2  # of the kernel's counters: their text, and its end

Result = TypeVar("Result")


@dataclass(frozen=True)
class Setting:
    """The size of the corpus, and how many ranks are measured."""

    shards: float = 25_000
    alone: float = 1
    others: float = 63


@dataclass(frozen=True)
class Cost:
    """What some work costs.

    Attributes:
        requests: By kind, such as `read` or `api`.
        bytes: That were read.
        seconds: Until it was done.
    """

    requests: Counter[str]
    bytes: int
    seconds: float

    def __add__(self, other: Cost) -> Cost:
        """What both cost, if they take place at the same time."""
        return Cost(
            self.requests + other.requests,
            self.bytes + other.bytes,
            max(self.seconds, other.seconds),
        )


class Place(Protocol):
    """Where the shards are."""

    name: str
    train_file: str

    def counts(self) -> tuple[Counter[str], int]:
        """Requests by kind, and bytes read, until now."""


class Disk:
    """A folder; counts what this process asks of it, and what it reads."""

    name = "local disk"

    def __init__(self, folder: Path) -> None:
        self.train_file = str(folder)
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()  # shards are read by several threads
        self._own_reads = self._own_bytes = 0  # to count
        sys.addaudithook(self._note)
        self._lstat = os.lstat
        os.lstat = self._look_up  # no audit event reports it

    def counts(self) -> tuple[Counter[str], int]:
        text = Path("/proc/self/io").read_text()
        self._own_reads += OWN_READS
        self._own_bytes += len(text)
        kernel = {name: int(value) for name, value in (ln.split(": ") for ln in text.splitlines())}
        reads = kernel["syscr"] - self._own_reads
        return self._asked + Counter(read=reads), kernel["rchar"] - self._own_bytes

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and self._is_inside(arguments[0]):
            with self._lock:
                self._asked["open" if event == "open" else "list"] += 1

    def _look_up(self, path: Any, **options: Any) -> os.stat_result:
        with self._lock:
            self._asked["stat"] += self._is_inside(path)
        return self._lstat(path, **options)

    def _is_inside(self, path: Any) -> bool:
        return isinstance(path, (str, Path)) and str(path).startswith(self.train_file)


class LimitedHub(Hub):
    """The Hub of the tests with the pages and the rate limit of the real one.

    Attributes:
        refused: The number of requests that exceeded the limit.
    """

    name = "Hub"
    train_file = f"hf://datasets/{REPO}/*.jsonl.gz"

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files, page=PAGE)
        self.faults = [self._is_over]
        self.refused = 0
        self._lock = threading.Lock()
        self._ends = 0.0
        self._used: Counter[str] = Counter()

    def counts(self) -> tuple[Counter[str], int]:
        return Counter(quota_of(path) for _, path, _ in self.requests), self.sent

    def _is_over(self, answer: Answer) -> bool:
        """Refuses a request that exceeds its quota."""
        kind = quota_of(answer.path)
        with self._lock:
            now = time.monotonic()
            if now >= self._ends:
                self._ends = now + WINDOW_S
                self._used.clear()
            self._used[kind] += 1
            is_over = self._used[kind] > QUOTAS.get(kind, sys.maxsize)
            self.refused += is_over
            left = int(self._ends - now) + 1
        if is_over:
            policy = f'"fixed window";"{kind}";q={QUOTAS[kind]};w={WINDOW_S}'
            answer.give(429, {"RateLimit": f'"{kind}";r=0;t={left}', "RateLimit-Policy": policy})
        return is_over


def quota_of(path: str) -> str:
    """The quota of a request; the storage that the Hub redirects to has none."""
    if path.startswith("/stored/"):
        return "storage"
    return "api" if path.startswith("/api/") else "resolvers"


def cost_of(place: Place, work: Callable[[], Result]) -> tuple[Result, Cost]:
    """The result of the work of another process, and what it costs."""
    resolve_commit.cache_clear()
    requests, read = place.counts()
    begin = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    after, read_after = place.counts()
    return result, Cost(after - requests, read_after - read, seconds)


def config_of(place: Place, cache: Path) -> DataConfig:
    """The configuration of a rank."""
    return small_config(
        Path(place.train_file),
        train_file=place.train_file,
        per_device_train_batch_size=1,
        metadata_list=["url"],
        num_streams=max(RANKS),
        cache_dir=str(cache),
    )


def take_over(sent: bytes, config: DataConfig, rank: int) -> None:
    """What another rank does with the survey of the first."""
    survey = pickle.loads(sent)
    world = max(RANKS)
    if rank < world - 1:
        survey.open_corpora(config)
        return
    TrainStream(
        config, small_tokenizer(), seed=1, rank=rank, world_size=world, global_batch_size=world,
        survey=survey,
    )  # fmt: skip


def seconds_alone(costs: Sequence[Cost], ranks: int) -> float:
    """Seconds until all ranks have surveyed the data for themselves.

    If all are measured, in turn; otherwise of one, and of the waits for the rate limit.
    """
    if len(costs) >= ranks:
        return sum(cost.seconds for cost in costs[:ranks])
    return costs[0].seconds + waits_s(total(costs[:1], ranks).requests)


def waits_s(requests: Counter[str]) -> float:
    """Seconds until the last of some requests is permitted."""
    windows = [(count - 1) // QUOTAS[kind] for kind, count in requests.items() if kind in QUOTAS]
    return WINDOW_S * max(windows, default=0)


def total(costs: Sequence[Cost], ranks: int) -> Cost:
    """What some ranks cost together; those that are not measured cost as much as the first."""
    measured = [*costs[:ranks], *[costs[0]] * (ranks - len(costs))]
    return reduce(operator.add, measured)


def rows(place: Place, caches: Path, setting: Setting) -> list[str]:
    """The lines of a place in the table."""
    alone = [
        cost_of(place, partial(survey_data, config_of(place, caches / str(rank))))[1]
        for rank in range(int(setting.alone))
    ]
    look = partial(survey_data, config_of(place, caches / "shared"))
    survey, first = cost_of(place, look)
    _, again = cost_of(place, look)
    sent, pickling = cost_of(place, partial(pickle.dumps, survey))
    config, last = config_of(place, caches / "other"), max(RANKS) - 1
    take_over(sent, config, last)  # imports modules
    ranks = [last, *range(1, int(setting.others))]
    others = [cost_of(place, partial(take_over, sent, config, rank))[1] for rank in ranks]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(first.requests.items()))
    print(f"{place.name}: requests of the first rank: {kinds}", file=sys.stderr)
    lines = []
    for count in RANKS:
        own, received = total(alone, count), total(others[1:], count - 2) + others[0]
        one, restart = first + received, again + received
        handed_over_s = pickling.seconds + received.seconds
        cells = [
            place.name,
            f"{count:,}",
            f"{own.requests.total():,}",
            f"{own.bytes / MB:,.0f}",
            f"{seconds_alone(alone, count):,.0f}",
            f"{one.requests.total():,}",
            f"{one.bytes / MB:,.0f}",
            f"{len(sent) / MB:.1f}",
            f"{first.seconds + handed_over_s:,.0f}",
            f"{restart.requests.total():,}",
            f"{again.seconds + handed_over_s:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


COLUMNS = (
    "shards on", "processes", "each for itself: requests", "MB", "s", "one for all: requests", "MB",
    "MB sent", "s", "restart: requests", "s",
)  # fmt: skip


def main() -> None:
    """Prints the table for the keys of the command line."""
    setting = given(Setting, __doc__)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory(prefix="bsmeta-startup-") as name:
        folder = Path(name)
        shard = write_shard(folder / "shard.jsonl.gz", pages(DOCUMENTS))
        names = [f"part-{number:05}.jsonl.gz" for number in range(int(setting.shards))]
        (folder / "shards").mkdir()
        for one in names:
            os.link(shard, folder / "shards" / one)
        disk = Disk(folder / "shards")
        print("\n".join(rows(disk, folder / "disk", setting)), flush=True)
        hub = LimitedHub(dict.fromkeys(names, shard.read_bytes()))
        with pytest.MonkeyPatch.context() as patch, used_hub(hub, patch):
            print("\n".join(rows(hub, folder / "hub", setting)))


if __name__ == "__main__":
    sys.exit(run_and_report(main))
