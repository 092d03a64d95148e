"""The record of where and with what something was computed."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
from importlib import metadata

import torch

from bsmeta.core.environment import describe_environment, format_utc_now, hash_machine_name
from tests.conftest import REPOSITORY


def test_the_environment_of_this_process_is_described() -> None:
    record = describe_environment(torch.device("cpu"))
    git = ["git", "-C", str(REPOSITORY)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert record["commit"] == commit.stdout.strip()
    changes = [*git, "status", "--porcelain", "--", "bsmeta", "hydra_configs", "deepspeed_configs"]
    status = subprocess.run(changes, capture_output=True, text=True, check=True)
    assert record["is_clean"] is (status.stdout == "")
    assert record["versions"]["torch"] == metadata.version("torch")
    assert record["threads"] == torch.get_num_threads()
    assert record["device"] == "cpu"
    assert record["cores"] >= 1
    assert record["processor"]
    assert socket.gethostname() not in json.dumps(record)
    expected = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
    assert record["machine"] == hash_machine_name() == expected


def test_times_sort_as_texts() -> None:
    first, second = format_utc_now(), format_utc_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first)
    assert first <= second
