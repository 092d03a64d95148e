"""Row 10 of the fault matrix: training runs from a Hub that misbehaves.

What each fault does to the data is counted in `tests/data/test_hub_faults.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.data.helpers import write_shards
from tests.data.hub_server import (
    TOKEN,
    Answer,
    Fault,
    Hub,
    cutting,
    failing,
    is_anything,
    is_content,
    shards_in,
)
from tests.data.test_hub_stream import answer_badly_at_intervals
from tests.faults.conftest import RESUME, Run, list_metrics, same_run, status
from tests.waiting import STUCK_S

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
TRAIN = REPOSITORY / "bsmeta" / "train.py"
URL = "hf://datasets/owner/name/*.jsonl.gz"
KEYS = (
    "max_train_steps=40",
    "save_steps=5",
    "eval_steps=0",
    "data_config.validation_file=null",
    "data_config.num_streams=2",
    "data_config.window_documents=8",
    "data_config.metadata_config.max_seq_len=64",
    "data_config.hub_cache_gb=0",
    "data_config.hub_retries=3",
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A private data set of six shards; a run of 40 steps reads each several times."""
    (tmp_path / "shards").mkdir()
    with Hub(shards_in(write_shards(tmp_path / "shards", [20, 31, 17, 26, 23, 19]))) as server:
        server.token = TOKEN
        yield server


def begin(start: Start, hub: Hub, out_dir: Path, *keys: str, **named: object) -> Run:
    """Starts a run from the Hub in new interpreters: huggingface_hub reads settings at import."""
    env = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}
    env["HF_HUB_DOWNLOAD_TIMEOUT"] = str(STUCK_S)
    data_keys = (f"data_config.train_file={URL}", f"data_config.cache_dir={out_dir}-cache")
    demo = ("--config-name", "demo")
    values = {"options": demo, "script": TRAIN, "cold": True, **env, **named}
    return start(out_dir, *KEYS, *data_keys, *keys, **values)


@pytest.mark.slow
def test_row_10_no_document_is_lost_or_repeated_by_an_outage_of_the_hub(
    start: Start, complete: Start, hub: Hub, tmp_path: Path
) -> None:
    """Temporary errors are retried, an outage ends the run, and the resumed run retries as well."""
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    local = f"data_config.train_file={tmp_path / 'shards'}"
    complete(whole, *KEYS, local, options=("--config-name", "demo"), script=TRAIN, cold=True)
    hub.faults = [failing(429, 1, {"Retry-After": "1"}), failing(500, 1), cutting(120, 1)]
    run = begin(start, hub, disturbed)
    run.until(lambda: (disturbed / "metrics.jsonl").exists() and len(list_metrics(disturbed)) >= 7)
    hub.faults = [failing(500, 10**6, where=is_anything)]
    assert run.wait() != 0
    state = status(disturbed)
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert "given up after 4 failures in a row, the last one: HTTP 500" in state["message"]
    assert 7 <= state["step"] < 40
    hub.faults = [answer_badly_at_intervals()]
    again = begin(start, hub, disturbed, RESUME, "data_config.hub_retries=50")
    assert again.wait() == 0, again.errors[-3000:]
    assert same_run(disturbed, whole)


@pytest.mark.long
def test_row_10_a_refused_token_ends_the_run(start: Start, hub: Hub, tmp_path: Path) -> None:
    run = begin(start, hub, tmp_path / "run", processes=1, HF_TOKEN="hf_of_someone_else")
    assert run.wait() == 2, run.errors[-3000:]
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"]) == ("failed", 2)
    assert "401" in state["message"]
    assert "HF_TOKEN" in state["message"]


@pytest.mark.slow
def test_row_10_a_hanging_hub_ends_the_run(start: Start, hub: Hub, tmp_path: Path) -> None:
    released = threading.Event()

    def silent(answer: Answer) -> bool:
        return answer.path.startswith("/stored/") and released.wait(STUCK_S)

    hub.faults = [silent]
    retry_once = "data_config.hub_retries=1"
    run = begin(start, hub, tmp_path / "run", retry_once, processes=1, HF_HUB_DOWNLOAD_TIMEOUT="2")
    try:
        assert run.wait() == 2
    finally:
        released.set()
    assert "given up after 2 failures in a row" in status(tmp_path / "run")["message"]


def corrupting() -> Fault:
    """Answers the first content request of each file with a proxy's page of the same length."""
    lock, answered = threading.Lock(), set[str]()

    def fault(answer: Answer) -> bool:
        if not is_content(answer):
            return False
        name = answer.path.partition("?")[0].removeprefix("/stored/")
        with lock:
            if name in answered:
                return False
            answered.add(name)
        size = len(answer.hub.files[name])
        first, last = answer.asked()
        page = b"<html>try again later</html>".ljust(last + 1 - first)
        answer.give(206, {"Content-Range": f"bytes {first}-{last}/{size}"}, page)
        return True

    return fault


@pytest.mark.slow
def test_row_10_bad_answers_are_neither_trained_on_nor_cached(
    start: Start, complete: Start, hub: Hub, tmp_path: Path
) -> None:
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    local = f"data_config.train_file={tmp_path / 'shards'}"
    few = (*KEYS, "max_train_steps=6", "data_config.num_workers=0")
    named = {"options": ("--config-name", "demo"), "script": TRAIN, "cold": True, "processes": 1}
    complete(whole, *few, local, **named)
    hub.faults = [corrupting()]
    keys = ("data_config.hub_cache_gb=1", "data_config.bad_documents=skip")
    run = begin(start, hub, disturbed, *few, *keys, processes=1)
    assert run.wait() == 0, run.errors[-3000:]
    assert same_run(disturbed, whole)


def moving() -> Fault:
    """Moves the branch to another commit (of the same files) at each request."""
    lock, asked = threading.Lock(), [0]

    def fault(answer: Answer) -> bool:
        if "/revision/" in answer.path:
            with lock:
                asked[0] += 1
                answer.give_json({"id": "owner/name", "sha": f"{asked[0]:040x}"})
            return True
        for number in range(1, asked[0] + 1):
            if f"{number:040x}" in answer.path:
                answer.commit = f"{number:040x}"
        return False

    return fault


@pytest.mark.slow
def test_row_10_all_ranks_read_the_same_commit_of_a_moving_branch(
    start: Start, hub: Hub, tmp_path: Path
) -> None:
    """The first rank resolves the commit, and all ranks read it."""
    hub.faults = [moving()]
    assert begin(start, hub, tmp_path / "run").wait() == 0
    assert len([path for _, path, _ in hub.requests if "/revision/" in path]) == 1
