"""The benchmark of the stream: one JSON line, on the shipped sample."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments/benchmarks/stream.py"


@pytest.mark.parametrize("own", ["tokenizer_backend=tiktoken", "plain=true"])
def test_one_json_line(launch: Callable[..., subprocess.CompletedProcess[str]], own: str) -> None:
    done = launch(SCRIPT, "--config-name", "demo", "seconds=0.5", own)
    result = json.loads(done.stdout)
    assert set(result) == {"tokens", "cpu_s", "wall_s", "documents", "fill", "rss_mb"}
    assert result["tokens"] > result["documents"] > 0
    assert result["wall_s"] >= 0.5
    assert 0.9 < result["fill"] <= 1.0
