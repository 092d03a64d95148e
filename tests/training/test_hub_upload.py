"""The upload after a run: it works against a server that does, and harms nothing with others."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bsmeta.training.hub_upload import push_model
from tests.training.hub_server import HubServer
from tests.waiting import STUCK_S
from tests.warm import REPOSITORY

TOKEN = "hf_" + "x1" * 16
FILES = {"config.json": b"{}", "README.md": b"# A model\n", "model.safetensors": b"\x00\x01\xff"}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    for name, content in FILES.items():
        (tmp_path / "model" / name).write_bytes(content)
    (tmp_path / "metrics.jsonl").write_text('{"event": "step", "step": 7}\n')
    return tmp_path


@pytest.fixture
def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[HubServer]:
    with HubServer(request.param) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield made


def last_event(run_folder: Path) -> dict[str, Any]:
    return json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("server", ["good"], indirect=True)
def test_a_finished_model_is_uploaded(server: HubServer, run_folder: Path) -> None:
    assert push_model(run_folder, "owner/name", 7, timeout_s=STUCK_S)
    assert server.repositories == ["owner/name"]
    assert {name: server.files[name] for name in FILES} == FILES
    assert server.tokens == {f"Bearer {TOKEN}"}
    assert last_event(run_folder) == {
        "event": "push",
        "step": 7,
        "repository": "owner/name",
        "pushed": True,
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "problem", "timeout_s"),
    [(401, "401", STUCK_S), (500, "500", STUCK_S), ("hang", "given up after 3 seconds", 3)],
    indirect=["server"],
)
def test_a_server_that_misbehaves_is_only_a_warning(
    server: HubServer,
    problem: str,
    timeout_s: float,
    run_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not push_model(run_folder, "owner/name", 7, timeout_s=timeout_s)
    event = last_event(run_folder)
    assert (event["event"], event["pushed"]) == ("push", False)
    assert problem in event["problem"]
    assert "but not on the Hub" in caplog.text
    assert TOKEN not in caplog.text + (run_folder / "metrics.jsonl").read_text()
    assert server.files == {}


def test_an_unreachable_server_is_only_a_warning(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert not push_model(run_folder, "owner/name", 7, timeout_s=STUCK_S)
    assert not last_event(run_folder)["pushed"]
    assert not push_model(run_folder / "nowhere", "no such name!", 7, timeout_s=STUCK_S)
    assert "metrics.jsonl could not be written" in caplog.text


@pytest.mark.parametrize("server", ["good"], indirect=True)
def test_an_upload_imports_nothing_from_the_working_folder(
    server: HubServer, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("huggingface_hub", "json", "httpx"):
        (run_folder / f"{module}.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.chdir(run_folder)
    assert push_model(run_folder, "owner/name", 7, timeout_s=STUCK_S)
    assert not (run_folder / "was_run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("server", "pushed"), [("good", True), (401, False)], indirect=["server"])
def test_a_run_is_done_independent_of_the_server(
    server: HubServer, pushed: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "bsmeta/train.py", "--config-name", "demo", "push_to_hub=owner/name"]
    command += ["max_train_steps=2", "num_warmup_steps=1", "eval_steps=0", "trackers=[]"]
    command.append(f"out_dir={tmp_path / 'run'}")
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=STUCK_S)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "done"
    event = last_event(tmp_path / "run")
    assert (event["event"], event["step"], event["pushed"]) == ("push", 2, pushed)
    model = tmp_path / "run" / "model"
    uploaded = {path.name for path in model.iterdir()} if pushed else set()
    assert set(server.files) - {".gitattributes"} == uploaded


@pytest.mark.parametrize("server", ["good"], indirect=True)
@pytest.mark.parametrize("private", [True, False])
def test_a_repository_is_created_private_by_default(
    server: HubServer, run_folder: Path, private: bool
) -> None:
    assert push_model(run_folder, "owner/name", 7, private=private, timeout_s=STUCK_S)
    assert server.private == [private]


@pytest.mark.parametrize("server", ["good"], indirect=True)
@pytest.mark.parametrize("has_recipe", [True, False])
def test_a_model_without_settings_is_uploaded_with_the_settings_of_its_run(
    server: HubServer, run_folder: Path, has_recipe: bool
) -> None:
    (run_folder / "config.yaml").write_text("task: classification\n")
    if has_recipe:
        (run_folder / "model" / "metadata.yaml").write_text("data_config: {}\n")

    assert push_model(run_folder, "owner/name", 7, timeout_s=STUCK_S)
    assert ("config.yaml" in server.files) == (not has_recipe)
