"""A run folder is opened with all that a finished run has written."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

import pytest

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.run_folder.events import read_last_events
from tests.api.conftest import read_lines

LOADED = "import sys, bsmeta; print(len([n for n in sys.modules if n.startswith('bsmeta')]),"
LOADED += " {'torch', 'hydra', 'numpy', 'transformers'} & sys.modules.keys(), dir(bsmeta)[:2])"


def test_importing_the_package_loads_no_large_library() -> None:
    done = run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "1 set() ['BatchStream', 'Checkpoint']\n"


def test_the_exported_names_are_the_documented_names() -> None:
    assert {name: getattr(bsmeta, name).__module__ for name in bsmeta.__all__} == bsmeta._MODULES
    with pytest.raises(AttributeError, match="module 'bsmeta' has no attribute 'laod'"):
        bsmeta.laod  # type: ignore[attr-defined]  # noqa: B018


def test_a_finished_run_has_its_events_and_model(demo_run: Path) -> None:
    opened = bsmeta.open_run(demo_run)
    assert isinstance(opened.config, CausalLMConfig)
    assert (opened.task, opened.config.max_train_steps) == ("causal_lm", 4)
    status = opened.status()
    assert (status.state, status.step, status.exit_code, status.message) == ("done", 4, 0, "")
    assert [(checkpoint.step, checkpoint.folder.name) for checkpoint in opened.checkpoints()] == [
        (2, "checkpoint-2step"), (4, "checkpoint-4step")
    ]  # fmt: skip
    assert opened.metrics() == read_lines(demo_run / "metrics.jsonl")
    assert [row["step"] for row in opened.metrics("step")] == [1, 2, 3, 4]
    assert [row["step"] for row in opened.metrics("eval")] == [2, 4]
    with pytest.raises(bsmeta.UserError, match=r"evaluations of this run: none; `bsmeta evaluate"):
        opened.evaluation("evaluation-other")


def test_a_run_in_progress_has_its_complete_events(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: causal_lm\n")
    opened = bsmeta.open_run(tmp_path)
    assert Path(opened) == tmp_path
    assert (opened.metrics(), opened.checkpoints()) == ([], [])
    (tmp_path / "metrics.jsonl").write_text('{"event": "step", "step": 1}\n{"event": "st')
    assert opened.metrics() == [{"event": "step", "step": 1}]
    with pytest.raises(bsmeta.UserError, match=r"status.json cannot be read"):
        opened.status()


def test_a_folder_without_a_run_is_refused(demo_run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").touch()
    for folder, message in (
        (5, "5: expected the path of the folder of a run"),
        (tmp_path / "missing", "there is no such folder"),
        (demo_run / "metrics.jsonl", "a file; expected the folder of a run"),
        (demo_run / "checkpoint-4step", f"a folder in the run {demo_run}, which bsmeta.load reads"),
        (tmp_path / "runs", "no config.yaml in it, but it holds the runs one; expected"),
    ):
        with pytest.raises(bsmeta.UserError, match=message):
            bsmeta.open_run(folder)  # type: ignore[arg-type]


def test_malformed_logs_are_skipped_and_a_malformed_status_is_named(tmp_path: Path) -> None:
    """A run may come from others, or from a bad disk."""
    deep = "[" * 100_000
    (tmp_path / "config.yaml").write_text("task: causal_lm\n")
    good = b'{"event": "step", "step": 1, "loss": 2.0}\n'
    lines = [b"\xff\n", deep.encode() + b"\n", b"[1]\n", b"7\n", b'{"event": "step", \xff\n']
    (tmp_path / "metrics.jsonl").write_bytes(b"".join([*lines, good, *lines]))
    opened = bsmeta.open_run(tmp_path)
    assert opened.metrics() == [{"event": "step", "step": 1, "loss": 2.0}]
    last = {"step": {"event": "step", "step": 1, "loss": 2.0}}
    assert read_last_events(tmp_path / "metrics.jsonl") == last
    for content in (deep, "[1]", "{"):
        (tmp_path / "status.json").write_text(content)
        with pytest.raises(bsmeta.UserError, match="status.json"):
            opened.status()
