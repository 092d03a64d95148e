"""`deterministic`: what a run sets, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("deterministic_task.py")
KEYS = ("trackers=[]", "max_train_steps=2", "num_warmup_steps=0")
Launch = Callable[..., subprocess.CompletedProcess[str]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]


def test_a_deterministic_run_sets_torch_cublas_and_flash_attention(
    launch: Launch, steps: Steps, tmp_path: Path
) -> None:
    settings, losses = [], []
    for value in ("false", "true"):
        run, file = tmp_path / value, tmp_path / f"{value}.json"
        environ = {"SETTINGS": str(file), "CUBLAS_WORKSPACE_CONFIG": ":0:0"}
        launch(SCRIPT, *KEYS, f"deterministic={value}", f"out_dir={run}", **environ)
        settings.append(json.loads(file.read_text()))
        losses.append([step["loss"] for step in steps(run).values()])
    assert settings == [
        {
            "algorithms": False,
            "warn_only": False,
            "cudnn_attention": True,
            "compiler": False,
            "CUBLAS_WORKSPACE_CONFIG": ":0:0",
            "FLASH_ATTENTION_DETERMINISTIC": None,
        },
        {
            "algorithms": True,
            "warn_only": False,
            "cudnn_attention": False,
            "compiler": True,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "FLASH_ATTENTION_DETERMINISTIC": "1",
        },
    ]
    assert losses[0] == losses[1]


def test_an_operation_without_a_deterministic_kernel_is_named(
    launch: Launch, tmp_path: Path
) -> None:
    environ = {"SETTINGS": str(tmp_path / "settings"), "PUT": "1"}
    keys = (*KEYS, f"out_dir={tmp_path / 'run'}")
    ended = launch(SCRIPT, *keys, "deterministic=true", check=False, **environ)
    assert ended.returncode == 2
    assert "configuration error: deterministic=true: found put_, which has no" in ended.stderr
    assert "expected deterministic=false" in json.loads(
        (tmp_path / "run" / "status.json").read_text()
    )["message"]  # fmt: skip
    launch(SCRIPT, *keys, "overwrite_out_dir=true", **environ)
