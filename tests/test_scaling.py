"""The page about more GPUs: its tables are what the script prints, and the script can add up."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from bsmeta.data.io.shards import list_shards
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "experiments/benchmarks"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import scaling

    return scaling


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import startup

    return startup


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import failures

    return failures


@pytest.fixture
def save_time(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import save_time

    return save_time


def run(script: str, *keys: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), *keys]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", ["scaling.py", "failures.py"])
def test_the_page_shows_the_output_of_the_scripts(script: str) -> None:
    page = Path(REPOSITORY / "docs/scaling.md").read_text()
    _, _, tables = run(script).stdout.partition("\n\n")
    assert f"<!-- table: python experiments/benchmarks/{script} -->\n{tables}<!-- end" in page


@pytest.mark.slow
def test_a_start_reads_no_more_on_many_ranks() -> None:
    """From a disk: a listing, and for each of 300 shards a look-up, an opening and four reads."""
    done = run("startup.py", "shards=300", "others=3")
    assert done.returncode == 0, done.stderr
    table = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    figures = [[float(cell.replace(",", "")) for cell in row[1:]] for row in table]
    disk, hub = figures[:3], figures[3:]
    assert [row[4] for row in disk] == [disk[0][4]] * 3
    assert disk[0][4] >= 1 + 300 * 6
    assert disk[0][8] < disk[0][4] - 300 * 4  # a restart takes their samples from the cache
    assert [(row[0], row[1]) for row in disk] == [(n, n * disk[0][4]) for n in (8, 64, 1024)]
    # The commit, a page of the listing, and the first block of the shards, with its redirect.
    assert [(row[0], row[1], row[4], row[8]) for row in hub] == [
        (ranks, 4 * ranks, 4, 1) for ranks in (8, 64, 1024)
    ]


def test_the_limited_hub_refuses_requests_beyond_its_quota(
    startup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process waits for the end of the window, and then reads the listing."""
    monkeypatch.setattr(startup, "WINDOW_S", 1)
    monkeypatch.setattr(startup, "QUOTAS", {"api": 3, "resolvers": 9})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    hub = startup.LimitedHub({"a.jsonl.gz": b"", "b.jsonl.gz": b""})
    with startup.used_hub(hub, monkeypatch):
        for rank in range(2):  # two requests each
            startup.resolve_commit.cache_clear()
            assert len(list_shards(startup.config_of(hub, tmp_path / str(rank)))) == 2
    assert len(hub.requests) == 5
    assert hub.refused == 1


def test_the_wait_for_the_quota_of_the_hub_is_computed(startup: ModuleType) -> None:
    assert startup.waits_s(Counter(api=1000, resolvers=5000, storage=10**6)) == 0
    assert startup.waits_s(Counter(api=1001)) == 300
    assert startup.waits_s(Counter(api=27 * 1024)) == 27 * 300
    assert startup.waits_s(Counter(api=1, resolvers=5001)) == 300


def test_results_equal_a_computation_by_hand(scaling: ModuleType) -> None:
    """10 billion parameters: 20 GB x 63/64 at 80% of 50 GB/s are 0.492 s one way."""
    setting = scaling.Setting(parameters=1e10, micro_batch_s=1.0, latency_us=0.0)
    assert scaling.one_way_s(setting, 64) == pytest.approx(0.4921875)
    assert scaling.one_way_s(setting, 8) == pytest.approx(20 * 7 / 8 / 360)
    assert scaling.state_gb(setting, 1, 4) == pytest.approx(20 + 20 + 30)
    assert scaling.state_gb(setting, 2, 4) == pytest.approx(20 + 5 + 30)
    assert scaling.state_gb(setting, 3, 4) == pytest.approx(5 + 5 + 30)
    c = 0.4921875
    assert scaling.step_s(setting, 1, 64, 4) == pytest.approx((4 + c, 4 + 2 * c))
    assert scaling.step_s(setting, 2, 64, 4) == pytest.approx((4 + c, 4 + 5 * c))
    assert scaling.step_s(setting, 3, 64, 4) == pytest.approx((4 + 12 * c - 4, 4 + 12 * c))


def test_a_measured_time_can_be_given() -> None:
    assert run("scaling.py", "micro_batch_s=0.28").stdout.startswith(
        "one micro-batch on one GPU: 0.280 s"
    )


@pytest.mark.parametrize("script", ["scaling.py", "failures.py"])
def test_an_unknown_key_is_refused(script: str) -> None:
    done = run(script, "micro_batch=1")
    assert done.returncode == 1
    assert "micro_batch=1: expected key=value with a key of " in done.stderr


HOUR = 3600.0


@pytest.mark.parametrize(
    ("every", "pause", "write", "between", "restart"),
    [
        (300.0, 30.0, 0.0, HOUR, 300.0),
        (900.0, 60.0, 0.0, 3 * HOUR, 0.0),
        (300.0, 2.0, 240.0, 3 * HOUR, 600.0),
        (HOUR, 60.0, 0.0, HOUR, 300.0),  # most intervals end in a failure
    ],
)
def test_the_simulated_loss_equals_the_formula(
    failures: ModuleType,
    every: float,
    pause: float,
    write: float,
    between: float,
    restart: float,
) -> None:
    saves = failures.Saves(every, pause, write)
    expected = failures.useful_share(saves, between, restart)
    simulated = failures.simulated_share(saves, between, restart, 20_000, 7)
    assert simulated == pytest.approx(expected, abs=0.01)


def test_a_run_that_never_fails_loses_its_pauses(failures: ModuleType) -> None:
    synchronous = failures.Saves(540.0, 60.0)
    assert failures.useful_share(synchronous, 1e12, 300.0) == pytest.approx(0.9)
    slow = failures.Saves(60.0, 10.0, 110.0)  # the next save waits for the last one
    assert failures.useful_share(slow, 1e12, 300.0) == pytest.approx(0.5)


def test_the_interval_of_young_loses_less_than_half_or_twice_of_it(failures: ModuleType) -> None:
    best = failures.best_interval_s(10.0, 3 * HOUR)
    assert best == pytest.approx(464.758, abs=0.001)
    half, young, double = (
        failures.useful_share(failures.Saves(times * best, 10.0), 3 * HOUR, 0.0)
        for times in (0.5, 1, 2)
    )
    assert young > max(half, double)


@pytest.mark.parametrize(("gpus", "largest"), [(2, 0.56419), (4, 1.02938), (100, 2.50759)])
def test_the_time_of_the_slowest_gpu_follows_order_statistics(
    failures: ModuleType, gpus: int, largest: float
) -> None:
    """Expected maxima of standard normals, from tables of order statistics."""
    assert failures.slowest(gpus, 0.1) == pytest.approx(1 + 0.1 * largest, abs=1e-5)
    assert failures.slowest(1, 0.1) == 1.0


def test_the_cost_of_a_save_to_the_loop_is_computed(save_time: ModuleType) -> None:
    """The save of step 3 is still written during steps 4 and 5; that of step 6 ends the run."""
    times = {1: 9.0, 2: 1.0, 3: 1.0, 4: 1.5, 5: 1.25, 6: 1.0}
    events = [{"event": "step", "step": step, "step_s": time} for step, time in times.items()]
    events.insert(3, {"event": "save", "step": 3, "seconds": 2.5, "loop_seconds": 0.5})
    events.append({"event": "save", "step": 6, "seconds": 40.0, "loop_seconds": 40.0})
    assert save_time.summary(events, 3) == {
        "pause_s": 0.5,
        "write_s": 2.5,
        "step_s": 1.0,
        "slower_s": 0.75,
        "lost": 0.0208,
    }
