"""Copies of the data of a run: the same batches, from whatever was interrupted or damaged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.config.programs.copying import StageConfig
from bsmeta.core import files as core_files
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.stage import stage_data
from tests.conftest import REPOSITORY
from tests.data.helpers import Run, run, same, small_config, write_shards
from tests.data.hub_server import (
    REPO,
    TOKEN,
    Answer,
    Fault,
    Hub,
    cutting,
    failing,
    is_content,
    shards_in,
)
from tests.waiting import STUCK_S, wait_until

SIZES = [30, 41, 17, 26, 33, 9]
STEPS = 12
URL = f"hf://datasets/{REPO}"
CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.fixture
def stored(hub: Hub, folder: Path) -> Hub:
    """The shards in a data set, the last of them held out."""
    hub.files = hub.listed = shards_in(folder)
    hub.token = TOKEN
    return hub


def remote_config(cache: Path, **changes: object) -> DataConfig:
    values = {"train_file": f"{URL}/*.jsonl.gz", "validation_file": f"{URL}/part-05.jsonl.gz"}
    here = {"cache_dir": str(cache / "cache"), "hub_retries": 3}
    return small_config(cache, **(values | here | changes))


def stage_copy(data: DataConfig, out: Path) -> dict[str, str]:
    """Copies the data; returns the keys for a run on the copy."""
    lines = stage_data(StageConfig(data_config=data, out=str(out)), out).splitlines()
    return dict(line.strip().split("=", 1) for line in lines[1:])


def run_on(config: DataConfig, keys: dict[str, str] | None = None) -> Run:
    values = {
        name.removeprefix("data_config."): value.strip("'") for name, value in (keys or {}).items()
    }
    return run(replace_values(config, values), STEPS)


def test_a_run_on_the_copy_has_the_same_batches(stored: Hub, tmp_path: Path) -> None:
    whole = run_on(remote_config(tmp_path))
    keys = stage_copy(remote_config(tmp_path), tmp_path / "copy")
    assert keys == {
        "data_config.train_file": f"{tmp_path}/copy/train/",
        "data_config.validation_file": f"{tmp_path}/copy/validation/part-05.jsonl.gz",
    }
    stored.requests.clear()
    assert same(run_on(remote_config(tmp_path), keys), whole)
    assert stored.requests == []


def test_the_printed_keys_unset_the_revision(stored: Hub, tmp_path: Path) -> None:
    """A revision is refused for local files."""
    out = tmp_path / "copy"
    assert stage_copy(remote_config(tmp_path, dataset_revision="main"), out) == {
        "data_config.train_file": f"{out}/train/",
        "data_config.validation_file": f"{out}/validation/part-05.jsonl.gz",
        "data_config.dataset_revision": "null",
    }


def test_equal_file_names_are_copied_into_separate_folders(folder: Path, tmp_path: Path) -> None:
    """Each source has a folder, with subfolders where its shards differ."""
    first, second = tmp_path / "data/a", tmp_path / "data/b"
    for target in (first, second):
        shutil.copytree(folder, target)
    sources = [
        SourceConfig(name="both", train_file=[str(first), str(second)]),
        SourceConfig(name="one", train_file=str(first / "part-00.jsonl.gz"), weight=2.0),
    ]
    data = small_config(tmp_path, train_file=None, sources=sources, cache_dir=str(tmp_path / "c"))
    whole = run_on(data)
    keys = stage_copy(data, tmp_path / "copy")
    assert keys == {
        "data_config.sources.0.train_file": f"'{tmp_path}/copy/train/0/**'",
        "data_config.sources.1.train_file": f"{tmp_path}/copy/train/1/",
    }
    shutil.rmtree(tmp_path / "data")
    assert same(run_on(data, keys), whole)


def test_an_interrupted_copy_continues_at_the_missing_byte(stored: Hub, tmp_path: Path) -> None:
    stored.faults = [cutting(150, 4), failing(500, 10**6)]
    with pytest.raises(DataError, match="given up after 4 failures in a row"):
        stage_copy(remote_config(tmp_path), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    there = {
        path.name.split(".")[0]: path.stat().st_size
        for path in (tmp_path / "copy.part").rglob("*.part")
    }
    assert sum(there.values()) == 4 * 150
    stored.faults = []
    stored.requests.clear()
    stage_copy(remote_config(tmp_path), tmp_path / "copy")
    asked = {
        Path(path.partition("?")[0]).name.split(".")[0]: int(asked.split("=")[1].split("-")[0])
        for _, path, asked in stored.requests
        if path.startswith("/stored/")
    }
    assert asked == {name: there.get(name, 0) for name in asked}
    assert len(asked) == len(SIZES)


@pytest.mark.long
@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_program_continues(hub: Hub, tmp_path: Path, kill: signal.Signals) -> None:
    """Also with a file that was complete when the process was killed."""
    hub.files = hub.listed = {"a.jsonl": b'{"text": "a"}\n', "b.jsonl": CONTENT}

    def half_then_nothing(answer: Answer) -> bool:
        if not is_content(answer) or "b.jsonl" not in answer.path:
            return False
        answer.give_part(len(CONTENT) // 2)
        time.sleep(STUCK_S)
        return True

    hub.faults = [half_then_nothing]
    keys = [f"data_config.train_file={URL}/*.jsonl", "data_config.validation_file=null"]
    keys += [f"data_config.cache_dir={tmp_path}/cache", f"out={tmp_path}/copy"]
    command = [sys.executable, "-m", "bsmeta.data.stage", "--config-name", "demo", *keys]
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN}
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    copies = tmp_path / "copy.part/train"
    wait_until(
        lambda: (
            (copies / "a.jsonl").exists()
            and any(path.stat().st_size >= 1_000_000 for path in copies.glob("b.jsonl.*.part"))
        ),
        process,
    )
    process.send_signal(kill)
    _, errors = process.communicate()
    assert process.returncode == (75 if kill == signal.SIGTERM else -kill), errors.decode()
    (part,) = copies.glob("b.jsonl.*.part")
    size = part.stat().st_size
    hub.faults = []
    hub.requests.clear()
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert hub.content_requests() == [f"bytes={size}-{len(CONTENT) - 1}"]
    assert (tmp_path / "copy/train/b.jsonl").read_bytes() == CONTENT
    assert f"data_config.train_file={tmp_path}/copy/train/" in done.stdout


def answer_with_other_content() -> Fault:
    """Answers with other content of the same length, as a proxy might."""

    def fault(answer: Answer) -> bool:
        if not is_content(answer):
            return False
        first, last = answer.asked()
        content = answer.hub.files[Path(answer.path.partition("?")[0]).name]
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        answer.give(206, headers, b"?" * (last + 1 - first))
        return True

    return fault


def test_content_that_differs_from_its_hash_is_refused(stored: Hub, tmp_path: Path) -> None:
    stored.faults = [answer_with_other_content()]
    with pytest.raises(DataError, match="the content differs from the listing"):
        stage_copy(remote_config(tmp_path), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not list((tmp_path / "copy.part").rglob("*.gz"))


def test_a_damaged_beginning_is_copied_again(stored: Hub, tmp_path: Path) -> None:
    stored.faults = [cutting(150, 10**6)]
    data = remote_config(tmp_path, hub_retries=0)
    with pytest.raises(DataError, match="given up"):
        stage_copy(data, tmp_path / "copy")
    parts = [*(tmp_path / "copy.part").rglob("*.part")]
    for part in parts:
        part.write_bytes(b"!" * part.stat().st_size)
    stored.faults = []
    stage_copy(data, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*.gz"):
        assert path.read_bytes() == stored.listed[path.name]


def test_a_complete_copy_is_compared_with_its_hashes(stored: Hub, tmp_path: Path) -> None:
    out, config = tmp_path / "copy", StageConfig(data_config=remote_config(tmp_path))
    assert "is complete" in stage_data(config, out)
    stored.requests.clear()
    assert "was complete, and every file has its hash" in stage_data(config, out)
    assert stored.content_requests() == []
    path = out / "train/part-02.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"part-02.jsonl.gz is damaged: its xxh3 is \w+, not \w+"):
        stage_data(config, out)
    path.unlink()
    with pytest.raises(DataError, match=r"part-02.jsonl.gz is damaged: its xxh3 is missing"):
        stage_data(config, out)


def test_a_folder_of_other_data_is_refused_and_unchanged(
    stored: Hub, tmp_path: Path, folder: Path
) -> None:
    out = tmp_path / "copy"
    stage_data(StageConfig(data_config=remote_config(tmp_path)), out)
    fewer = StageConfig(data_config=remote_config(tmp_path, exclude=["part-01*"]))
    with pytest.raises(ConfigurationError, match="contains other data") as caught:
        stage_data(fewer, out)
    assert "train/part-01.jsonl.gz" in str(caught.value)
    with pytest.raises(ConfigurationError, match="was not written by this command"):
        stage_data(fewer, folder)
    own = shutil.copytree(folder, tmp_path / "own.part")
    with pytest.raises(ConfigurationError, match=r"own.part exists, and was not written"):
        stage_data(fewer, tmp_path / "own")
    assert shards_in(folder) == shards_in(own)


def test_a_file_that_changes_is_copied_again(folder: Path, tmp_path: Path) -> None:
    """Files copied by an earlier call from another listing are not kept."""
    source = shutil.copytree(folder, tmp_path / "source")
    data = small_config(tmp_path, train_file=str(source), cache_dir=str(tmp_path / "cache"))
    config, out = StageConfig(data_config=data), tmp_path / "copy"
    stage_data(config, out)
    out.rename(tmp_path / "copy.part")  # as a call that was killed before its last step
    shutil.copy(source / "part-00.jsonl.gz", source / "part-01.jsonl.gz")
    (source / "part-02.jsonl.gz").unlink()
    stage_data(config, out)
    assert shards_in(out / "train") == shards_in(source)


def test_a_disk_without_room_is_refused_before_the_first_byte(
    stored: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(core_files.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match="are missing, and the disk has room for 1 kB"):
        stage_copy(remote_config(tmp_path), tmp_path / "copy")
    assert stored.content_requests() == []
